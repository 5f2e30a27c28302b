"""Grammars that are too much for their library: it says so, and never that a text is whole."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
import torch

import foretoken
from foretoken.common.source import EMBEDDED
from foretoken.errors import GrammarError, SettingError
from foretoken.protocol.types import Request, SamplingParams
from foretoken.sampling import compiled
from foretoken.sampling.grammar import GrammarConstraint, Grammars
from foretoken.sampling.sampler import Sampler
from foretoken.settings.generate import GenerateSettings
from foretoken.text.tokenizer import Tokenizer

pytest.importorskip("llguidance", reason="the extra 'grammar' is not installed")

TOKENIZER = Tokenizer.load(EMBEDDED["stdlib-7m"])
assert TOKENIZER is not None
SIZE = TOKENIZER.size
TEXT_OF = TOKENIZER.vocabulary
TOKEN_OF = {text: token for token, text in TEXT_OF.items()}
END = TOKEN_OF["<|endoftext|>"]
DEEP = "(a?){1000}a{1000}"  # one text may come, whose length is found by trying
TOO_MUCH = ("regex", f"b+c|{DEEP}")
GIVEN_UP = (
    rf"regex 'b+c|{DEEP}' is too much for llguidance, which gave up on it "
    "(lexer error: too many expressions constructed); make it simpler: fewer and smaller repetitions within one "
    "another, fewer optional properties"
)


def request_of(grammar: tuple[str, str], **sampling: Any) -> Request:
    return Request(0, (1,), 9, frozenset([END]), sampling=SamplingParams(constraint=grammar, **sampling))


def constraint_of(grammars: Grammars, grammar: tuple[str, str] = TOO_MUCH) -> GrammarConstraint:
    constraint = grammars.constraint(request_of(grammar))
    assert constraint is not None
    return constraint


def told(constraint: GrammarConstraint) -> Any:
    """What may come next, or None if the library gave up."""
    with contextlib.suppress(GrammarError):
        return constraint.allowed(SIZE)


def schema_of(**keys: Any) -> tuple[str, str]:
    return ("json_schema", json.dumps(keys))


def optional(count: int, **keys: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(count)}, **keys}


def accepts(schema: dict[str, Any], text: str) -> bool:
    """Whether a text may come, in the longest tokens that are allowed, and be whole."""
    constraint = constraint_of(Grammars(TOKENIZER), schema_of(**schema))
    text = text.replace(" ", "Ġ")
    while text:
        allowed = (TEXT_OF[int(token)] for token in np.flatnonzero(constraint.allowed(SIZE)))
        longest = max((token for token in allowed if text.startswith(token)), key=len, default=None)
        if longest is None:
            return False
        constraint.advance(TOKEN_OF[longest])
        text = text.removeprefix(longest)
    return bool(constraint.allowed(SIZE)[END])


# -- what is too much is said to be ------------------------------------------------------------------------------------


def test_a_grammar_that_the_library_gives_up_on_is_not_complete_and_says_so_each_time() -> None:
    for grammars in (Grammars(TOKENIZER), Grammars(TOKENIZER)):
        for _ in range(3):
            constraint = constraint_of(grammars)
            constraint.advance(TOKEN_OF["a"])
            for _ in range(2):
                assert not constraint.complete
                with pytest.raises(GrammarError) as error:
                    constraint.allowed(SIZE)
                assert str(error.value) == GIVEN_UP
                constraint.advance(END)


def test_going_back_to_before_it_is_exact() -> None:
    grammars = Grammars(TOKENIZER)
    constraint = constraint_of(grammars)
    for before in ((), ("b",), ("b", "b")):
        there = constraint.allowed(SIZE)
        assert there[TOKEN_OF["b"]]
        for after in (("a",), ("a", "a", "b"), ("a", "<|endoftext|>")) if not before else (("a",), ("c", "c")):
            for text in after:
                constraint.advance(TOKEN_OF[text])
            constraint.rewind(len(after))
            assert np.array_equal(constraint.allowed(SIZE), there)
            assert not constraint.complete
        fresh = constraint_of(Grammars(TOKENIZER))
        for text in before:
            fresh.advance(TOKEN_OF[text])
        assert np.array_equal(fresh.allowed(SIZE), there)
        constraint.advance(TOKEN_OF["b"])


@pytest.mark.parametrize("asked", [False, True])
def test_one_that_it_gave_up_on_leaves_the_others_as_they_are(asked: bool) -> None:
    """They share what the library has worked out, which is of no use after that."""
    grammars = Grammars(TOKENIZER)
    other, lost, later = (constraint_of(grammars) for _ in range(3))
    alone = constraint_of(Grammars(TOKENIZER))
    if asked:
        for constraint in (other, alone):
            constraint.allowed(SIZE)
    lost.advance(TOKEN_OF["a"])
    with pytest.raises(GrammarError):
        lost.allowed(SIZE)
    for text in ("b", "b", "c"):
        for constraint in (other, alone):
            constraint.advance(TOKEN_OF[text])
        assert np.array_equal(other.allowed(SIZE), alone.allowed(SIZE))
        assert other.complete == alone.complete
    assert later.allowed(SIZE)[TOKEN_OF["b"]]
    assert other.allowed(SIZE)[END]


OBJECTS = schema_of(type="array", items={"anyOf": [{"type": "null"}, optional(5, additionalProperties=False)]})


@pytest.mark.parametrize(
    ("grammar", "limit", "value"),
    [
        (("regex", "(b|c){0,5}(d|(a?){12}a{12})"), "step_lexer_fuel", 3000),
        (OBJECTS, "step_max_items", 140),
        (("lark", f"start: %json {OBJECTS[1]}"), "max_items_in_row", 14),
        (OBJECTS, "max_items_in_row", 14),
    ],
)
def test_what_others_and_forgotten_tokens_used_up_is_not_held_against_a_sequence(
    grammar: tuple[str, str], limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several that share one start wander about. Each is told the truth, or nothing where it would be told nothing
    alone."""
    truth, dice = Grammars(TOKENIZER), np.random.default_rng(5)
    constraint_of(truth, grammar)  # compiled before the limits are lowered

    def alone(tokens: list[int]) -> Any:
        constraint = constraint_of(Grammars(TOKENIZER), grammar)
        for token in tokens:
            constraint.complete  # noqa: B018 (it looks at what may come next)
            constraint.advance(token)
        return told(constraint)

    monkeypatch.setitem(compiled._LIMITS, limit, value)
    shared = Grammars(TOKENIZER)
    wanderers = [(constraint_of(shared, grammar), list[int]()) for _ in range(3)]
    gave_up = went_on = 0
    for _ in range(150):
        constraint, tokens = wanderers[dice.integers(3)]
        true = constraint_of(truth, grammar)
        for token in tokens:
            true.advance(token)
        allowed = true.allowed(SIZE)
        said = told(constraint)
        if said is None:
            gave_up += 1
            assert alone(tokens) is None
            assert not constraint.complete
        else:
            went_on += 1
            assert np.array_equal(said, allowed)
            assert constraint.complete == true.complete
        nexts = np.setdiff1d(np.flatnonzero(allowed), [END])
        if (dice.random() < 0.25 and tokens) or not len(nexts):
            back = int(dice.integers(1, len(tokens) + 1))
            constraint.rewind(back)
            del tokens[-back:]
        else:
            tokens.append(int(dice.choice(nexts)))
            constraint.advance(tokens[-1])
    assert gave_up > 10, "vacuous"
    assert went_on > 10, "vacuous"


