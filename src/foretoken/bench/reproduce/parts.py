"""What a paper is made of here: tables and figures, and what is measured for them at each scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretoken.bench.reproduce.paper import Subject, Table
from foretoken.bench.reproduce.workbench import Workbench
from foretoken.errors import SettingError, nearest, quoted


@dataclass(frozen=True)
class Part:
    """A table or a figure: what makes it, and what draws it from its rows, in a figure's axes."""

    make: Callable[[Workbench], Table]
    draw: Callable[[Path, Sequence[dict[str, Any]]], None] | None = None


@dataclass(frozen=True)
class Paper:
    """parts: in the order in which they are made. subjects: by scale, what is measured."""

    title: str
    parts: Mapping[str, Part]
    subjects: Mapping[str, Sequence[Subject]]

    def chosen(self, only: Sequence[str]) -> list[str]:
        """The parts with these names, in the paper's order; without a name all. Raises SettingError."""
        for name in only:
            if name not in self.parts:
                raise SettingError(f"there is no {quoted(name)} in this paper{nearest(name, self.parts)}")
        return [name for name in self.parts if not only or name in only]
