"""A call's own loop over prompts. It yields pieces of text as they are made, and an outcome for each prompt."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from foretoken.errors import ForetokenError
from foretoken.loop.engine import Engine
from foretoken.loop.output import Output, Piece
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Request

# makes a request when there is room for it; raises the error for a wrong one
Prepare = Callable[[], tuple[Request, Output]]


@dataclass
class Ended:
    """A sequence that has ended: its output and the records of its rounds, or the error that ended it."""

    request: Request | None = None
    output: Output | None = None
    records: list[RoundRecord] | None = None
    error: ForetokenError | None = None


Event: TypeAlias = tuple[int, Piece | Ended]  # with the index of the prompt that it belongs to


class _Counter:
    """Records of the rounds of one loop."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []
        self._dropped = 0  # how many earlier records were dropped

    @property
    def count(self) -> int:
        """How many rounds there have been."""
        return self._dropped + len(self.records)

    def since(self, first: int) -> list[RoundRecord]:
        """The records of round `first` and those after it."""
        return self.records[first - self._dropped :]

    def drop(self, before: int) -> None:
        """Forget the records before a round, which no sequence under way needs: there may be many prompts."""
        del self.records[: before - self._dropped]
        self._dropped = before


def generating(
    make_engine: Callable[[Callable[[RoundRecord], None]], Engine],
    prompts: Iterable[Prepare],
    at_once: int,
    left: list[tuple[int, Ended]] | None = None,
    given_up: Container[int] = (),
) -> Generator[Event]:
    """Drive a loop over prompts, `at_once` of them side by side. As one ends, the next joins.

    make_engine: makes the loop, given the function to call with each round's record. An error of one prompt is the
    outcome of that prompt, and the others go on. Closing the iterator cancels the prompts that are left; the outcomes
    of those under way, as far as they came, are added to `left`. given_up: prompts, by their indices, that the caller
    has enough of. It may grow while pieces come. Such a prompt is cancelled behind its round.
    """
    counter = _Counter()
    waiting: Iterator[tuple[int, Prepare]] = enumerate(prompts)
    live: dict[int, tuple[int, Request, Output, int]] = {}  # by sequence; the last number: its first round
    engine = make_engine(counter.records.append)
    try:
        while True:
            while len(live) < at_once and (following := next(waiting, None)) is not None:
                index, prepare = following
                try:
                    request, output = prepare()
                    engine.admit(request)
                except ForetokenError as error:
                    yield index, Ended(error=error)
                else:
                    live[request.sequence] = (index, request, output, counter.count)
            if not live:
                return
            for verdict in engine.step():
                index, request, output, first = live[verdict.sequence]
                if verdict.error is not None:
                    del live[verdict.sequence]
                    yield index, Ended(error=verdict.error)
                    continue
                for piece in output.take(verdict):
                    yield index, piece
                if index in given_up:
                    output.cancel()
                if verdict.last or index in given_up:
                    del live[verdict.sequence]
                    engine.cancel(verdict.sequence)  # its keys and values: an audit that follows needs its own
                    yield index, Ended(request, output, counter.since(first))
            counter.drop(min((first for *_, first in live.values()), default=counter.count))
    except GeneratorExit:
        for index, request, output, first in live.values():
            output.cancel()
            if left is not None:
                left.append((index, Ended(request, output, counter.since(first))))
        raise
    finally:
        engine.close()
