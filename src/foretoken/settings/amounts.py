"""Amounts as people write them: `8GiB`, `1.4GB/s`. GiB is 2**30 bytes, GB is 10**9."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}ib": 2 ** (10 * power) for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}b": 10 ** (3 * power) for power, letter in enumerate("kmgt", 1)}


def bytes_of(text: str) -> int | None:
    """A number of bytes: `8GiB`, `500 MB`, `1.5gb`; None if it is not one, or not above 0."""
    found = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]{0,3})\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        return None
    return int(float(found[1]) * _UNITS[found[2]]) or None


def bytes_a_second(text: str) -> int | None:
    """A bandwidth: `1.4GB/s`; None if it is not one."""
    return bytes_of(text.strip()[:-2]) if text.strip().lower().endswith("/s") else None
