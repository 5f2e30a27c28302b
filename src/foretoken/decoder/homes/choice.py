"""Chooses the home of a model's weights: mapped from their files, or copied into memory of their own if that pays."""

from __future__ import annotations

from typing import NamedTuple

from foretoken.common.progress import size

SPARE = 2 << 30  # bytes that must be left after the copy: for keys and values, and for other programs
SMALL = 64 << 20  # bytes: smaller weights nearly fit the processor's caches, and a copy would only delay the load


class Home(NamedTuple):
    """A home ("mapped" or "copied") and the reason. lacking: whether the weights would be copied if there were more
    memory."""

    name: str
    why: str
    lacking: bool = False


def choose(kind: str, isa: str | None, *, has_layout: bool, needed: int, besides: int, left: int | None) -> Home:
    """Choose the home of weights.

    kind: their format, such as bfloat16. isa: the instruction set that would read them; None if that is not the native
    engine on the CPU. has_layout: whether the instruction set has a layout of its own for them. needed: the bytes of a
    copy. besides: the bytes that other things need while loading goes on. left: the bytes of memory that are left; None
    if the system does not tell.
    """
    if isa is None:
        return Home("mapped", "a copy is for the native engine on the CPU")
    if kind != "bfloat16":
        return Home("mapped", f"no instruction set has a faster layout for {kind}")
    if not has_layout:
        return Home("mapped", f"{isa} reads them as fast as they lie in the file")
    if needed < SMALL:
        return Home("mapped", f"copying {size(needed)} would only make loading slower")
    if left is None:
        return Home("mapped", "this system does not tell how much memory is left")
    if left < needed + besides + SPARE:
        more = f", {size(besides)} for low-bit copies" if besides else ""
        why = f"{size(left)} of memory are left, and a copy needs {size(needed)}{more} and 2 GiB to spare"
        return Home("mapped", why, lacking=True)
    return Home("copied", f"{isa} has a faster layout for {kind}")
