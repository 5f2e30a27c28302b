"""Papers, measured again: their tables and figures, the paper's numbers beside ours. `foretoken reproduce`.

To add a paper, write a file here with a `Paper`, and add its name to `papers.PAPERS`. The file has the paper's own
numbers, each with its place in the paper; a function for the rows of each table or figure; and what is measured at each
scale. A `Workbench` loads, measures in turn, compares every token with plain decoding and keeps what was measured.
`Measured` has the results of a method. `parts` has what tables and pictures of several papers share. Report and command
line need no change.
"""
