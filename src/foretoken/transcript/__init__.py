"""Transcripts: a generation in a file, and the proof on this machine or another that it is what the model outputs.

A record holds the prompt, the settings, the tokens, the SHA-256 of the logits that they were chosen from (float32,
little-endian, row after row), that of every file that decides the output, and the engine: the native one has the same
bits on every x86-64 machine (but for one rounding, see docs/lossless.md), with every instruction set, with any number
of threads and any draft, and PyTorch has its own.
To verify one is to generate again from what it says, and to compare all that it claims.
"""
