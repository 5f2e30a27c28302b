"""Where a model's weights lie: mapped from their files, or copied into memory of their own, where that pays."""

from __future__ import annotations

from typing import NamedTuple

from foretoken.common.progress import size

SPARE = 2 << 30  # bytes that must be left when weights have been copied: for keys and values, and for everybody else
SMALL = 64 << 20  # bytes: what is less is in the processor's caches, or as good as, and should be there at once


class Home(NamedTuple):
    """mapped or copied, and why. lacking: they would be copied, were there more memory."""

    name: str
    why: str
    lacking: bool = False


def choose(kind: str, isa: str | None, *, has_layout: bool, needed: int, besides: int, left: int | None) -> Home:
    """Where weights should lie.

    kind: what they are, such as bfloat16. isa: the instruction set that would read them; None where that is not
    the native engine on the CPU. has_layout: whether it has a layout of its own for them. needed: the bytes of a copy.
    besides: bytes that will be taken for other things while loading goes on. left: bytes that can be had; None if
    nobody knows.
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
