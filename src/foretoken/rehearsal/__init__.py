"""Rehearsals: checkpoints with the shape of a large model and the function of a small one.

shapes    what models people run are shaped like
fit       where each number of the small one goes
write     the checkpoint, some rows at a time
honest    which drafts a rehearsal may be measured with
"""
