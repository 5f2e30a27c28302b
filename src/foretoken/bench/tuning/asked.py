"""What is to be tuned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from foretoken.drafters.table import FRACTAL
from foretoken.errors import SettingError, nearest, quoted
from foretoken.formats import FORMATS
from foretoken.settings.load import MOST_DRAFT_TOKENS, LoadSettings

FORMATS_TRIED, SLOTS_TRIED, WINDOWS_TRIED = ("mxfp4", "int8"), ("lookup", "recycle"), (4, 1, 2, 8)


@dataclass(frozen=True)
class Asked:
    """What is to be tuned: the search begins with the first of windows (tokens), formats and slots. prompts: a suite's
    name or a file; of `num_prompts`, every second one is measured on, the others choose. Raises SettingError."""

    model: str
    formats: Sequence[str] = FORMATS_TRIED
    slots: Sequence[str] = SLOTS_TRIED
    windows: Sequence[int] = WINDOWS_TRIED
    prompts: str = "heldout-20"
    num_prompts: int = 8
    max_new_tokens: int = 48
    minutes: float = 5.0
    repeats: int = 3
    loading: LoadSettings = field(default_factory=LoadSettings)

    def __post_init__(self) -> None:
        slots = FRACTAL.options["slots"]
        assert isinstance(slots, tuple)
        known: dict[str, Sequence[str]] = {"format": tuple(FORMATS), "slots": slots}
        for name, given in (("format", self.formats), ("slots", self.slots), ("window", self.windows)):
            if not given:
                raise SettingError(f"no {name} was given; give at least one")
            twice = next((value for value in given if list(given).count(value) > 1), None)
            if twice is not None:
                raise SettingError(f"{name} {twice!r} was given twice; give it once")
            for value in given:
                if name in known and value not in known[name]:
                    raise SettingError(f"{name} is {quoted(value)}{nearest(str(value), known[name])}")
        for window in self.windows:
            _expect_count("window", window, 1, MOST_DRAFT_TOKENS - 2)
        # of one token there is no speed
        for name, least in (("num_prompts", 1), ("max_new_tokens", 2), ("repeats", 1)):
            _expect_count(name, getattr(self, name), least)
        if not 0 < self.minutes < 1e6:
            raise SettingError(f"minutes is {self.minutes!r}, expected a number above 0")
        if not self.loading.cache:
            raise SettingError("cache is False, and what is predicted holds with a cache; leave cache as it is")

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record; the prompts are said apart."""
        names = ("formats", "slots", "windows", "num_prompts", "max_new_tokens", "minutes", "repeats")
        return {name: getattr(self, name) for name in names}


def _expect_count(name: str, value: object, least: int, most: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        expected = f"{least} or more" if most is None else f"{least} to {most}"
        raise SettingError(f"{name} is {value!r}, expected a whole number, {expected}")
