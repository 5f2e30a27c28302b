"""Generations from weights that are mapped from files. They end as soon as a file has changed since it was loaded."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

from foretoken.decoder.homes.mapped import MappedFiles
from foretoken.errors import ForetokenError
from foretoken.loop.generating import Ended, Event


def trusted(events: Generator[Event], count: int, mapped: Sequence[MappedFiles]) -> Generator[Event]:
    """The events of a loop over `count` prompts, as long as the mapped files are unchanged. The files are looked at
    before a pass reads them, and again before an event of that pass is passed on. If a file has changed, each prompt
    that has not ended gets the error as its outcome."""
    left = set(range(count))
    with closing(events):
        while (error := changed(mapped)) is None:
            event = next(events, None)
            if event is None:
                return
            if (error := changed(mapped)) is not None:
                break
            if isinstance(event[1], Ended):
                left.discard(event[0])
            yield event
    yield from ((index, Ended(error=error)) for index in sorted(left))


def changed(mapped: Sequence[MappedFiles]) -> ForetokenError | None:
    """The error for the first file that has changed since it was loaded; None if none has."""
    return next((error for files in mapped if (error := files.changed()) is not None), None)
