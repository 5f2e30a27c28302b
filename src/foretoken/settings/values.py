"""What settings have in common: values are checked, and a refusal says what was expected."""

from __future__ import annotations

import numbers
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from foretoken.errors import SettingError, cut, nearest, quoted


def count(name: str, value: object, most: int | None = None, why: str = "") -> None:
    """Raise SettingError if a value is not a whole number of at least 1, or is above `most`. why: added to that."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SettingError(f"{name} is {quoted(value)}, expected a whole number, 1 or more")
    if most is not None and value > most:
        raise SettingError(f"{name} is {quoted(value)}, expected at most {most}{why}")


def whole(name: str, value: object, least: int, most: int) -> None:
    """Raise SettingError if a value is not a whole number from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SettingError(f"{name} is {quoted(value)}, expected a whole number, {least} to {most}")


def place(name: str, value: str) -> tuple[str, int]:
    """The host and the port of HOST:PORT. Raises SettingError for anything else."""
    found = re.fullmatch(r"(.+):([0-9]{1,5})", value, re.ASCII)
    if found is None or int(found[2]) > 65535:
        raise SettingError(f"{name} is {quoted(value)}, expected HOST:PORT, such as 127.0.0.1:8443")
    return found[1].strip("[]"), int(found[2])


def number(name: str, value: object, least: float, most: float, also: str = "", *, open_below: bool = False) -> None:
    """Raise SettingError if a value is not a number from `least` to `most`. also: what else the caller accepts, for the
    message. open_below: `least` itself is refused."""
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not least <= value <= most
        or (open_below and value == least)
    ):
        span = f"above {least:g} to {most:g}" if open_below else f"{least:g} to {most:g}"
        raise SettingError(f"{name} is {quoted(value)}, expected {also}a number, {span}")


def plain(value: Any) -> Any:
    """A number as Python's own int or float, for records and comparisons. Any other value is returned unchanged."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    try:
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    except OverflowError:  # a fraction too large for a float: the checks refuse it later
        return value


def is_text(value: object) -> bool:
    """Whether a value is text that can be encoded. Text with half a character (a lone surrogate) cannot."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """Raise SettingError if a value is not one of the known words."""
    if not isinstance(value, str) or value not in known:
        called = value if isinstance(value, str) else quoted(value)
        raise SettingError(f"{name} is {quoted(value)}{nearest(called, known)}")


@dataclass(frozen=True)
class Settings:
    """The base of all settings."""

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Settings from keywords. Raises SettingError for an unknown keyword, and names the nearest known one."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise SettingError(f"there is no setting {quoted(name)}{nearest(name, known)}")
        return cls(**given)

    @classmethod
    def chosen(cls, ready: Self | None, given: Mapping[str, Any]) -> Self:
        """Settings ready-made, or from keywords. Raises SettingError if both are given."""
        if ready is None:
            return cls.of(given)
        if not isinstance(ready, cls):
            raise SettingError(f"settings came as {quoted(ready)}, expected them by name, or a {cls.__name__}")
        if given:
            raise SettingError(f"settings came both ready-made and by name ({cut(', '.join(given))}); give one of them")
        return ready
