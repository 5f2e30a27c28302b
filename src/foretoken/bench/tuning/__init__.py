"""Which options of a draft are fastest for a model on this machine? `foretoken tune`.

How much of a draft is accepted is known without a clock: on the same prompts, a drafter's drafted and accepted tokens
are always the same. What passes cost is measured once. Both together predict the speed of dozens of candidates, and the
few best are measured beside plain decoding, on different prompts.
"""
