"""Cases in which a grammar is bad: regular expressions and JSON schemas."""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.prove.bad_input.case import Case, generation
from tests.prove.bad_input.sandbox import Command
from tests.prove.bad_input.stage import WORDS

_REGEXES = (
    "(",
    ")",
    "[",
    "[^",
    "a{2,1}",
    "(?<x",
    "*",
    "+",
    "\\",
    "\\p{Nothing}",
    "(?=a)b",
    "(?!a)b",
    "\\1",
    "(a)\\1",
    "(?i)abc",
    "a{99999999999}",
    "a{1000}{1000}",
    "((a{100}){100}){100}",
    "(a|a|a)*" * 50,
    "(" * 5000,
    "(" * 300 + "a" + ")" * 300,
    "(a*)*b",
    "\\p{L}{3000}",
    "[\U00010000-\U0010ffff]{500}",
    "",
    "^$",
    "$^",
    "a^b",
    "\\b",
    "(?s).*",
    "(?m)^a$",
    "\\x{110000}",
    "\\u{d800}",
    os.fsdecode(b"\xff"),
    "\x1b[",
    "\n",
    "(?#x)",
    "(?P<n>a)(?P<n>b)",
    "[[:alpha:]]",
    "[a-\\d]",
    "[z-a]",
    "(?x) a b",
    "\\Q",
    "\\C",
    "a??",
    "a*+",
    "(?>a)",
    "(?R)",
    ".{0,100000}",
    "(.{0,500}x){0,500}",
    "|".join(str(i) for i in range(9000)),
    "é" * 3000,
    "[^\\s\\S]",
    "a&b",
    "~a",
    "(?:)",
    "\\Aabc\\z",
    "🙂{1,3}",
    "<|endoftext|>",
)
_SCHEMAS = (
    "{}",
    "{",
    "[]",
    "true",
    "nothing.json",
    '{"type": "x"}',
    '{"type": []}',
    '{"$ref": "#"}',
    '{"$ref": "#/nothing"}',
    '{"$ref": "http://x.y/z"}',
    '{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}',
    '{"type": "string", "minLength": 10000000000}',
    '{"type": "string", "minLength": 5, "maxLength": 3}',
    '{"type": "string", "pattern": "("}',
    '{"type": "string", "pattern": "(?=a)"}',
    '{"type": "array", "minItems": 1000000000}',
    '{"type": "array", "maxItems": -1}',
    '{"enum": []}',
    '{"const": NaN}',
    '{"type": "number", "minimum": 1e400}',
    '{"type": "integer", "minimum": 5, "maximum": 4}',
    '{"type": "integer", "multipleOf": 0}',
    '{"type": "integer", "minimum": "x"}',
    '{"not": {}}',
    '{"allOf": [{"type": "string"}, {"type": "integer"}]}',
    '{"x-guidance": 3}',
    '{"x-guidance": {"whitespace_pattern": "("}}',
    '{"x-guidance": {"whitespace_flexible": 7}}',
    '{"format": "x", "type": "string"}',
    '{"type": "string", "format": "email"}',
    '{"a": "\\ud800"}',
    '{"enum": [' + ",".join(map(str, range(9000))) + "]}",
    '{"properties": 3}',
    '{"required": "x"}',
    '{"required": [1]}',
    '{"patternProperties": {"(": {}}}',
    '{"anyOf": []}',
    '{"oneOf": [{}, {}]}',
    '{"properties": {"a": {}, "a": 3}}',
    '{"type": "object", "minProperties": 1000000}',
    " {",
    "{} x",
    "\ufeff{}",
    '{"if": {}, "then": 3}',
    '{"const": "' + "x" * 60_000 + '"}',
    '{"items": ' * 500 + "{}" + "}" * 500,
    '{"items": ' * 9000 + "{}" + "}" * 9000,
    ".",
    "/dev/null",
    "/dev/full",
    '{"const": ' + "9" * 5000 + "}",
    '{"type": "integer", "maximum": ' + "9" * 400 + "}",
    "x" * 300,
    "",
    "loop",
    "bad.json",
    '{"type": "string", "pattern": "((a{100}){100}){100}"}',
)


def grammars(dice: random.Random, folder: Path, stage: Path) -> Case:
    """Regular expressions and JSON schemas."""
    (folder / "loop").symlink_to("loop")
    (folder / "bad.json").write_bytes(dice.choice((b"\xff\xfe", b"", b"{", b"[" * 100_000, b'{"a":' * 100_000, b"\0")))
    kind, text = dice.choice((("regex", dice.choice(_REGEXES)), ("json-schema", dice.choice(_SCHEMAS))))
    if dice.random() < 0.2:
        text = "".join(dice.choice("()[]{}|*+?\\^$.,-ab09") for _ in range(dice.randrange(40)))
    more = dice.choice(
        ((), (), ("--temperature", "1"), ("--draft", "int4,lookup"), ("--n", "2"), ("--stop", "a"), ("--json",))
    )
    if dice.random() < 0.1:
        return Case(
            f"chat --{kind} {text[:50]!a}",
            Command(["chat", "--plain", "--model", "stdlib-1m", *WORDS, f"--{kind}={text}"], b"x\ny\n"),
        )
    return Case(f"--{kind} {text[:50]!a} {' '.join(more)}", Command(generation("stdlib-1m", f"--{kind}={text}", *more)))
