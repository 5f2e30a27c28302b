"""Transcripts: a generation in a file, and the proof, on this machine or another, that the model outputs it.

A record holds the prompt, the settings, the tokens, the SHA-256 of the logits from which they were chosen (float32,
little-endian, row after row), the SHA-256 of every file that decides the output, and the engine. The native engine has
the same bits on every x86-64 machine (but for one rounding, see docs/lossless.md), with every instruction set, any
number of threads and any draft. PyTorch has bits of its own.

To verify a record, Foretoken generates again from its contents and compares all that it claims.
"""
