"""What a paper is made of here, and which papers can be reproduced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from foretoken.bench.reproduce.paper import Subject, Table
from foretoken.bench.reproduce.workbench import Workbench
from foretoken.errors import SettingError, nearest, quoted

Draw = Callable[[Path, Sequence[dict[str, Any]]], None]  # a picture, from the rows of a figure


@dataclass(frozen=True)
class Paper:
    """title, cited, summary: what it is called, in its report and by whom and when in a list, and what is made of it.
    parts: what makes each table and figure, in the order in which they are made. subjects: what is measured, by scale.
    pictures: what draws a figure."""

    title: str
    cited: str
    summary: str
    parts: Mapping[str, Callable[[Workbench], Table]]
    subjects: Mapping[str, Sequence[Subject]]
    pictures: Mapping[str, Draw] = field(default_factory=dict)

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
