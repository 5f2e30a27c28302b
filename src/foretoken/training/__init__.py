"""Training: the embedded models (`pretrain`). Needs the `train` extra."""
