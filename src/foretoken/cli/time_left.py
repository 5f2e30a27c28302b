"""How long something will still take, from how long its parts took so far."""

from __future__ import annotations

from time import perf_counter


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
