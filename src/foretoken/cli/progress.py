"""How far a measurement is: a bar on a terminal, else lines."""

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
def bar(*, is_kept: bool) -> Iterator[Progress]:
    """How far it is, and how long it will still take; without a terminal, a line at every tenth."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if sys.stderr is None or not sys.stderr.isatty():
        yield _Lines(is_kept=is_kept)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


class _Lines:
    """A line on standard error at every tenth."""

    def __init__(self, *, is_kept: bool) -> None:
        self._left, self._is_kept = TimeLeft(), is_kept
        self._told = -1

    def __call__(self, what: str, done: int, total: int) -> None:
        if total <= 1:
            say(what)
            return
        if not self._is_kept and self._told < 0 and not done:
            say("without --json nothing is kept of it if it is interrupted")
        left = self._left("generations", done, total)  # from the first one on: warming up is none
        # soon after the beginning, so that who waits knows how long; then at every tenth
        if (left and self._told < 0) or 10 * done // total > max(self._told, 0):
            self._told = 10 * done // total
            say(f"{done} of {total} generations{left}")
