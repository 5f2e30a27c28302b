"""A pace for checks that wait for a disk: a tree has as many nodes as the check can compute while it waits anyway."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from foretoken.protocol.roles import Pace
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget

_FIRST, _LEAST = 160, 48  # nodes of all trees of a round: before anything is known, and at any time
_BUSY = 0.6  # the share of the reading that may be arithmetic: with more, one begins to wait for the other
_FEW = 24  # rows of a pass that tell little about what a row costs
_LAST, _MEMORY = 3, 64  # passes of which the number of rows is remembered, and the time


class WaitingPace:
    """Another pace, but for the nodes of the first level's trees.

    near: the other one. waited: for how many seconds passes of the target have waited for its weights so far. A check
    takes as long as the reading of the weights, and computes meanwhile. So more rows cost little until the arithmetic
    takes most of that time. The shortest pass says how long the reading takes.

    Passes over prompts say best what a row costs: nothing is drafted beside them. Until there was one, checks say it.
    What is drafted beside a check makes a row seem dearer than it is, so the check with the cheapest rows counts.
    """

    def __init__(self, near: Pace, waited: Callable[[], float]) -> None:
        self._near = near
        self._waited = waited
        self._before = waited()
        self._possible: deque[float] = deque(maxlen=_LAST)
        self._by_checks: deque[float] = deque(maxlen=_MEMORY)
        self._shortest: deque[float] = deque(maxlen=_MEMORY)

    @property
    def nodes(self) -> int:
        """How many nodes all trees of the next round may have together."""
        if self._possible:
            return max(_LEAST, round(median(self._possible)))
        return max(_LEAST, round(max(self._by_checks))) if self._by_checks else _FIRST

    def choose(self, sequences: Sequence[int], left: Mapping[int, int]) -> Mapping[int, Sequence[Budget]]:
        """The budgets of each sequence that may draft now."""
        each = max(1, self.nodes // max(1, len(sequences)))
        return {
            sequence: [replace(first, rows=min(first.rows, each)), *below]
            for sequence, (first, *below) in self._near.choose(sequences, left).items()
        }

    def heard(self, record: RoundRecord) -> None:
        """Learn how many rows a check has time for."""
        self._near.heard(record)
        before, self._before = self._before, self._waited()
        self._shortest.append(record.check_seconds)
        computed = max(record.check_seconds - (self._before - before), 1e-9)
        times = _BUSY * min(self._shortest) / computed  # the pass's rows, so many times, are computed while it reads
        read, checked = sum(record.read.values()), sum(record.drafted.values()) + len(record.drafted)
        if read >= _FEW:
            self._possible.append(read * times)
        elif checked >= _FEW:
            self._by_checks.append(checked * times)
