"""Answers the lines of a batch, with the parts of the server that are no web server."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from foretoken.api.model import Model
from foretoken.common.progress import many
from foretoken.errors import ForetokenError, cut
from foretoken.results.completion import Completion
from foretoken.serve.answering import KINDS, Answering
from foretoken.serve.asked import Asked, Times, Watcher
from foretoken.serve.asking import Asking
from foretoken.serve.batch_lines import Line
from foretoken.serve.batch_output import Output, as_line
from foretoken.serve.errors import ServeError, StoppingError, as_served, body
from foretoken.serve.fields import ignored
from foretoken.serve.limits import Limits
from foretoken.serve.worker import Worker

log = logging.getLogger(__name__)

_AHEAD = 2  # requests under way for each text of a pass: some wait, so that another joins as soon as one ends
_LOOK = 1.0  # seconds after which it is told how far it is, whether or not something has ended
_FAULTS = 50  # failures in a row, none of them a request's own, after which the rest would fail, too
_MOST_NAMES = 8  # of fields that are told
_ANY = 1 << 30


@dataclass
class Counts(Watcher):
    """What became of the lines of a batch. total: all lines. kept: those that were answered or refused before, of which
    `kept_refused` were refused. tokens: that were written, with those of lines that failed. failed: lines whose failure
    was not their own."""

    total: int
    kept: int = 0
    kept_refused: int = 0
    answered: int = 0
    refused: int = 0
    failed: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    unknown: set[str] = field(default_factory=set)
    began: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0

    @property
    def done(self) -> int:
        """Lines that have an answer or an error."""
        return self.kept + self.answered + self.refused + self.failed

    @property
    def all_refused(self) -> int:
        """Lines that have an error for an answer, because of what they ask."""
        return self.kept_refused + self.refused

    @property
    def speed(self) -> float:
        """Tokens a second of all texts together, so far."""
        return self.tokens / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        before = f" ({self.kept} before)" if self.kept else ""
        said = [f"{self.kept + self.answered + self.refused} of {many(f'{self.total:,}', 'line')} done{before}"]
        said += [f"{self.all_refused} refused"] * bool(self.all_refused) + [f"{self.failed} failed"] * bool(self.failed)
        if self.tokens:
            said += [many(f"{self.tokens:,}", "token"), f"{self.speed:.1f} tokens/s"]
        if self.drafted:
            said.append(f"{self.accepted:,} of {self.drafted:,} draft tokens accepted")
        return ", ".join(said)

    def went_on(self, asked: Asked, tokens: int, seconds: float, first: bool) -> None:
        """A text has gained tokens."""
        self.tokens += tokens

    def ended(self, asked: Asked, times: Times, completion: Completion | None, reason: str) -> None:
        """A text has ended."""
        if completion is not None:
            self.drafted += completion.stats.draft_tokens
            self.accepted += completion.stats.accepted_tokens


class Batch:
    """The lines that are left of a batch, and where their answers go."""

    def __init__(self, lines: Iterator[Line], output: Output, counts: Counts) -> None:
        self._lines, self._output, self.counts = lines, output, counts
        self._in_a_row = 0
        self.error: str | None = None  # why it was given up

    def run(self, model: Model, names: tuple[str, ...], at_once: int, tell: Callable[[], None]) -> None:
        """Answer all lines, so many texts in a pass. names: of the model. tell: called now and then.

        Raises OSError if an answer cannot be written, and the error with which the loop has failed. KeyboardInterrupt
        ends it between two rounds.
        """
        limits = Limits.of(model, at_once, _ANY, None)
        self.counts.began = time.perf_counter()
        worker = Worker(model, limits, self.counts)
        try:
            asyncio.run(self._all(Answering(worker, Asking(model, limits), names), _AHEAD * at_once, tell))
        except StoppingError:
            if worker.error is None:
                raise
        finally:
            worker.close()
        if worker.error is not None:
            raise worker.error

    async def _all(self, answering: Answering, most: int, tell: Callable[[], None]) -> None:
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                while len(running) < most and self.error is None and (line := next(self._lines, None)) is not None:
                    running.add(asyncio.create_task(self._one(answering, line)))
                if not running:
                    break
                done, running = await asyncio.wait(running, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
                self._output.sync()
                self.counts.seconds = time.perf_counter() - self.counts.began
                tell()
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _one(self, answering: Answering, line: Line) -> None:
        """Answer a line, with an error if it must be."""
        name, status = f"req_{secrets.token_hex(12)}", 200
        try:
            written = as_line(line, name, status, await self._answer(answering, line))
        except StoppingError:
            raise
        except Exception as error:
            served = as_served(error)
            if served.status >= 500 and not isinstance(error, ForetokenError):
                log.error("line %d has failed", line.number, exc_info=error)
            status = served.status
            written = as_line(line, name, status, body(served))
        self._output.write(written)
        self._count(line, status)

    async def _answer(self, answering: Answering, line: Line) -> dict[str, Any]:
        if line.error is not None:
            raise line.error
        kind = KINDS[line.url]
        fields = kind.fields(line.body)
        question = answering.read(kind, fields)
        self._note_unknown(ignored(fields))
        running = answering.begin(question, rounds=False)
        try:
            await running.whole()
        finally:
            running.close()
        if any(each.completion.finish_reason == "disconnected" for done in running.done for each in done):
            raise ServeError(503, "the host is gone, and the text is not whole")
        return question.form.whole(running.done)

    def _note_unknown(self, names: list[str]) -> None:
        room = _MOST_NAMES - len(self.counts.unknown)
        self.counts.unknown.update(names[: max(0, room)])

    def _count(self, line: Line, status: int) -> None:
        counts = self.counts
        if status < 400:
            counts.answered += 1
            self._in_a_row = 0
        elif status < 500:
            counts.refused += 1
        else:
            counts.failed += 1
            self._in_a_row += 1
            if self._in_a_row >= _FAULTS:
                self.error = f"{_FAULTS} lines in a row failed, the last of them line {line.number}"


def told_names(names: set[str]) -> str:
    """Names of fields that nobody knows, for people."""
    return ", ".join(cut(name, 40) for name in sorted(names))
