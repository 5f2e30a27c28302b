"""How many rows of prompts a pass may read while other texts wait for their next token."""

from __future__ import annotations

from collections import deque
from statistics import median

from foretoken.protocol.telemetry import RoundRecord

SLOWER = 2.5  # times as long as usual is a round that reads a part of a prompt as well
_LAST, _SURE = 15, 3  # rounds that are remembered, and how many of them tell what is usual


class Beside:
    """The rows that make a round `SLOWER` times as long as one that only decodes.

    It is learned from the rounds so far: what usual rounds take, and what a row of a prompt adds. Memory and cores that
    are shared with other programs get faster and slower, so only the last rounds count.

    first: the rows before anything is known. most: the most rows.
    """

    def __init__(self, first: int, most: int) -> None:
        self._first, self._most = min(first, most), most
        self._usual: deque[float] = deque(maxlen=_LAST)
        self._each: deque[float] = deque(maxlen=_LAST)

    @property
    def rows(self) -> int:
        """How many rows the next pass may read."""
        if len(self._usual) < _SURE or not self._each:
            return self._first
        added = (SLOWER - 1) * median(self._usual)
        return max(1, min(self._most, int(added / max(median(self._each), 1e-9))))

    def heard(self, record: RoundRecord) -> None:
        """Learn from a round."""
        decoding = record.new_tokens.keys() - record.read.keys()
        seconds, rows = record.propose_seconds + record.check_seconds, sum(record.read.values())
        if not decoding:
            return
        if not rows:
            self._usual.append(seconds)
        elif len(self._usual) >= _SURE:
            self._each.append(max(0.0, seconds - median(self._usual)) / rows)
