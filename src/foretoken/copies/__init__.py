"""Low-bit copies of a model in files: checkpoints of their own, written once and read at every load.

quantise     writes a copy, a few rows at a time
calibration  what linear layers read on some texts, for the quantiser gptq
checkpoint   the parts of a checkpoint that Foretoken writes
tensors      a safetensors file whose tensors are written in pieces
place        a folder that is written whole or not at all
fingerprint  recognises the model of a copy
beside       the copy beside its model, which drafts for it
"""
