"""Papers, measured again: their tables and figures, the paper's numbers beside ours. `foretoken reproduce`.

To add a paper: a file here with a `Paper` (its own numbers, each with where it stands; a function for the rows of each
table or figure; what is measured at each scale), and its name in `papers.PAPERS`. A `Workbench` loads, measures in
turn, compares every token with plain decoding and keeps what was measured; what a method came to is asked of
`Measured`; what tables and pictures of several papers are made of is in `parts`. Report and command line are there.
"""