def test_where_no_token_fits_nothing_was_given_up_and_going_back_is_exact() -> None:
    from tokenizers import Tokenizer as Rust
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    rust = Rust(models.BPE(vocab={"a": 0, "b": 1, "c": 2, "</s>": 3}, merges=[]))
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    rust.add_special_tokens(["</s>"])
    grammars = Grammars(Tokenizer(PreTrainedTokenizerFast(tokenizer_object=rust)))
    sampling = SamplingParams(constraint=("regex", "a[xy]|bc"))
    constraint = grammars.constraint(Request(0, (1,), 9, frozenset([3]), sampling=sampling))
    assert constraint is not None
    assert constraint.allowed(4).tolist() == [True, True, False, False]
    constraint.advance(0)
    assert not constraint.allowed(4).any()
    assert not constraint.complete
    constraint.rewind(1)
    assert constraint.allowed(4).tolist() == [True, True, False, False]
    constraint.advance(1)
    assert constraint.allowed(4).tolist() == [False, False, True, False]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_who_guesses_stops_there_and_who_chooses_is_told(temperature: float) -> None:
    grammars = Grammars(TOKENIZER)
    request = request_of(TOO_MUCH, temperature=temperature)
    sampler = Sampler(request, grammars.constraint(request))
    logits = torch.zeros(SIZE)
    assert sampler.rank(logits, 3) not in (None, ([], []))
    sampler.advance([TOKEN_OF["a"]])
    assert sampler.rank(logits, 3) == ([], [])
    assert not sampler.complete
    for ask in (sampler.choose, sampler.probabilities):
        with pytest.raises(GrammarError) as error:
            ask(logits)
        assert str(error.value) == GIVEN_UP
    sampler.rewind(0)
    assert sampler.choose(logits) is not None


