"""Checks dataclasses that are read back from JSON, and numbers that a caller gives."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeGuard

from foretoken.errors import InputError, SettingError, quoted


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and is_number(value)


def _list_of(is_one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_one, value))


def _dict_of(is_one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(is_one, value.values()))


# by a field's type: the check of its JSON value, and its name in messages
_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "str": (_is(str), "text"),
    "int": (_is_whole, "a whole number"),
    "float": (is_number, "a number"),
    "bool": (_is(bool), "true or false"),
    "list": (_is(list), "a list"),
    "dict[str, Any]": (_is(dict), "an object"),
    "tuple[float, float]": (lambda value: _list_of(is_number)(value) and len(value) == 2, "two numbers"),
    "tuple[int, ...]": (_list_of(_is_whole), "whole numbers"),
    "tuple[dict[str, Any], ...]": (_list_of(_is(dict)), "a list of objects"),
    "tuple[tuple[int, ...], ...]": (_list_of(_list_of(_is_whole)), "lists of whole numbers"),
    "dict[str, dict[str, float]]": (_dict_of(_dict_of(is_number)), "objects of numbers"),
    "Mapping[str, float]": (_dict_of(is_number), "an object of numbers"),
}


def expect_fields(found: Any, kind: type, where: str) -> None:
    """Refuse an object without a dataclass' fields, or with fields of the wrong type. Raises InputError."""
    if not isinstance(found, dict):
        raise InputError(f"{where} is {quoted(found, 40)}, expected an object; measure again")
    expect(found, {field.name: str(field.type) for field in fields(kind)}, where)


def expect(found: Mapping[str, Any], expected: Mapping[str, str], where: str) -> None:
    """Refuse an object that lacks a field or has one of the wrong type. expected: types by name, as in dataclasses."""
    for name, kind in expected.items():
        may_be_null = kind.endswith(" | None")
        is_right, called = _TYPES[kind.removesuffix(" | None")]
        value = found.get(name)
        if not ((may_be_null and name in found) if value is None else is_right(value)):
            came = quoted(value, 40) if name in found else "absent"
            raise InputError(f"{where}: {name} is {came}, expected {called}{' or null' * may_be_null}; measure again")


def difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first field in which earlier settings differ from current ones: `threads was 1, and is 2`. For objects, the
    field inside them."""
    name = next(name for name in {**now, **was} if was.get(name) != now.get(name))
    one, other = was.get(name), now.get(name)
    if isinstance(one, dict) and isinstance(other, dict):
        return difference(one, other)
    return f"{name} was {json.dumps(one)[:120]}, and is {json.dumps(other)[:120]}"


def expect_count(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse a setting that is not a whole number from `least` to `most`. Raises SettingError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        expected = f"{least} or more" if most is None else f"{least} to {most}"
        raise SettingError(f"{name} is {value!r}, expected a whole number, {expected}")


def expect_counts(settings: object, **least: int) -> None:
    """Refuse settings below their `least`, by name. A setting that is None was not given."""
    for name, count in least.items():
        if getattr(settings, name) is not None:
            expect_count(name, getattr(settings, name), count)


def expect_once(what: str, given: Sequence[Any]) -> None:
    """Refuse a value that is given twice. Raises SettingError."""
    twice = next((value for value in given if list(given).count(value) > 1), None)
    if twice is not None:
        raise SettingError(f"{what} {twice!r} was given twice; give it once")
