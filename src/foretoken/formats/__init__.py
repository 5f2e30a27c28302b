"""Low-bit formats of weights: their contents, the numbers that they stand for, and their layout in memory.

    table      the formats: mxfp4, int8, int4, int3, int2; needs no torch
    weight     a quantised weight, and the check of a weight from a file
    tiles      codes in the order in which kernels read them
    mxfp4      blocks of E2M1 numbers with a power of two
    integers   int8 with a scale for each output; int4, int3 and int2 with a scale and a zero point for each group
    hqq        better zero points, computed from the weights alone
    gptq       weights that make up for the errors of others, on some text
    quantiser  quantises a weight
    values     dequantises a weight: the bf16 numbers that it stands for
    slices     runs both on a few rows at a time, on threads

docs/formats.md describes the bytes and the limits. This PyTorch code defines what the native kernels read.
"""

from __future__ import annotations

from foretoken.formats.table import FORMATS, Format, format_of

__all__ = ["FORMATS", "Format", "format_of"]
