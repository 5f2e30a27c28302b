"""Which options of a draft are fastest for a model on this machine? `foretoken tune`.

What a draft gains is known without a clock: the drafter runs on prompts, and what it drafted and what was accepted are
the same whenever it does. What that costs is measured once, by passes. So dozens of candidates are judged by what both
predict, and the few best are measured beside plain decoding, on other prompts.
"""
