"""Models that do not fit into memory: their layers are read from the disk while a pass runs.

direct.py    reads a file past the system's cache of files
verified.py  compares what is read with what it was when the file was hashed
store.py     where each tensor lies in a checkpoint's files
ring.py      where in a buffer each part of the model goes
stream.py    reads the parts in the order in which passes use them, ahead of the passes
plan.py      what stays in memory under a bound, and what is read
"""
