"""So many minutes, and what is left of them."""

from __future__ import annotations

from time import perf_counter


class OutOfTimeError(Exception):
    """What comes next would not end in time. Never leaves `foretoken.bench.tuning`."""


class Budget:
    """Seconds from now on, of which the last `reserve` are kept for what has to come at the end."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.reserve = 0.0
        self._began = perf_counter()

    @property
    def used(self) -> float:
        """Seconds since it began."""
        return perf_counter() - self._began

    def has(self, seconds: float) -> bool:
        """Whether something that takes so long would be done by the end."""
        return self.used + seconds <= self.seconds

    def expect(self, seconds: float, *, share: float = 1.0) -> None:
        """Refuse what would not be done within a share of what is not kept. Raises OutOfTimeError."""
        if self.used + seconds > share * (self.seconds - self.reserve):
            raise OutOfTimeError
