"""Where in a buffer each unit goes: always at the same place, so that what reads it by address finds it there."""

from __future__ import annotations

from collections.abc import Sequence


def offsets(sizes: Sequence[int], capacity: int) -> list[int]:
    """The beginning of each unit in a buffer of `capacity` bytes, which must have room for the largest.

    Units are laid one behind the other, in the order in which they are used. What does not fit before the buffer's end
    goes to its beginning, or to its end if it lies over less of the unit before it there: what it does not share with
    that one can be read while that one is in use.
    """
    found: list[int] = []
    before = (0, 0)
    for size in sizes:
        start = before[1]
        if start + size > capacity:
            start = min((0, capacity - size), key=lambda at: shared((at, at + size), before))
        found.append(start)
        before = (start, start + size)
    return found


def shared(one: tuple[int, int], other: tuple[int, int]) -> int:
    """How many bytes two ranges of bytes [start, stop) have in common."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))