@pytest.mark.parametrize(
    ("draft", "setting"),
    [
        ("none", {}),
        ("lookup", {}),
        ("stdlib-1m,lookup", {"temperature": 0.8, "seed": 1}),
        ("stdlib-1m:k=2:depth=3", {}),
        ("fractal:n=2:w=3", {}),
    ],
)
def test_a_generation_ends_in_words_whatever_drafts(draft: str, setting: dict[str, Any]) -> None:
    model = foretoken.load("stdlib-7m", draft=draft, pace="fixed")
    for _ in range(2):
        with pytest.raises(GrammarError, match=r"^regex '\(a\{1,1000\}\)\{1000\}' is too much for llguidance, which"):
            model.generate("x = ", regex="(a{1,1000}){1000}", max_new_tokens=20, **setting)
    assert model.generate("x = ", regex="a{3}", max_new_tokens=20).text == "aaa"


# -- what is not too much ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"additionalProperties": False}])
def test_a_schema_may_have_a_thousand_optional_properties(keys: dict[str, Any]) -> None:
    assert accepts(optional(1000, **keys), '{"p3": 17, "p500": -2, "p998": 4}')
    assert not accepts(optional(1000, **keys), '{"p3": 17, "p500": true}')


# -- numbers that the library cannot hold ------------------------------------------------------------------------------

EXACT = 2**53


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"minimum": 10**30}, f"minimum {10**30}"),
        ({"maximum": 10**30}, f"maximum {10**30}"),
        ({"maximum": 1e300}, "maximum 1e+300"),
        ({"minimum": -(10**30)}, f"minimum -{10**30}"),
        ({"minimum": EXACT + 1}, f"minimum {EXACT + 1}"),
        ({"maximum": -EXACT - 1}, f"maximum -{EXACT + 1}"),
        ({"exclusiveMinimum": EXACT}, f"exclusiveMinimum {EXACT}"),
        ({"exclusiveMaximum": -EXACT}, f"exclusiveMaximum -{EXACT}"),
        ({"minimum": EXACT, "exclusiveMinimum": True}, f"minimum {EXACT}"),  # as draft 4 writes it
        ({"const": EXACT + 1}, f"const {EXACT + 1}"),
        ({"const": {"minimum": [1, EXACT + 3]}}, f"const {EXACT + 3}"),
        ({"enum": [1, 2**64]}, f"enum {2**64}"),
    ],
)
def test_a_number_that_the_library_would_round_is_refused_by_name(keys: dict[str, Any], named: str) -> None:
    schemas: list[dict[str, Any]] = [
        {"type": "integer", **keys},
        {"type": "object", "properties": {"minimum": {"anyOf": [{"type": "null"}, {"type": "integer", **keys}]}}},
        {"$ref": "#/here/there", "here": {"there": {"type": "array", "items": {"type": "integer", **keys}}}},
    ]
    for schema in schemas:
        with pytest.raises(GrammarError) as error:
            constraint_of(Grammars(TOKENIZER), schema_of(**schema))
        message = str(error.value)
        assert message.startswith("json_schema '{"), message
        assert message.endswith(
            f" has {named}, which llguidance would round; give whole numbers within ±{EXACT - 1}, or leave "
            f"{named.split()[0]} out"
        )


@pytest.mark.parametrize(
    ("keys", "named", "why"),
    [
        ({"multipleOf": 10**30}, f"multipleOf {10**30}", "which llguidance cannot follow"),
        ({"multipleOf": 2**32 - 1}, f"multipleOf {2**32 - 1}", "which llguidance cannot follow"),
        ({"multipleOf": 10000019}, "multipleOf 10000019", "which llguidance cannot follow"),
        ({"multipleOf": 12345.6789}, "multipleOf 12345.6789", "which llguidance cannot follow"),
        ({"minLength": 2**32}, f"minLength {2**32}", "which llguidance cannot count"),
        ({"maxLength": 10**30}, f"maxLength {10**30}", "which llguidance cannot count"),
        ({"maxItems": 2**64}, f"maxItems {2**64}", "which llguidance cannot count"),
        ({"minProperties": 2**64}, f"minProperties {2**64}", "which llguidance cannot count"),
    ],
)
def test_a_number_beyond_what_the_library_counts_is_refused_by_name(keys: dict[str, Any], named: str, why: str) -> None:
    with pytest.raises(GrammarError) as error:
        constraint_of(
            Grammars(TOKENIZER), schema_of(anyOf=[{"type": ["integer", "string", "array", "object"], **keys}])
        )
    assert f" has {named}, {why}" in str(error.value)


