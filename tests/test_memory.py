"""What one generation after the other leaves in memory: nothing.

What is looked at is what is in use, not what the process has: between allocations of many sizes the C library keeps
gaps, and takes a few megabytes more of the system now and then, which it fills later.
"""

from __future__ import annotations

import ctypes
import gc
import sys

import pytest

import foretoken
from foretoken.api.model import Model

STARTS = ("def add(", "import os\nimport", "class Stack:\n    def push(self, item):", "for i in range(")


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def in_use() -> tuple[int, int]:
    """Bytes that the C library has given out (tensors, native code), and blocks that Python has."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    gc.collect()
    found = mallinfo2()
    return found.uordblks + found.hblkhd, sys.getallocatedblocks()


def one_of_each(model: Model) -> None:
    """A generation to its end, one that is sampled, several at once, a talk, and one that is broken off."""
    for start in STARTS:
        model.generate(start, max_new_tokens=8)
        model.generate(start, max_new_tokens=8, temperature=0.8, seed=1, keep_logits=True)
    model.completions(STARTS[0], n=2, max_new_tokens=8)
    talk = model.chat(plain=True)
    for start in STARTS[:2]:
        for _ in talk.send(start, max_new_tokens=6):
            pass
    stream = model.stream(STARTS[0], max_new_tokens=8)
    next(stream)
    stream.close()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="this C library does not say what is in use")
@pytest.mark.parametrize("draft", ["none", "lookup", "mxfp4,lookup"])
def test_a_hundred_generations_more_take_no_memory(draft: str) -> None:
    model = foretoken.load("stdlib-1m", draft=draft, pace="fixed")
    for _ in range(4):
        one_of_each(model)
    before = in_use()
    for _ in range(8):
        one_of_each(model)
    grown, blocks = (after - there for after, there in zip(in_use(), before, strict=True))
    assert grown < 75_000, f"{grown:,} bytes more are in use"
    assert blocks < 500, f"{blocks:,} blocks more are in use"
