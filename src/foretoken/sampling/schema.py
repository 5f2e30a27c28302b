"""A JSON schema as it is read before llguidance gets it: no number in it may be one that the library would round.

The library takes bounds and values for doubles, counts in words of a machine, and goes through all steps of a multiple.
A schema that asks for more than that is refused, with what to give instead; else it would follow another schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from foretoken.errors import GrammarError, quoted

# What a schema's keys hold that is neither a schema nor a list of schemas: schemas by name, values, or whatever.
_BY_NAME = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_VALUES = {"const", "enum"}
_NO_SCHEMAS = {"default", "examples", "example", "required", "x-guidance"}
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_COUNTS = dict.fromkeys(("minItems", "maxItems", "minProperties", "maxProperties"), 2**64 - 1)
_COUNTS |= dict.fromkeys(("minLength", "maxLength"), 2**32 - 1)
_EXACT = 2**53  # from here on not every whole number is a double, which the library takes bounds for
_MOST_STEPS = 1_000_000  # of a multipleOf: it takes seconds
# where a schema begins in a Lark grammar, and what else may hold these letters: comments, texts, regular expressions
_LARK = re.compile(r'//[^\n]*|#[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|(?P<json>%json\s*)')


def read_schema(text: str, called: str) -> dict[str, Any]:
    """A JSON schema, whose numbers the library takes for what they are. called: what a message calls it."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{called} is not JSON ({error}); expected a JSON schema") from None
    if not isinstance(schema, dict):
        raise GrammarError(f"{called} is no JSON schema; expected an object")
    _expect_exact(schema, called)
    return schema


def expect_exact_blocks(text: str, called: str) -> None:
    """Raise GrammarError if a JSON schema within a Lark grammar (`%json {...}`) has a number that the library would not
    take for what it is. Whatever else is wrong with it is for the library to say. called: what a message calls it."""
    at = 0
    while found := _LARK.search(text, at):
        at = found.end()
        if found["json"] is None:
            continue
        try:
            schema, at = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        if isinstance(schema, dict):
            _expect_exact(schema, called)


def _expect_exact(schema: dict[str, Any], called: str) -> None:
    for name, value, exclusive in _numbers(schema):
        wrong = _wrong_number(name, value, exclusive)
        if wrong:
            raise GrammarError(f"{called} has {name} {quoted(value)}, {wrong}, or leave {name} out")


def _numbers(schema: dict[str, Any]) -> Iterator[tuple[str, int | float, bool]]:
    """The numbers in a schema, each with its key, and whether it is a bound that is itself left out (as draft 4 says
    it). Whatever may be pointed to is taken for a schema."""
    parts: list[tuple[Any, str]] = [(schema, "")]  # with the key whose values they are
    while parts:
        part, values = parts.pop()
        if isinstance(part, list):
            parts += ((item, values) for item in part)
        elif isinstance(part, dict) and values:
            parts += ((item, values) for item in part.values())
        elif isinstance(part, dict):
            for key, value in part.items():
                if _is_number(value):
                    strict = part.get(f"exclusive{key.capitalize()}") is True
                    yield key, value, strict or key.startswith("exclusive")
                if key in _BY_NAME and isinstance(value, dict):
                    parts += ((item, "") for item in value.values())
                elif key not in _NO_SCHEMAS:
                    parts.append((value, key if key in _VALUES else ""))
        elif values and _is_number(part):
            yield values, part, False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong_number(key: str, value: int | float, exclusive: bool) -> str:
    """What is wrong with a number in a schema, and what to give; nothing where the library does what it should."""
    if key in _VALUES or key in _BOUNDS:
        rounds = _rounds_value(value) if key in _VALUES else _rounds_bound(value, exclusive)
        return f"which llguidance would round; give whole numbers within ±{_EXACT - 1}" if rounds else ""
    if key in _COUNTS and value > _COUNTS[key]:
        return f"which llguidance cannot count to; give at most {_COUNTS[key]}"
    if key == "multipleOf" and value and not _is_counted(abs(value)):
        return f"which llguidance cannot follow; give a whole number up to {_MOST_STEPS:,}, or a rounder one"
    return ""


def _rounds_bound(value: int | float, exclusive: bool) -> bool:
    """Bounds are doubles, of whole numbers with 64 bits. What lies beside one that is left out is a double, too."""
    if exclusive:
        return abs(value) >= _EXACT
    return value != 2**63 - 1 and (abs(value) > 2**63 or float(value) != value)


def _rounds_value(value: int | float) -> bool:
    """Values are doubles too. Those that fit into 64 bits are written out, others in as few digits as tell them."""
    if isinstance(value, float):
        return False
    try:
        held = float(value)
    except OverflowError:
        return True
    written = min(int(held), 2**63 - 1) if abs(value) < 2**63 else int(Decimal(repr(held)))
    return written != value


def _is_counted(value: int | float) -> bool:
    """Whether the library can tell multiples: it counts in steps of a power of ten, and goes through all of one."""
    try:
        held, places = float(value), 0
    except OverflowError:
        return False
    while held % 1 and places < 10:
        held, places = held * 10, places + 1
    steps = Fraction(Decimal(repr(value))) * 10**places
    return bool(steps == held and steps <= _MOST_STEPS and steps * 10**places < 2**32)
