"""What passes cost on this machine at the moment, learned from the passes so far."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foretoken.prices.price import Price

# of a pass, in passes of one row, before anything is known: rows cost little until the arithmetic takes longer than the
# reading of the weights
ASSUMED = Price({1: 1.0, 8: 1.06, 16: 1.15, 24: 1.6, 32: 2.1, 64: 4.2})
ASSUMED_OF_COPIES = Price({1: 1.0, 4: 1.05, 8: 1.35, 16: 2.2, 32: 4.2, 64: 8.2})  # the same for 4-bit weights
_LAST, _SURE = 25, 5  # passes of one number of rows that are remembered, and how many of them outweigh the shape
_STALE = 256  # passes after which what was learned of one number of rows is forgotten, if none of them had it
# Passes that say how fast the machine is at the moment. They are fewer than what bends the curve: when the machine gets
# slower, the factor is to follow, and not the form of the curve.
_MOMENT = 7
_BELIEVED = 8.0  # units by which a ratio is 1 before anything was heard
_LEFT = 0.5 ** (1 / 128)  # of what a ratio is made of, with each round
_SLOWLY = 0.05  # how far the unit follows each pass


class Moment:
    """How fast the machine is at the moment: the factor by which passes of all decoders take longer than usual.

    Memory that is shared with other programs gets slower and faster by a factor of two within seconds, for all passes
    alike. So a pass of one decoder says what those of the others cost now.
    """

    def __init__(self) -> None:
        self.factor = 1.0  # the median of the last passes
        self._last: deque[float] = deque(maxlen=_MOMENT)

    def heard(self, factor: float) -> None:
        """Note how many times as long as usual a pass took."""
        self._last.append(factor)
        self.factor = median(self._last)


class LearnedCost(Protocol):
    """Seconds of a pass by its rows, learned from passes. More rows never take less."""

    @property
    def known(self) -> bool:
        """Whether a pass was heard of. Before, there are no seconds, but the units of a form that is assumed."""

    def heard(self, rows: int, seconds: float) -> None:
        """Note a pass."""

    def of(self, rows: int) -> float:
        """Seconds of a pass over so many rows."""

    def upto(self, most: int) -> NDArray[np.float64]:
        """Seconds of passes over 0, 1, ... and at least `most` rows."""


class PassCost:
    """Seconds of a pass by its rows: a curve, times the machine's speed at the moment.

    shape: the curve, measured or assumed. Its unit is learned, and slowly its form. It never falls: a pass over fewer
    rows would otherwise be avoided, and what was wrong about it never found out. moment: shared by all decoders.
    """

    def __init__(self, shape: Price, moment: Moment) -> None:
        self._shape = shape
        self._moment = moment
        self._unit: float | None = None  # usual seconds in a unit of the shape
        self._bends: dict[int, deque[float]] = {}  # by rows: measured over expected
        self._passes = 0
        self._heard: dict[int, int] = {}  # the last pass with so many rows
        self._shaped = np.zeros(0)  # the shape, by rows from 0 up
        self._bent = np.zeros(0)  # the same, bent to what was heard; empty if it must be computed again

    @property
    def known(self) -> bool:
        """Whether a pass was heard of."""
        return self._unit is not None

    def heard(self, rows: int, seconds: float) -> None:
        """Note a pass."""
        expected = float(self._curve(rows)[rows])
        if self._unit is None:
            self._unit = seconds / expected / self._moment.factor
            return
        self._moment.heard(seconds / (self._unit * expected))
        usual = seconds / self._moment.factor
        self._passes += 1
        self._heard[rows] = self._passes
        bends = self._bends.setdefault(rows, deque((1.0,) * (_SURE - 1), maxlen=_LAST))
        bends.append(usual / (self._unit * float(self._shaped[rows])))
        for each in [each for each, last in self._heard.items() if self._passes - last > _STALE]:
            del self._heard[each], self._bends[each]
        self._bent = np.zeros(0)
        self._unit *= (usual / (self._unit * expected)) ** _SLOWLY

    def of(self, rows: int) -> float:
        """Seconds of a pass over so many rows; in units of the shape if no pass was heard of."""
        return float(self.upto(rows)[rows])

    def upto(self, most: int) -> NDArray[np.float64]:
        """Seconds of passes over 0, 1, ... and at least `most` rows."""
        unit = 1.0 if self._unit is None else self._unit
        return self._curve(most) * (unit * self._moment.factor)

    def _curve(self, most: int) -> NDArray[np.float64]:
        """The shape, bent as it is at the nearest number of rows that was heard of."""
        if len(self._bent) > most:
            return self._bent
        if len(self._shaped) <= most:
            self._shaped = np.array([self._shape.of(rows) for rows in range(2 * most + 1)])
        self._bent = self._shaped
        if self._bends:
            rows = np.array(sorted(self._bends))
            bends = np.array([median(self._bends[each]) for each in rows])
            nearest = np.abs(rows[:, None] - np.arange(len(self._shaped))).argmin(axis=0)
            self._bent = np.minimum.accumulate((self._shaped * bends[nearest])[::-1])[::-1]
        return self._bent


class Correction:
    """The factor between the seconds that something takes and those that were predicted: a median of the last ones.

    It begins with `right` predictions that were right, so that one that was wrong does not count alone.
    """

    def __init__(self, right: int = 2) -> None:
        self._last = deque((1.0,) * right, maxlen=_MOMENT)

    def heard(self, predicted: float, seconds: float) -> None:
        """Note a prediction and what it came to."""
        if predicted > 0:
            self._last.append(seconds / predicted)

    def of(self, predicted: float) -> float:
        """The prediction, corrected."""
        return predicted * median(self._last)


class Recently:
    """The median of the last values; 0 before any came."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_MOMENT)

    def heard(self, value: float) -> None:
        """Note a value."""
        self._last.append(value)

    @property
    def value(self) -> float:
        """The median."""
        return median(self._last) if self._last else 0.0


class Ratio:
    """What came, for each unit that was expected. What was heard fades with every round, heard of or not, until the
    ratio is 1 again: the text may have changed."""

    def __init__(self) -> None:
        self._expected = self._came = 0.0
        self._round = 0  # to which both have faded

    def heard(self, expected: float, came: float, now: int) -> None:
        """Note what was expected of round `now`, and what came."""
        self._fade(now)
        self._expected += expected
        self._came += came

    def value(self, now: int) -> float:
        """The ratio at a round."""
        self._fade(now)
        return (_BELIEVED + self._came) / (_BELIEVED + self._expected)

    def _fade(self, now: int) -> None:
        left = _LEFT ** (now - self._round)
        self._expected, self._came, self._round = left * self._expected, left * self._came, now
