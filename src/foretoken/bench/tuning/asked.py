"""What is to be tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foretoken.bench.fields import expect_count
from foretoken.drafters.table import FRACTAL
from foretoken.errors import SettingError, nearest, quoted
from foretoken.formats import FORMATS
from foretoken.settings.load import MOST_DRAFT_TOKENS, LoadSettings


@dataclass(frozen=True)
class Asked:
    """What is to be tuned: the search begins with the first of windows (tokens), formats and slots. prompts: a suite's
    name or a file; of `num_prompts`, every second one is measured on, the others choose. Raises SettingError."""

    model: str
    formats: Sequence[str] = ("mxfp4", "int8")
    slots: Sequence[str] = ("lookup", "recycle")
    windows: Sequence[int] = (4, 1, 2, 8)
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
        for name, given in self.choices.items():
            if not given:
                raise SettingError(f"no {name} was given; give at least one")
            twice = next((value for value in given if list(given).count(value) > 1), None)
            if twice is not None:
                raise SettingError(f"{name} {twice!r} was given twice; give it once")
            for value in given:
                if name in known and value not in known[name]:
                    raise SettingError(f"{name} is {quoted(value)}{nearest(str(value), known[name])}")
        for window in self.windows:
            expect_count("window", window, 1, MOST_DRAFT_TOKENS - 2)
        for name, least in (("num_prompts", 1), ("max_new_tokens", 2), ("repeats", 1)):  # of one token is no speed
            expect_count(name, getattr(self, name), least)
        if not 0 < self.minutes < 1e6:
            raise SettingError(f"minutes is {self.minutes!r}, expected a number above 0")
        if not self.loading.cache:
            raise SettingError("cache is False, and what is predicted holds with a cache; leave cache as it is")

    @property
    def choices(self) -> Mapping[str, Sequence[Any]]:
        """What a draft may be made of besides its layers, by the name of a `Placement`'s field."""
        return {"window": self.windows, "format": self.formats, "slots": self.slots}

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record; the prompts are said apart."""
        names = ("formats", "slots", "windows", "num_prompts", "max_new_tokens", "minutes", "repeats")
        return {name: getattr(self, name) for name in names}
