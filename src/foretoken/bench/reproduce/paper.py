"""What is measured for a paper, and how its tables hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretoken.bench.statistics import PLAIN


@dataclass(frozen=True)
class Method:
    """A way to decode, and what it is called in tables. cache: whether keys and values are kept between passes."""

    name: str
    draft: str = PLAIN
    cache: bool = True


REFERENCE = Method("plain, cached")  # what every other text is compared with


@dataclass(frozen=True)
class Data:
    """Prompts: a suite as `open_suite` takes it, how many of them (None: all), and how many new tokens of each (None:
    as many as the suite allows)."""

    suite: str
    count: int | None = None
    max_new_tokens: int | None = None

    @property
    def called(self) -> str:
        """The suite, as tables and records say it: without the folders in which it lies."""
        return self.suite.partition("=")[0] if "=" in self.suite else Path(self.suite).name

    def first(self, count: int) -> Data:
        """No more than so many prompts of it."""
        return replace(self, count=min(count, self.count or count))


@dataclass(frozen=True)
class Subject:
    """A model of the paper, and what is measured in its place, on `data`, by what the paper calls its data sets: a
    checkpoint (a folder, a hub id or an embedded model), or its rehearsal in so many layers of a `shape`."""

    model: str
    checkpoint: str
    data: Mapping[str, Data]
    shape: str | None = None
    num_layers: int = 0

    @property
    def called(self) -> str:
        """What is measured, as tables say it."""
        name = Path(self.checkpoint).name if Path(self.checkpoint).exists() else self.checkpoint
        return name if self.shape is None else f"{name} as {self.num_layers} layers of {self.shape}"


def beside(paper: float | None, ours: float | None, interval: Sequence[float] | None = None) -> dict[str, Any]:
    """A figure of the paper and ours, as rows have it; None where there is none. interval: that holds ours at 95 %."""
    return {"paper": paper, "ours": ours, **({} if interval is None else {"interval": list(interval)})}


def share(part: float | None, whole: float | None) -> float | None:
    """One figure over another; None where one is missing."""
    return None if part is None or whole is None else part / whole
