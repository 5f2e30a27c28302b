"""What the C library does with memory that is freed."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
_LARGE = 4 << 20  # bytes


def give_back_freed_memory() -> None:
    """Give freed memory back to the system: what is free now, and from now on blocks of 4 MiB or more as soon as they
    are freed. It holds for the whole process.

    glibc otherwise learns to keep blocks of up to 32 MiB, and cuts smaller ones out of them. So the process holds more
    memory than it uses. Does nothing with another C library. Source: mallopt(3), malloc_trim(3).
    """
    try:
        library = ctypes.CDLL(None)
        mallopt, trim = library.mallopt, library.malloc_trim
    except (AttributeError, OSError, TypeError):  # no such functions (musl, macOS), or no such way to them (Windows)
        return
    mallopt(_MMAP_THRESHOLD, _LARGE)
    mallopt(_TRIM_THRESHOLD, _LARGE)
    trim(0)
