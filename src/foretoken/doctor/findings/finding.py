"""What a finding is, and how numbers and sentences are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foretoken.doctor.facts import Facts

GOOD, NOTE, WARNING, PROBLEM = "good", "note", "warning", "problem"
STATUSES = (GOOD, NOTE, WARNING, PROBLEM)  # from nothing to do to nothing runs

Said = tuple[str, str, str | None]  # a topic's status, a sentence of fact, and the advice
Judge = Callable[[Facts], Said | None]  # None: nothing to report


@dataclass(frozen=True)
class Finding:
    """A sentence of fact and, unless the status is good, a sentence of advice.

    note: works, but could be better or is worth knowing. warning: costs speed or memory. problem: stops a run.
    """

    topic: str
    status: str
    text: str
    advice: str | None = None

    def __post_init__(self) -> None:
        assert self.status in STATUSES
        assert (self.advice is None) == (self.status == GOOD), self


def gigabytes(count: float) -> str:
    """Bytes, to three digits: `23.4 GB`, `900 MB`."""
    return f"{count / 1e9:#.3g} GB".replace(". ", " ") if count >= 1e9 else f"{count / 1e6:.0f} MB"


def speed(count: float) -> str:
    """Bytes a second: `33.3 GB/s`."""
    return f"{gigabytes(count)}/s"


def sentence(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]
