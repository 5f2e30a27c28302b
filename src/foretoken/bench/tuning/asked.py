"""What is to be tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from foretoken.bench.fields import expect_count, expect_once
from foretoken.drafters.table import FRACTAL
from foretoken.errors import SettingError
from foretoken.formats import FORMATS
from foretoken.settings.load import MOST_DRAFT_TOKENS, LoadSettings
from foretoken.settings.values import one_of

_KNOWN = {"format": tuple(FORMATS), "slots": cast(tuple[str, ...], FRACTAL.options["slots"])}


@dataclass(frozen=True)
class Asked:
    """What is to be tuned. The search begins with the first of windows (tokens), formats and slots. prompts: a suite's
    name or a file. num_prompts: every second one is measured on, the others choose. Raises SettingError."""

    model: str
    formats: Sequence[str] = ("mxfp4", "int8")
    slots: Sequence[str] = ("lookup", "recycle")
    windows: Sequence[int] = (4, 1, 2, 8)
    prompts: str = "auto"
    num_prompts: int = 8
    max_new_tokens: int = 48
    minutes: float = 5.0
    repeats: int = 3
    loading: LoadSettings = field(default_factory=LoadSettings)

    def __post_init__(self) -> None:
        for name, given in self.choices.items():
            if not given:
                raise SettingError(f"no {name} was given; give at least one")
            expect_once(name, given)
            for value in given if name in _KNOWN else ():
                one_of(name, value, _KNOWN[name])
        for window in self.windows:
            expect_count("window", window, 1, MOST_DRAFT_TOKENS - 2)
        for name, least in (("num_prompts", 1), ("max_new_tokens", 2), ("repeats", 1)):  # one token has no speed
            expect_count(name, getattr(self, name), least)
        if not 0 < self.minutes < 1e6:
            raise SettingError(f"minutes is {self.minutes!r}, expected a number above 0")
        if not self.loading.cache:
            raise SettingError("cache is False, and what is predicted holds with a cache; leave cache as it is")

    @property
    def choices(self) -> Mapping[str, Sequence[Any]]:
        """A draft's options besides its layers, by the name of a `Placement`'s field."""
        return {"window": self.windows, "format": self.formats, "slots": self.slots}

    def to_json(self) -> dict[str, Any]:
        """The settings as a record has them; model, prompts and loading are elsewhere in the record."""
        return {name: value for name, value in vars(self).items() if name not in ("model", "prompts", "loading")}
