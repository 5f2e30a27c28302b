"""What the C library does with memory that is freed."""

from __future__ import annotations

import ctypes

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h
_LARGE = 4 << 20  # bytes


def give_back_freed_memory() -> None:
    """From now on, blocks of 4 MiB or more go back to the system as soon as they are freed.

    glibc otherwise learns to keep blocks of up to 32 MiB. It cuts others out of them, and so the process may hold much
    more memory than it uses. Where a bound of memory is to be kept, that counts. Does nothing with another C library.
    Source: mallopt(3).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no such function (musl, macOS), or no such way to it (Windows)
        return
    mallopt(_MMAP_THRESHOLD, _LARGE)
