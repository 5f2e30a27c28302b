"""When a pass of a host waits for drafts that are about to come.

Two clients whose drafts never meet take turns: each waits for the pass of the other one, although a pass over both
would hardly take longer. Once their drafts have met, both answers leave together, and the next drafts meet, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

_LAST = 5  # times between an answer and a draft that are remembered
_LATE, _SOON = 0.25, 0.001  # of the usual time, and seconds: a draft that is later than that is not waited for


class Coming(NamedTuple):
    """A draft that is about to come: in how many seconds, and how many rows its check may have."""

    seconds: float
    rows: int


def pause(ready: Sequence[int], coming: Iterable[Coming], checking: Callable[[int], float]) -> float:
    """The seconds that a pass waits; 0: it begins now. ready: the rows of each draft that is there. checking: seconds
    of a pass by its rows.

    It waits for those of the coming drafts with which all of these clients, those of the ready ones included, together
    wait least for their answers.
    """
    rows, alone = sum(ready), checking(sum(ready))
    most, best = 0.0, 0.0
    late, more, without = 0, 0, len(ready) * alone
    for seconds, its in sorted(coming):
        late, more = late + 1, more + its
        apart = without + late * (max(alone, seconds) + checking(more))
        together = (len(ready) + late) * (seconds + checking(rows + more))
        if apart - together > most:
            most, best = apart - together, seconds
    return best


@dataclass
class Habit:
    """How soon a client sends its next draft. Times are seconds of any clock. answered: when the last answer left,
    until a draft comes. rows: of the last draft's check."""

    answered: float | None = None
    rows: int = 1
    _took: deque[float] = field(default_factory=lambda: deque(maxlen=_LAST))

    @property
    def usual(self) -> float | None:
        """The seconds from an answer to the next draft: the median of the last ones, so a long pause does not count."""
        return median(self._took) if self._took else None

    def replied(self, now: float, rows: int) -> None:
        """A draft came. One that was sent before the answer had left says nothing."""
        if self.answered is not None and now >= self.answered:
            self._took.append(now - self.answered)
        self.answered, self.rows = None, rows

    def coming(self, now: float) -> Coming | None:
        """The next draft; None if it is there, or late, or if nobody knows."""
        if self.answered is None or (usual := self.usual) is None:
            return None
        seconds = self.answered + (1 + _LATE) * usual + _SOON - now
        return Coming(seconds, self.rows) if seconds > 0 else None
