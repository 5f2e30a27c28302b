"""A bar on standard error, with the time left, while something large is read or written; none if it is not large, or
nobody is looking. And sizes and counts as people read them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LARGE = 1_000_000_000  # bytes


def size(count: int) -> str:
    """A number of bytes: `2.68 GB`, `61.0 MB`."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def many(count: object, what: str) -> str:
    """`1 prompt`, `2 prompts`."""
    return f"{count} {what}{'s' * (count != 1)}"


@contextmanager
def progress(title: str, total: int, *, slow: bool = False) -> Iterator[Callable[[int], None]]:
    """Call what this gives with the number of bytes just done, of `total`. slow: a tenth as much is large already."""
    if total < (LARGE // 10 if slow else LARGE) or sys.stderr is None or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    class Terminal(Console):
        """One whose cursor stays: Ctrl-C ends the process at once, and nobody would bring it back."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(compact=True))
    with Progress(TextColumn("{task.description}"), *columns, console=Terminal(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)
