"""Generations from weights that are mapped from files: only as long as the files are what they were."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

from foretoken.decoder.homes.mapped import MappedFiles
from foretoken.errors import ForetokenError
from foretoken.loop.generating import Ended, Event


def trusted(events: Generator[Event], count: int, mapped: Sequence[MappedFiles]) -> Generator[Event]:
    """Events of a loop over so many prompts, while the files that weights are mapped from are what they were. They are
    looked at before a pass reads them, and again before what came of it is passed on."""
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
    """What is wrong where a file has changed since it was loaded."""
    return next((error for files in mapped if (error := files.changed()) is not None), None)
