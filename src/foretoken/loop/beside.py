"""How many rows of prompts a pass may read while other texts wait for their next token."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import NamedTuple

from foretoken.protocol.telemetry import RoundRecord

SLOWER = 2.5  # times as long as usual is a round that reads a part of a prompt as well
_LAST, _SURE = 15, 3  # rounds that are remembered, and how many of them tell what is usual


class Beside:
    """The rows that make a round `SLOWER` times as long as one that only decodes.

    It is learned from the rounds so far: what usual rounds take, and what a row adds. Memory and cores that are shared
    with other programs get faster and slower, so only the last rounds count. The rounds that read may also check longer
    drafts than usual: what these add is not put down to the prompt. And a row never adds more than the rows of usual
    rounds take on average, so that no prompt waits for long, whatever was measured.

    first: the rows before anything is known. most: the most rows.
    """

    def __init__(self, first: int, most: int) -> None:
        self._first, self._most = min(first, most), most
        self._usual: deque[_Round] = deque(maxlen=_LAST)
        self._each: deque[float] = deque(maxlen=_LAST)  # seconds that a row added to a check

    @property
    def rows(self) -> int:
        """How many rows the next pass may read."""
        if len(self._usual) < _SURE or not self._each:
            return self._first
        rows, checking, drafting = self._its_usual
        added = (SLOWER - 1) * (checking + drafting)
        each = min(median(self._each), checking / rows)
        return max(1, min(self._most, int(added / max(each, 1e-9))))

    def heard(self, record: RoundRecord) -> None:
        """Learn from a round."""
        decoding = record.new_tokens.keys() - record.read.keys()
        if not decoding:
            return
        own, read = len(decoding) + sum(record.drafted.values()), sum(record.read.values())
        if not read:
            self._usual.append(_Round(own, record.check_seconds, record.propose_seconds))
        elif len(self._usual) >= _SURE:
            rows, checking, _ = self._its_usual
            more = read + own - rows
            if more > 0:
                self._each.append(max(0.0, record.check_seconds - checking) / more)

    @property
    def _its_usual(self) -> _Round:
        return _Round(*(median(values) for values in zip(*self._usual, strict=True)))


class _Round(NamedTuple):
    """What a round that only decodes checks, and its seconds."""

    rows: float
    checking: float
    drafting: float
