"""How far a long command is: a bar on a terminal, else lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from foretoken.cli.common import say
from foretoken.cli.time_left import TimeLeft

if TYPE_CHECKING:
    from foretoken.bench.decode import Progress


@contextmanager
def bar(*, is_kept: bool, units: str = "generations", telling: bool = False) -> Iterator[Progress]:
    """How far it is, and how long it will still take; without a terminal, a line at every tenth. units: what is
    counted. telling: whether these lines also have what it is told."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if sys.stderr is None or not sys.stderr.isatty():
        yield _Lines(units, is_kept=is_kept, telling=telling)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


class _Lines:
    """A line on standard error at every tenth."""

    def __init__(self, units: str, *, is_kept: bool, telling: bool) -> None:
        self._left, self._is_kept = TimeLeft(), is_kept
        self._units, self._telling = units, telling
        self._told = -1

    def __call__(self, what: str, done: int, total: int) -> None:
        if total <= 1:
            if what and not self._telling:
                say(what)
            return
        if not self._is_kept and self._told < 0 and not done:
            say("without --json nothing is kept of it if it is interrupted")
        left = self._left(self._units, done, total)  # from the first one on: warming up is none
        # soon after the beginning, so that who waits knows how long; then at every tenth
        if (left and self._told < 0) or 10 * done // total > max(self._told, 0):
            self._told = 10 * done // total
            more = f", {what}" if self._telling else ""
            say(f"{done} of {total} {self._units}{more}{left}")
