"""What a paper is made of here, what is measured for it, and which papers can be reproduced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from foretoken.bench.statistics import PLAIN
from foretoken.errors import SettingError, nearest, quoted

Row = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """A way to decode, and what it is called in tables. cache: whether keys and values are kept between passes."""

    name: str
    draft: str = PLAIN
    cache: bool = True


REFERENCE = Method("plain, cached")  # what every other text is compared with


@dataclass(frozen=True)
class Data:
    """Prompts: a suite as `open_suite` takes it, how many of them (None: all), how many new tokens of each (None: as
    many as the suite allows), and how many tokens of a prompt are left (None: all)."""

    suite: str
    count: int | None = None
    max_new_tokens: int | None = None
    cut: int | None = None

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


class Part(NamedTuple):
    """A table or a figure. rows: made on a `Workbench`; of each, what is text (or a whole number) says which it is, and
    the figures are what `beside` makes. notes: what is said below. draw: a picture, from the rows of a figure."""

    title: str
    rows: Callable[[Any], Iterable[Row]]
    notes: Sequence[str] = ()
    draw: Callable[[Path, Sequence[Row]], None] | None = None


@dataclass(frozen=True)
class Paper:
    """title, cited, summary: what it is called, in its report and by whom and when in a list, and what is made of it.
    parts: in the order in which they are made. subjects: what is measured, by scale."""

    title: str
    cited: str
    summary: str
    parts: Mapping[str, Part]
    subjects: Mapping[str, Sequence[Subject]]
    dtype: str = "auto"  # that the paper's own checkpoints were run in

    def chosen(self, only: Sequence[str]) -> list[str]:
        """The parts with these names, in the paper's order; without a name all. Raises SettingError."""
        for name in only:
            if name not in self.parts:
                raise SettingError(f"there is no {quoted(name)} in this paper{nearest(name, self.parts)}")
        return [name for name in self.parts if not only or name in only]


PAPERS = ("fractal",)  # each is a file here, with a PAPER in it


def paper(name: str) -> Paper:
    """A paper by its name. Raises SettingError."""
    if name not in PAPERS:
        raise SettingError(f"there is no paper {quoted(name)} to reproduce{nearest(name, PAPERS)}")
    found: Paper = import_module(f"foretoken.bench.reproduce.{name}").PAPER
    return found


def beside(paper: float | None, ours: float | None, interval: Sequence[float] | None = None) -> dict[str, Any]:
    """A figure of the paper and ours, as rows have it; None where there is none. interval: that holds ours at 95 %."""
    return {"paper": paper, "ours": ours, **({} if interval is None else {"interval": list(interval)})}


def share(part: float | None, whole: float | None) -> float | None:
    """One figure over another; None where one is missing."""
    return None if part is None or whole is None else part / whole
