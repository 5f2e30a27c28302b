"""Papers, measured again: their tables and figures, the paper's numbers beside ours. `foretoken reproduce`.

To add a paper: a file here with a `Paper` (its own numbers, each with where it stands; a function for the rows of each
table or figure; what is measured at each scale), and its name in `papers.PAPERS`. Loading, measuring in turn, comparing
every token with plain decoding, keeping what was measured, the report and the command line are there already.
"""
