"""Rehearsals: checkpoints with the shape of a large model and the function of a small one.

shapes    the shapes of models that people run
fit       the place of each number of the small model
write     writes the checkpoint, some rows at a time
honest    the drafts that a rehearsal may be measured with
"""
