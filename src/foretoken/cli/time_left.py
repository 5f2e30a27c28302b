"""How long something will still take, from how long its parts took so far."""

from __future__ import annotations

from time import perf_counter

from foretoken.cli.common import say


class TimeLeft:
    """Told of every part before it begins. Parts of one name are taken to be alike; another name begins anew."""

    def __init__(self) -> None:
        self._began: tuple[str, float, int] | None = None

    def __call__(self, name: str, done: int, total: int) -> str:
        """`, about 3 minutes left`; nothing while nothing is known of how long a part takes."""
        now = perf_counter()
        if self._began is None or self._began[0] != name:
            self._began = name, now, done
        _, began, before = self._began
        if not before < done < total:
            return ""
        seconds = (now - began) / (done - before) * (total - done)
        count, unit = (round(seconds), "second") if seconds < 100 else (round(seconds / 60), "minute")
        return f", about {count} {unit}{'s' * (count != 1)} left"


class Lines:
    """What comes next, a line each on standard error. Parts that are alike have one name, up to the last comma: they
    are counted, with the time that they still take."""

    def __init__(self) -> None:
        self._left = TimeLeft()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say it."""
        name = what.rpartition(", ")[0]
        left = self._left(name or what, done, total)
        say(f"{what} ({done} of {total}{left})" if name and total > 1 else what)
