"""Grammars in Lark's syntax: what cannot be followed is refused before anything is generated."""

from __future__ import annotations

import json

import pytest

from foretoken.common.source import EMBEDDED
from foretoken.errors import GrammarError
from foretoken.protocol.types import Request, SamplingParams
from foretoken.sampling.grammar import Grammars
from foretoken.text.tokenizer import Tokenizer

pytest.importorskip("llguidance", reason="the extra 'grammar' is not installed")

TOKENIZER = Tokenizer.load(EMBEDDED["stdlib-1m"])
assert TOKENIZER is not None
GRAMMARS = Grammars(TOKENIZER)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start: x", "grammar 'start: x' cannot be followed: unknown name: \"x\""),
        ("start: <x>", "grammar 'start: <x>' cannot be followed: unknown special token: \"<x>\""),
        ("start: /(/", "grammar 'start: /(/' cannot be followed: unclosed group"),
        (
            "start: a\na[max_tokens=9]: /x*/",
            "grammar 'start: a\\na[max_tokens=9]: /x*/' has max_tokens or stop, from which llguidance cannot go back, "
            "as drafts must; give suffix, or a regular expression of bounded length",
        ),
        ("", "grammar '' cannot be followed: Empty grammar"),
        ('start: ""', "grammar 'start: \"\"' leaves no token to begin with; let it match some text"),
        (
            "start: %json {",
            "grammar 'start: %json {' cannot be followed: failed to parse \"%json\": EOF while parsing an object at "
            "line 2 column 0",
        ),
        (
            'start: "%json " a\na: %json {"const": 9007199254740993}',
            'grammar \'start: "%json " a\\na: %json {"const": 9007199254740993}\' has const 9007199254740993, which '
            "llguidance would round; give whole numbers within ±9007199254740991, or leave const out",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(GrammarError) as error:
        GRAMMARS.constraint(Request(0, (1,), 9, sampling=SamplingParams(constraint=("lark", text))))
    assert str(error.value) == message


def test_a_number_that_would_be_rounded_is_looked_for_in_schemas_only() -> None:
    large = '{"const": 9007199254740993}'
    for text in (
        f'start: "x" // %json {large}',
        f"start: {json.dumps('%json ' + large)}",
        f'# %json {large}\nstart: "x"',
    ):
        assert GRAMMARS.constraint(Request(0, (1,), 9, sampling=SamplingParams(constraint=("lark", text)))) is not None


def test_what_is_too_much_is_said_to_be() -> None:
    sampling = SamplingParams(constraint=("lark", "start: /b+c|(a?){1000}a{1000}/"))
    constraint = GRAMMARS.constraint(Request(0, (1,), 9, sampling=sampling))
    assert constraint is not None
    constraint.advance(TOKENIZER.encode_part("a")[0])
    assert not constraint.complete
    with pytest.raises(
        GrammarError, match=r"^grammar 'start: /b\+c\|\(a\?\).*' is too much for llguidance, which gave up"
    ):
        constraint.allowed(TOKENIZER.size)
