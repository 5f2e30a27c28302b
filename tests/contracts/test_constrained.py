"""The contract under a grammar: every output matches it, and is what plain constrained decoding gives, whatever drafts.

On the embedded models, because a grammar needs a tokenizer, and text for drafts to be right about.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Any

import pytest

import foretoken
from foretoken.api.build import with_draft
from foretoken.bench.constrained import GRAMMARS, Grammar, Untold, fits
from foretoken.kernels import native

pytest.importorskip("llguidance", reason="the extra 'grammar' is not installed")

DRAFTS = ("none", "lookup", "stdlib-1m", "stdlib-1m,lookup", "stdlib-1m:k=3:depth=4", "fractal:format=int2:slots=fixed")
PROMPTS = (
    "def names(self):\n    return ['a', 'b', 'self', 'name']\n\n\ndef name(self):\n    return",
    'import json\n\n# 2024-01-31, v3.11.7-rc1\nrecord = json.loads(\'{"name": "count", "count": 3}\') or',
)
LENGTH = 400  # more than any grammar here comes to
SOME = GRAMMARS if native.module() else GRAMMARS[4:6]  # without native code, much slower: one of a kind


@cache
def model(draft: str, **settings: str) -> foretoken.Model:
    return foretoken.load("stdlib-7m", draft=draft, threads=1, **settings, pace="fixed")


def settings_of(grammar: Grammar, temperature: float, ignore_eos: bool) -> dict[str, Any]:
    return {
        **grammar.setting,
        "temperature": temperature,
        "seed": 20261121,
        "ignore_eos": ignore_eos,
        "max_new_tokens": LENGTH,
        "keep_logits": True,
    }


@cache
def plain(name: str, prompt: str, temperature: float, ignore_eos: bool) -> foretoken.Completion:
    (grammar,) = (grammar for grammar in GRAMMARS if grammar.name == name)
    return model("none").generate(prompt, **settings_of(grammar, temperature, ignore_eos))


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.prove), 0.8])
@pytest.mark.parametrize("draft", DRAFTS)
def test_an_output_matches_and_is_that_of_plain_constrained_decoding(draft: str, temperature: float) -> None:
    events: Counter[str] = Counter()
    for number, grammar in enumerate(SOME):
        ignore_eos = number % 2 == 1
        for prompt in PROMPTS:
            expected = plain(grammar.name, prompt, temperature, ignore_eos)
            done = model(draft).generate(prompt, **settings_of(grammar, temperature, ignore_eos))
            case = f"{draft}, {temperature}, {grammar.name}: {done.text!r}"
            assert done.tokens == expected.tokens, case
            assert done.logits is not None
            assert done.logits.equal(expected.logits), case
            assert (done.finish_reason, done.text) == ("stop", expected.text), case
            assert grammar.fits(done.text), case
            ends = model(draft).end_tokens
            assert (done.tokens[-1] in ends) is not ignore_eos, case
            events["drafted"] += done.stats.draft_tokens
            events["accepted"] += done.stats.accepted_tokens
            events["rejected"] += done.stats.draft_tokens - done.stats.accepted_tokens
            events["accepted to the last token"] += done.origins[-1] != "target"
    if draft == "none":
        assert events["drafted"] == 0
        return
    for event in ("drafted", "accepted", "rejected"):
        assert events[event] > 0, f"vacuous: nothing was {event}: {dict(events)}"
    if draft != "lookup":
        assert events["accepted to the last token"] > 0, "no draft reached an end"


@pytest.mark.parametrize(
    "draft", ["lookup", "stdlib-1m", "stdlib-1m,lookup", "stdlib-1m:shape=full:k=2:depth=3", "fractal"]
)
def test_outputs_match_under_the_rejection_rule_too(draft: str) -> None:
    accepted = 0
    for number, grammar in enumerate(SOME):
        done = model(draft, rule="rejection").generate(PROMPTS[0], **settings_of(grammar, 0.8, number % 2 == 1))
        assert done.finish_reason == "stop"
        assert grammar.fits(done.text), f"{grammar.name}: {done.text!r}"
        accepted += done.stats.accepted_tokens
    assert accepted > 0


def test_completions_that_share_passes_are_those_that_are_alone() -> None:
    (grammar,) = (grammar for grammar in GRAMMARS if grammar.name == "method")
    settings = settings_of(grammar, 0.8, False)
    alone = model("none").completions(PROMPTS[1], **settings, n=3)
    together = model("stdlib-1m").completions(PROMPTS[1], **settings, n=3)
    assert [done.tokens for done in together] == [done.tokens for done in alone]
    assert len({done.text for done in alone}) == 3
    assert all(grammar.fits(done.text) for done in together)


def test_a_draft_that_is_not_told_the_grammar_gains_less_and_changes_nothing() -> None:
    counts: dict[str, int] = {}
    not_told = with_draft(model("none"), "stdlib-1m", samplers=Untold(None))
    for name, drafting in (("told", model("stdlib-1m")), ("not told", not_told)):
        counts[name] = 0
        for grammar in SOME:
            done = drafting.generate(PROMPTS[0], **settings_of(grammar, 0.0, False))
            assert done.tokens == plain(grammar.name, PROMPTS[0], 0.0, False).tokens
            counts[name] += done.stats.accepted_tokens
    assert 0 < counts["not told"] < counts["told"]


def test_an_output_that_is_cut_short_is_one_that_could_go_on() -> None:
    (grammar,) = (grammar for grammar in GRAMMARS if grammar.name == "record")
    settings = settings_of(grammar, 0.0, False)
    whole = plain("record", PROMPTS[1], 0.0, False)
    for draft in DRAFTS:
        for length in (1, 7, len(whole.tokens) - 1, len(whole.tokens), len(whole.tokens) + 1):
            done = model(draft).generate(PROMPTS[1], **{**settings, "max_new_tokens": length})
            assert done.tokens == whole.tokens[:length]
            assert done.finish_reason == ("length" if length < len(whole.tokens) else "stop")


def test_a_text_that_can_only_end_stops_with_its_last_token() -> None:
    settings = {"regex": "(ab|cd)[0-9]{3}", "max_new_tokens": 9}
    for draft in DRAFTS:
        ended = model(draft).generate("x =", **settings)
        open_ended = model(draft).generate("x =", ignore_eos=True, **settings)
        assert ended.tokens[:-1] == open_ended.tokens
        assert ended.text == open_ended.text
        assert ended.finish_reason == open_ended.finish_reason == "stop"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_grammar_in_lark_gives_the_same_whatever_drafts(temperature: float) -> None:
    lark = 'start: head pair ("," pair)*\nhead[lazy]: /[a-z_ ]{0,9}=/\npair: /[a-z]{1,4}/ ":" %json {"type": "boolean"}'
    settings = {"grammar": lark, "temperature": temperature, "seed": 5, "max_new_tokens": 40, "keep_logits": True}
    expected = model("none").generate(PROMPTS[0], **settings)
    assert re.match(r"[a-z_ ]{0,9}=[a-z]{1,4}(:|$)", expected.text)
    for draft in DRAFTS:
        done = model(draft).generate(PROMPTS[0], **settings)
        assert (done.tokens, done.finish_reason) == (expected.tokens, expected.finish_reason), draft
        assert done.logits is not None
        assert done.logits.equal(expected.logits), draft


def test_an_audit_of_constrained_output_is_of_constrained_output() -> None:
    done = model("stdlib-1m").generate(PROMPTS[0], regex="[a-z]{3,9};", audit=True, ignore_eos=True)
    assert done.audit is not None
    assert done.audit.identical
    assert done.audit.compared_tokens == len(done.tokens)


def test_a_grammar_that_cannot_be_read_is_refused_before_the_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = foretoken.load("stdlib-1m", draft="lookup", pace="fixed")
    monkeypatch.setattr(type(loaded.target), "forward", lambda *_: pytest.fail("the model ran"))
    for settings in ({"regex": "("}, {"json_schema": "{"}, {"json_schema": {"type": "texT"}}, {"grammar": "start: ("}):
        with pytest.raises(foretoken.GrammarError):
            loaded.generate("x", **settings)


@pytest.mark.parametrize(
    ("name", "text", "right"),
    [
        ("date", "2024-02-31", True),
        ("date", "2024-02-31\n", False),
        ("record", '{"name": "a", "count": 3, "flag": true}', True),
        ("record", '{"name": "a", "count": true, "flag": true}', False),
        ("record", '{"name": "a", "count": 3}', False),
        ("record", '{"name": "a", "count": 3, "flag": true, "b": 1}', False),
        ("record", '{"name": "a", "count": 4097, "flag": true}', False),
        ("record", '{"name": "a", "count": 3, "flag": true', False),
        ("list", "[1, null, -10]", True),
        ("list", "[1.5]", False),
        ("choice", '{"kwargs": [1, 2]}', True),
        ("choice", '"other"', False),
        ("text", '{"title": "abc", "done": true}', False),
        ("text", '{"title": "abcd", "done": 1}', False),
    ],
)
def test_the_judge_of_outputs_sees_what_is_wrong(name: str, text: str, right: bool) -> None:
    (grammar,) = (grammar for grammar in GRAMMARS if grammar.name == name)
    assert grammar.fits(text) is right


def test_the_judge_of_schemas_refuses_a_keyword_that_it_does_not_know() -> None:
    with pytest.raises(KeyError, match="multipleOf"):
        fits(3, {"multipleOf": 2})
