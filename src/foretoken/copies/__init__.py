"""Low-bit copies of a model in files: checkpoints of their own, written once and read at every load.

quantise     writes one, a few rows at a time
checkpoint   what a checkpoint that we write consists of
tensors      a safetensors file whose tensors come in pieces
place        a folder that is there whole or not at all
fingerprint  whose copy it is
beside       the copy that lies beside its model, which drafts for it
"""