@pytest.mark.parametrize(
    ("schema", "fits", "does_not"),
    [
        ({"type": "integer", "minimum": 3, "maximum": 10**18}, str(10**18), str(10**18 + 1)),
        ({"type": "integer", "minimum": 3, "maximum": 2**63 - 1}, str(2**63 - 1), str(2**63)),
        ({"type": "integer", "minimum": EXACT}, str(EXACT), str(EXACT - 1)),
        ({"type": "number", "exclusiveMinimum": EXACT - 1}, str(EXACT), str(EXACT - 1)),
        ({"type": "number", "minimum": 0.1, "maximum": 0.5}, "0.25", "0.05"),
        ({"type": "number", "multipleOf": 0.01}, "0.25", "0.255"),
        ({"const": 10**30}, str(10**30), str(10**30 + 1)),
        ({"const": 2**63 - 1}, str(2**63 - 1), str(2**63)),
        ({"const": {"minimum": 7, "maxItems": 1.5}}, '{"minimum": 7, "maxItems": 1.5}', '{"minimum": 8}'),
        ({"enum": [{"maxLength": 2**40}]}, f'{{"maxLength": {2**40}}}', "{}"),
        (
            {"type": "object", "properties": {"minimum": {"type": "null", "default": {"minimum": 10**30}}}},
            '{"minimum": null}',
            '{"minimum": 1}',
        ),
        ({"type": "null", "examples": [{"minimum": 10**30}], "default": {"minimum": 10**30}}, "null", "0"),
        ({"type": "boolean", "minimum": True}, "true", "1"),
    ],
)
def test_numbers_that_it_holds_and_what_only_looks_like_a_bound_are_left_alone(
    schema: dict[str, Any], fits: str, does_not: str
) -> None:
    assert accepts(schema, fits)
    assert not accepts(schema, does_not)


# -- dicts that are more than their text could be ----------------------------------------------------------------------


TOO_LARGE = (
    ", which is more than 4,194,304 characters of JSON; put what comes again under $defs, and point to it with $ref"
)


def test_a_dict_that_shares_its_parts_beyond_reason_is_refused_at_once() -> None:
    shared: dict[str, Any] = {"type": "integer"}
    for _ in range(40):
        shared = {"anyOf": [shared, shared]}
    with pytest.raises(SettingError) as error:
        GenerateSettings(json_schema=shared)
    assert str(error.value) == f"json_schema is {{'anyOf': [{{'anyOf': [...]}}, {{'anyOf': [...]}}]}}{TOO_LARGE}"
    small: dict[str, Any] = {"type": "integer"}
    assert GenerateSettings(json_schema={"anyOf": [small, small]}).json_schema == json.dumps({"anyOf": [small, small]})
    wide = {f"p{i}": small for i in range(50_000)}
    text = GenerateSettings(json_schema={"properties": wide}).json_schema
    assert text == json.dumps({"properties": wide})
    with pytest.raises(SettingError, match=r"^json_schema is .{1,70}, which is more than 4,194,304 characters"):
        GenerateSettings(json_schema={"enum": ["a" * 5_000_000]})


def test_a_dict_that_holds_itself_is_refused() -> None:
    circular: dict[str, Any] = {"type": "array"}
    circular["items"] = circular
    items: list[Any] = []
    items.append(items)
    for schema in (circular, {"enum": items}):
        with pytest.raises(SettingError) as error:
            GenerateSettings(json_schema=schema)
        assert str(error.value).startswith("json_schema is {")
        assert str(error.value).endswith(TOO_LARGE)


def test_a_dict_that_is_nested_beyond_reason_is_refused() -> None:
    for depth in (500, 5000, 200_000):
        deep: dict[str, Any] = {"type": "array"}
        for _ in range(depth):
            deep = {"items": deep}
        if depth == 500:
            grammar = GenerateSettings(json_schema=deep).constraint
            assert grammar is not None
            with pytest.raises(GrammarError, match=r"^json_schema '.*' cannot be followed: recursion limit exceeded"):
                constraint_of(Grammars(TOKENIZER), grammar)
            continue
        with pytest.raises(SettingError, match=r"^json_schema is .*, which is nested too deeply; give it with fewer"):
            GenerateSettings(json_schema=deep)
        while deep:  # level by level: at once, Python would nest as deeply
            deep = deep.pop("items", {})
