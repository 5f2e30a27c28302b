"""What was written as JSON from a dataclass, looked at before it is used again."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeGuard

from foretoken.errors import InputError, quoted

# what a field's type is in JSON, and what it is called
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "list": ((list,), "a list"),
    "dict[str, Any]": ((dict,), "an object"),
    "tuple[float, float]": ((list,), "a list"),
    "tuple[int, ...]": ((list,), "a list"),
    "tuple[dict[str, Any], ...]": ((list,), "a list"),
    "tuple[tuple[int, ...], ...]": ((list,), "a list"),
    "dict[str, dict[str, float]]": ((dict,), "an object"),
    "Mapping[str, float]": ((dict,), "an object"),
}


def expect_fields(found: Any, kind: type, where: str) -> None:
    """Refuse what does not have a dataclass' fields, with their types. Raises InputError."""
    if not isinstance(found, dict):
        raise InputError(f"{where} is {quoted(found, 40)}, expected an object; measure again")
    expect(found, {field.name: str(field.type) for field in fields(kind)}, where)


def expect(found: Mapping[str, Any], expected: Mapping[str, str], where: str) -> None:
    """Refuse what lacks a field, or has one of another type. expected: types by name, as a dataclass writes them."""
    for name, kind in expected.items():
        may_be_null = kind.endswith(" | None")
        types, called = _TYPES[kind.removesuffix(" | None")]
        value = found.get(name)
        if value is None and may_be_null and name in found:
            continue
        right = isinstance(value, types) and isinstance(value, bool) == (types == (bool,))
        if not right or (int in types and not is_number(value)):
            came = quoted(value, 40) if name in found else "absent"
            raise InputError(f"{where}: {name} is {came}, expected {called}{' or null' * may_be_null}; measure again")


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first field in which what was asked once is not what is asked now: `threads was 1, and is 2`; of objects, the
    field in them."""
    name = next(name for name in {**now, **was} if was.get(name) != now.get(name))
    one, other = was.get(name), now.get(name)
    if isinstance(one, dict) and isinstance(other, dict):
        return difference(one, other)
    return f"{name} was {json.dumps(one)[:120]}, and is {json.dumps(other)[:120]}"
