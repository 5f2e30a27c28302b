"""The parts of a paper here, what is measured for it, and which papers can be reproduced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from foretoken.bench.statistics import PLAIN
from foretoken.errors import SettingError, nearest, quoted

Row = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """A way to decode, and its name in tables. cache: whether keys and values are kept between passes. read_ahead: how
    far the parts of layers that are read from the disk are read ahead; None: as there is room. noise: whether the draft
    knows the noise with which the target samples."""

    name: str
    draft: str = PLAIN
    cache: bool = True
    read_ahead: int | None = None
    noise: bool = True

    @property
    def more(self) -> list[Any]:
        """What a record says of it beside name, draft and cache; nothing if it is as usual."""
        return [] if self.read_ahead is None and self.noise else [self.read_ahead, self.noise]


REFERENCE = Method("plain, cached")  # all other texts are compared with this method's


@dataclass(frozen=True)
class Data:
    """Prompts. suite: as `open_suite` takes it. count: how many prompts (None: all). max_new_tokens: of each prompt
    (None: as many as the suite allows). cut: tokens that are left of each prompt (None: all)."""

    suite: str
    count: int | None = None
    max_new_tokens: int | None = None
    cut: int | None = None

    @property
    def called(self) -> str:
        """The suite's name in tables and records, without its folders."""
        return self.suite.partition("=")[0] if "=" in self.suite else Path(self.suite).name

    def first(self, count: int) -> Data:
        """The same data with at most `count` prompts."""
        return replace(self, count=min(count, self.count or count))


@dataclass(frozen=True)
class Subject:
    """A model of the paper, and what is measured in its place: a checkpoint (a folder, a hub id or an embedded model),
    or its rehearsal in `num_layers` layers of a `shape`. data: prompts by the paper's names of its data sets. small:
    another checkpoint that drafts for it, if the paper has one, or its rehearsal in `small_shape`. loading: settings
    that it is loaded with, as `load` takes them."""

    model: str
    checkpoint: str
    data: Mapping[str, Data]
    shape: str | None = None
    num_layers: int = 0
    small: str = ""
    small_shape: str | None = None
    loading: Mapping[str, Any] = field(default_factory=dict)

    @property
    def called(self) -> str:
        """The name in tables of what is measured."""
        name = Path(self.checkpoint).name if Path(self.checkpoint).exists() else self.checkpoint
        name = name if self.shape is None else f"{name} as {self.num_layers} layers of {self.shape}"
        if not self.loading.get("stream_layers"):
            return name
        bandwidth = self.loading.get("disk_bandwidth")
        return f"{name}, layers read from the disk{f' at {bandwidth}' if bandwidth else ''}"

    @property
    def small_called(self) -> str:
        """The name in tables of the checkpoint that drafts."""
        return self.small if self.small_shape is None else f"{self.small} as {self.small_shape}"


class Part(NamedTuple):
    """A table or a figure. rows: made on a `Workbench`; text and whole numbers label a row, and `beside` makes its
    figures. notes: paragraphs below it. draw: draws a picture of the rows."""

    title: str
    rows: Callable[[Any], Iterable[Row]]
    notes: Sequence[str] = ()
    draw: Callable[[Path, Sequence[Row]], None] | None = None


@dataclass(frozen=True)
class Paper:
    """A paper. title: in its report. cited: title, authors and year, in a list. summary: what is reproduced. parts: in
    the order in which they are made. subjects: what is measured, by scale."""

    title: str
    cited: str
    summary: str
    parts: Mapping[str, Part]
    subjects: Mapping[str, Sequence[Subject]]
    dtype: str = "auto"  # the type in which the paper ran its own checkpoints

    def chosen(self, only: Sequence[str]) -> list[str]:
        """The parts with these names, in the paper's order; without names, all. Raises SettingError."""
        for name in only:
            if name not in self.parts:
                raise SettingError(f"there is no {quoted(name)} in this paper{nearest(name, self.parts)}")
        return [name for name in self.parts if not only or name in only]


PAPERS = ("fractal", "ml-specqd", "subspec", "moa")  # each is a file here, with a PAPER in it


def paper(name: str) -> Paper:
    """A paper by its name. Raises SettingError."""
    if name not in PAPERS:
        raise SettingError(f"there is no paper {quoted(name)} to reproduce{nearest(name, PAPERS)}")
    found: Paper = import_module(f"foretoken.bench.reproduce.{name.replace('-', '_')}").PAPER
    return found


def beside(paper: float | None, ours: float | None, interval: Sequence[float] | None = None) -> dict[str, Any]:
    """A figure of the paper and ours, as rows have them; None if there is none. interval: holds ours at 95 %."""
    return {"paper": paper, "ours": ours, **({} if interval is None else {"interval": list(interval)})}


def share(part: float | None, whole: float | None) -> float | None:
    """One figure over the other; None if one is missing."""
    return None if part is None or whole is None else part / whole
