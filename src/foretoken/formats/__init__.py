"""Low-bit formats of weights: what they hold, which numbers that is, and how it lies in memory.

    table      what there is: mxfp4, int8, int4, int3, int2; needs no torch
    weight     a quantised weight, and what a file must hold to be one
    tiles      codes in the order in which kernels read them
    mxfp4      blocks of E2M1 numbers with a power of two
    integers   int8 by output; int4, int3 and int2 by group, with zero points
    hqq        better zero points, from the weights alone
    quantiser  from a weight to a quantised one
    values     and back: the bf16 numbers that a quantised weight stands for
    slices     what both do a few rows at a time

docs/formats.md has the bytes and the limits. This is PyTorch, and defines what the native kernels read.
"""

from __future__ import annotations

from foretoken.formats.table import FORMATS, Format, format_of

__all__ = ["FORMATS", "Format", "format_of"]
