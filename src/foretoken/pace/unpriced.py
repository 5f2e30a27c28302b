"""What checks cost where nobody could measure it beforehand, because another engine makes them.

`PassCost` takes the form of its curve as given. A pace that always drafts never sees that passes without a draft are
cheap, and then believes that the whole machine is slow. `SeenCost` assumes no form once passes were timed, and
`PlainAtTimes` sends no draft in some rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from foretoken.pace.cost import ASSUMED
from foretoken.protocol.roles import Pace
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget

_EXACT = 8  # rows up to which each number has a time of its own; beyond, near ones share one
_LAST = 9  # passes of each number of rows that are remembered
_STALE = 512  # passes after which the times of a number of rows are forgotten, if none of them had it
_FIRST, _AGAIN = 2, 128  # rounds without a draft at first, and the rounds after which there is another
_PATIENCE = 8  # rounds without a draft that tell nothing, one after the other


class SeenCost:
    """Seconds of a pass by its rows, from the times of passes: the median of the last ones, on straight lines between
    numbers of rows. Until two numbers were seen, the usual form is assumed."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}  # by rows, near ones together
        self._passes = 0
        self._heard: dict[int, int] = {}  # the last pass with so many rows
        self._usual = np.zeros(0)  # the usual form, by rows from 0 up
        self._seen = np.zeros(0)  # what was seen, the same way; empty if it must be computed again

    @property
    def known(self) -> bool:
        """Whether a pass was heard of."""
        return bool(self._times)

    def heard(self, rows: int, seconds: float) -> None:
        """Note a pass."""
        near = _near(rows)
        self._passes += 1
        self._heard[near] = self._passes
        self._times.setdefault(near, deque(maxlen=_LAST)).append(seconds)
        for each in [each for each, last in self._heard.items() if self._passes - last > _STALE]:
            del self._heard[each], self._times[each]
        self._seen = np.zeros(0)

    def of(self, rows: int) -> float:
        """Seconds of a pass over so many rows; in units of the usual form if no pass was heard of."""
        return float(self.upto(rows)[rows])

    def upto(self, most: int) -> NDArray[np.float64]:
        """Seconds of passes over 0, 1, ... and at least `most` rows; in units of the usual form if no pass was heard
        of."""
        if len(self._seen) <= most:
            self._seen = self._line(2 * most + 1)
        return self._seen

    def _line(self, count: int) -> NDArray[np.float64]:
        if len(self._usual) < count:
            self._usual = np.array([ASSUMED.of(rows) for rows in range(count)])
        usual = self._usual[:count]
        if not self._times:
            return usual
        rows = sorted(self._times)
        # more rows never take less time: if they seem to, another program has slowed the passes of fewer
        seconds = np.minimum.accumulate([median_low(self._times[each]) for each in rows][::-1])[::-1]
        if len(rows) == 1:
            return np.asarray(usual * (seconds[0] / ASSUMED.of(rows[0])))
        line = np.asarray(np.interp(np.arange(count), rows, seconds))
        line[: rows[0]] = usual[: rows[0]] * (seconds[0] / ASSUMED.of(rows[0]))
        beyond = np.arange(count) - rows[-1]
        each = max((seconds[-1] - seconds[at]) / (rows[-1] - rows[at]) for at in (0, -2))
        line[beyond > 0] = seconds[-1] + each * beyond[beyond > 0]
        return line


class PlainAtTimes:
    """Lets another pace choose, and sends no draft in some rounds: the first two, and later one of 128. They are
    counted apart for 1 text in a pass, 2, up to 4, up to 8, and so on. If prompts are read in every pass, no round
    tells what a plain one costs. Then the other pace chooses after 8 rounds, for 128 rounds."""

    def __init__(self, near: Pace) -> None:
        self._near = near
        self._rounds = 0
        self._plain: dict[int, deque[int]] = {}  # by `_kind` of texts: when the last rounds without a draft were
        self._vain: dict[int, int] = {}  # by kind: rounds without a draft that told nothing, one after the other
        self._gave_up: dict[int, int] = {}  # by kind: when there had been too many of them

    def choose(self, sequences: Sequence[int], left: Mapping[int, int]) -> Mapping[int, Sequence[Budget]]:
        """The budgets of each sequence that may draft now."""
        chosen = self._near.choose(sequences, left)
        if not sequences:
            return chosen
        kind = _kind(len(sequences))
        before = self._plain.get(kind, deque())
        if len(before) == _FIRST and self._rounds - before[-1] < _AGAIN:
            return chosen
        if kind in self._gave_up and self._rounds - self._gave_up[kind] < _AGAIN:
            return chosen
        self._vain[kind] = self._vain.get(kind, 0) + 1
        if self._vain[kind] == _PATIENCE:
            self._vain[kind], self._gave_up[kind] = 0, self._rounds
        return {sequence: (Budget(0, 0),) * len(budgets) for sequence, budgets in chosen.items()}

    def heard(self, record: RoundRecord) -> None:
        """Note what a round was like."""
        self._rounds += 1
        if record.drafted and not record.read and not any(record.drafted.values()):
            kind = _kind(len(record.drafted))
            self._vain[kind] = 0
            self._plain.setdefault(kind, deque(maxlen=_FIRST)).append(self._rounds)
        self._near.heard(record)


def _kind(texts: int) -> int:
    return (texts - 1).bit_length()


def _near(rows: int) -> int:
    """The number of rows under which the time of a pass is noted."""
    if rows <= _EXACT:
        return rows
    step = 1 << (rows.bit_length() - 3)
    return rows // step * step + step // 2
