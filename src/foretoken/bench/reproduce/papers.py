"""What a paper is made of here, and which papers can be reproduced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from foretoken.bench.reproduce.paper import Subject
from foretoken.bench.reproduce.workbench import Workbench
from foretoken.errors import SettingError, nearest, quoted

Row = dict[str, Any]


class Part(NamedTuple):
    """A table or a figure. Of its rows, what is text (or a whole number) says which it is, and the figures are what
    `beside` makes. notes: what is said below. draw: a picture, from the rows of a figure."""

    title: str
    rows: Callable[[Workbench], Iterable[Row]]
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
