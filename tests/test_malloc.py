"""Memory that is freed goes back to the system where a bound is to be kept."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

KEPT = """
import sys
import numpy
import psutil
from foretoken.common.malloc import give_back_freed_memory
if "give back" in sys.argv:
    give_back_freed_memory()
resident = lambda: psutil.Process().memory_info().rss
def block(mib):
    return numpy.ones(mib << 20, dtype=numpy.uint8)
block(31)  # is freed at once: glibc learns that blocks of this size come and go
before = resident()
blocks = [block(20), block(1), block(20), block(1)]
del blocks[2], blocks[0]  # a small block lies behind each
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library, which has no such thresholds")
def test_large_blocks_that_are_freed_go_back_to_the_system() -> None:
    def kept(*arguments: str) -> int:
        done = subprocess.run([sys.executable, "-c", KEPT, *arguments], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert kept() > 20 << 20, "else this test would show nothing"
    assert kept("give back") < 8 << 20
