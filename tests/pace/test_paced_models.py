"""`pace="auto"` as a user has it: the text stays, named lengths stay, and lengths adapt."""

from __future__ import annotations

import pytest

import foretoken
from foretoken.decoder.decoder import Decoder
from foretoken.pace.auto import AutoPace
from foretoken.pace.fixed import FixedPace
from foretoken.prices.price import Price
from foretoken.results.completion import Completion

PROMPT = "def add(self, other):\n    return"


def lengths(done: Completion) -> list[int]:
    assert done.rounds is not None
    return [count for record in done.rounds for count in record.drafted.values()]


@pytest.mark.parametrize(
    ("draft", "temperature"),
    [
        ("lookup", 0.0),
        ("stdlib-1m", 0.8),
        ("mxfp4", 0.8),
        ("int4,lookup", 0.0),
        ("int8,int2,lookup", 0.8),
        ("int4:k=2,lookup", 0.0),
        ("int4:k=3,lookup", 0.8),
        ("int4:own-cache", 0.0),
    ],
)
def test_the_text_is_that_of_plain_decoding(draft: str, temperature: float) -> None:
    how = {"max_new_tokens": 96, "temperature": temperature, "seed": 4, "keep_rounds": True}
    plain = foretoken.load("stdlib-7m", draft="none").generate(PROMPT, **how)
    model = foretoken.load("stdlib-7m", draft=draft, pace="auto")
    chosen: set[int] = set()
    for turn in range(8):  # the second time with what the first has taught
        done = model.generate(PROMPT, **how)
        assert done.tokens == plain.tokens
        chosen.update(lengths(done))
        # while other processes disturb, drafts may seem too dear for a while
        if turn and (draft != "lookup" or len(chosen) > 1):
            break
    if draft == "lookup":  # drafts of the others may not be worth their time with so small a model
        assert len(chosen) > 1, "every round drafted as much as every other"


def test_many_prompts_at_once_have_the_texts_of_plain_decoding() -> None:
    prompts = [PROMPT, "import os\n", "class Stack:\n", "for i in range(", "def main():"]
    plain = foretoken.load("stdlib-7m", draft="none").generate_many(prompts, max_new_tokens=48)
    paced = foretoken.load("stdlib-7m", draft="int4,lookup", pace="auto").generate_many(prompts, max_new_tokens=48)
    assert [done.tokens for done in paced] == [done.tokens for done in plain]


@pytest.mark.parametrize(
    ("draft", "settings", "fixed"),
    [
        ("none", {}, True),
        ("lookup", {}, False),
        ("lookup:tokens=3", {}, True),
        ("lookup", {"num_speculative_tokens": 3}, True),
        ("stdlib-1m:k=2:depth=3", {}, True),
        ("fractal", {}, True),
        ("int4:tokens=3,lookup", {}, False),
        ("stdlib-1m:k=2:shape=best-first", {}, False),
        ("stdlib-1m:k=2:shape=best-first:least=0.5", {}, True),
        ("stdlib-1m:k=2:shape=best-first", {"num_speculative_tokens": 3}, True),
    ],
)
def test_a_length_that_was_named_stays(draft: str, settings: dict[str, int], fixed: bool) -> None:
    model = foretoken.load("stdlib-7m", draft=draft, pace="auto", **settings)
    assert isinstance(model.pace, FixedPace if fixed else AutoPace)
    done = model.generate(PROMPT, max_new_tokens=48, keep_rounds=True)
    if "tokens=3" in draft or settings:
        assert set(lengths(done)[:-3]) <= {0, 1, 2, 3}
        assert 3 in lengths(done)


def test_under_the_rejection_rule_one_seed_gives_one_text() -> None:
    model = foretoken.load("stdlib-7m", draft="stdlib-1m,lookup", rule="rejection")
    assert isinstance(model.pace, FixedPace)
    one, other = (model.generate(PROMPT, max_new_tokens=32, temperature=0.8, seed=3) for _ in range(2))
    assert one.tokens == other.tokens
    assert one.stats.accepted_tokens


@pytest.mark.parametrize("pace", ["auto", "fixed"])
@pytest.mark.parametrize("more", [1e-3, 1e-5])
def test_a_draft_that_is_clearly_slower_than_its_model_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, more: float, pace: str
) -> None:
    small = foretoken.load("stdlib-1m", draft="none").target.config

    def price(decoder: Decoder) -> Price:
        return Price({1: 1e-3 if decoder.config == small else 1e-3 + more})

    monkeypatch.setattr(f"foretoken.api.pacing.{'first_price' if pace == 'auto' else '_one_row'}", price)
    foretoken.load("stdlib-1m", draft="stdlib-7m", pace=pace)
    assert ("stdlib-7m cannot speed up target: a pass takes 2 ms, one of target 1 ms" in caplog.text) == (more == 1e-3)
    assert bool(caplog.text) == (more == 1e-3)
