"""How a draft is written: levels separated by commas, nearest to the target first; options follow colons."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretoken.errors import DraftSpecError, nearest, quoted

# The kind of an option's value. int and float: a number. A tuple: one of its words. bool: an option without a value.
# list: numbers from 0 up, separated by +. Path: a file or folder that is there.
OptionKind = type | tuple[str, ...]


@dataclass(frozen=True)
class DraftLevel:
    """One level of a draft: `NAME` or `NAME:option=value:...`. An option without a value is stored as ""."""

    name: str
    options: Mapping[str, str]

    def values(self, known: Mapping[str, OptionKind]) -> dict[str, Any]:
        """The options, converted to their kinds. Raises DraftSpecError for an unknown option or a bad value."""
        values: dict[str, Any] = {}
        for key, text in self.options.items():
            if not known:
                raise DraftSpecError(f"draft {quoted(self.name)} takes no options; leave {quoted(key, 30)} out")
            if key not in known:
                raise DraftSpecError(f"draft {quoted(self.name)} has no option {quoted(key, 30)}{nearest(key, known)}")
            values[key] = self._value(key, text, known[key])
        return values

    def _value(self, key: str, text: str, kind: OptionKind) -> int | float | str | tuple[int, ...]:
        if kind is bool:
            if text:
                raise DraftSpecError(f"draft {quoted(self.name)}: {key} takes no value; leave {quoted(text, 30)} out")
            return True
        if not text:
            raise DraftSpecError(f"draft {quoted(self.name)}: {quoted(key, 30)} has no value; expected {key}=...")
        if kind is Path:
            if not Path(text).expanduser().exists():
                raise DraftSpecError(
                    f"draft {quoted(self.name)}: {key} is {quoted(text)}, expected a file or folder that is there (its "
                    "name may have no comma and no colon)"
                )
            return str(Path(text).expanduser().absolute())
        if isinstance(kind, tuple):
            if text not in kind:
                raise DraftSpecError(f"draft {quoted(self.name)}: {key} is {quoted(text, 30)}{nearest(text, kind)}")
            return text
        if kind is list:
            if not re.fullmatch(r"[0-9]{1,4}(\+[0-9]{1,4})*", text):
                raise DraftSpecError(
                    f"draft {quoted(self.name)}: {key} is {quoted(text, 30)}, expected whole numbers with + between "
                    "them, such as 2+4+6"
                )
            return tuple(map(int, text.split("+")))
        if kind is int:
            if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
                raise DraftSpecError(
                    f"draft {quoted(self.name)}: {key} is {quoted(text, 30)}, expected a whole number, 1 to 9999"
                )
            return int(text)
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", text) or not float(text) > 0:
            raise DraftSpecError(
                f"draft {quoted(self.name)}: {key} is {quoted(text, 30)}, expected a number above 0, such as 0.2"
            )
        return float(text)


def parse_draft(spec: str) -> tuple[DraftLevel, ...]:
    """The levels of a draft, nearest to the target first. Commas separate levels, colons separate options.

    Raises DraftSpecError for text that does not have this form. Names and options are not looked up yet.
    """
    if not spec.strip():
        raise DraftSpecError(
            f"draft is {quoted(spec, 30)}, expected a name, such as 'lookup', or 'none' for plain decoding"
        )
    levels = []
    for part in spec.split(","):
        called = quoted(part.strip())
        name, *pairs = part.strip().split(":")
        options: dict[str, str] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not key or (equals and not value):
                raise DraftSpecError(f"draft {called}: {quoted(pair, 30)} is not an option; expected name=value")
            if key in options:
                raise DraftSpecError(f"draft {called} gives {quoted(key, 30)} twice; give it once")
            options[key] = value
        if not name:
            raise DraftSpecError(f"draft {quoted(spec)} has an empty level; expected names with commas between them")
        levels.append(DraftLevel(name, options))
    return tuple(levels)
