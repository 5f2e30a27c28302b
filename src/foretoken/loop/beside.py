"""How many rows of prompts a pass may read while other texts wait for their next token."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import NamedTuple

from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord

SLOWER = 2.25  # times as long as usual is a round that reads a part of a prompt as well
_FIRST = 24  # rows that are read before anything is known
_LAST, _SURE = 15, 3  # rounds that are remembered, and how many of them tell what is usual
_LEAST = 4  # rows that are read in any case: a stall while all of this is learned must not starve a prompt
_NEAR = 5  # rounds that read, behind one that only decodes, from which is learned


class Beside:
    """The rows of prompts that make a round `SLOWER` times as long as one that only decodes.

    What a row adds is learned as a share of what usual rounds take. Memory and cores that are shared with other
    programs make both faster and slower alike, so the share stays. It is learned only from rounds that read soon after
    usual ones: later, the machine may be another, and the difference would be put down to the prompt. The rounds that
    read may also check longer drafts than usual; what these add is not put down to the prompt either. And a row is
    never taken to add more than the rows of usual rounds take on average.

    most: the most rows. price: of passes by their rows, if it was measured: it tells how many rows are read at first.
    """

    def __init__(self, most: int, price: Price | None = None) -> None:
        first = _FIRST if price is None else _rows_within(price)
        self._first, self._most = min(first, most), most
        self._usual: deque[_Round] = deque(maxlen=_LAST)
        self._shares: deque[float] = deque(maxlen=_LAST)  # of a usual check's seconds, that a row has added
        self._since = 0  # rounds that read, since one has only decoded
        self._read = 0  # rows of the last one of these

    @property
    def rows(self) -> int:
        """How many rows the next pass may read."""
        if len(self._usual) < _SURE or not self._shares:
            return self._first
        usual = self._its_usual
        share = min(median(self._shares), 1 / usual.rows)
        # beyond what was tried, rows may cost more
        most = min(self._most, 2 * max(self._first, self._read))
        rows = (SLOWER - 1) * (1 + usual.drafting / usual.checking) / max(share, 1e-9)
        return max(min(_LEAST, self._most), int(min(most, rows)))

    def heard(self, record: RoundRecord) -> None:
        """Learn from a round."""
        decoding = record.new_tokens.keys() - record.read.keys()
        if not decoding:
            return
        own, read = len(decoding) + sum(record.drafted.values()), sum(record.read.values())
        if not read:
            self._usual.append(_Round(own, max(record.check_seconds, 1e-9), record.propose_seconds))
            self._since = 0
            return
        self._since, self._read = self._since + 1, read
        if len(self._usual) < _SURE or self._since > _NEAR:
            return
        usual = self._its_usual
        more = read + own - usual.rows
        if 2 * more > read:  # else the drafts have become much shorter
            self._shares.append(max(0.0, record.check_seconds / usual.checking - 1) / more)

    @property
    def _its_usual(self) -> _Round:
        return _Round(*(median(values) for values in zip(*self._usual, strict=True)))


def _rows_within(price: Price) -> int:
    """The rows of a pass that takes `SLOWER` times as long as one of a single row, among those that were measured."""
    measured = range(1, max(price.seconds) + 1)
    return max(_LEAST, *(rows for rows in measured if price.of(rows) <= SLOWER * price.of(1)))


class _Round(NamedTuple):
    """What a round that only decodes checks, and its seconds."""

    rows: float
    checking: float
    drafting: float
