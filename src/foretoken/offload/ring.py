"""Where in a buffer each unit goes: always at the same place, so that what reads it by address finds it there."""

from __future__ import annotations

from collections.abc import Sequence


def offsets(sizes: Sequence[int], capacity: int) -> list[int]:
    """The beginning of each unit in a buffer of `capacity` bytes, which must have room for the largest.

    Units are laid one behind the other, in the order in which they are used. What does not fit before the buffer's end
    goes to its beginning, over units that have been used by then.
    """
    found, end = [], 0
    for size in sizes:
        start = end if end + size <= capacity else 0
        found.append(start)
        end = start + size
    return found


def overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two ranges of bytes [start, stop) have bytes in common."""
    return one[0] < other[1] and other[0] < one[1]
