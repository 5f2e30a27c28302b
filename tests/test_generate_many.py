"""Many prompts in one call: each is, bit for bit, what it is by itself, whatever becomes of the others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import foretoken
from foretoken.api.audit import audit
from foretoken.api.checkpoint import Checkpoint
from foretoken.api.model import Model
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows
from foretoken.drafters.lookup import LookupDrafter
from foretoken.errors import BatchError, GrammarError, NumericsError, PromptError, SettingError
from foretoken.protocol.types import Budget
from foretoken.settings.load import LoadSettings
from foretoken.verification.local import LocalVerifier
from tests.engine.open_loop import apart, poisoned
from tests.many import LOOP, PROMPTS, SETTINGS, expect_all_the_same, expect_nothing_left, model, truth

DRAFTS = ("none", "lookup", "mxfp4,lookup", "stdlib-1m", "stdlib-1m:k=2:depth=3", "fractal")


@pytest.mark.parametrize("at_once", [1, 3, 8])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("draft", DRAFTS)
def test_each_is_what_it_is_by_itself(draft: str, settings: str, at_once: int) -> None:
    ours = model(draft)
    found = ours.generate_many(
        iter(PROMPTS), at_once=at_once, hash_logits=True, logprobs=1, keep_rounds=True, **SETTINGS[settings]
    )
    expect_all_the_same(found, settings)
    expect_nothing_left(ours)
    rounds = {record.round: record for done in found for record in done.rounds or ()}.values()
    in_one_pass = [len({*record.drafted, *record.read}) for record in rounds]
    assert max(in_one_pass) <= at_once
    assert (max(in_one_pass) > 1) == (at_once > 1), "vacuous: no pass was shared"
    assert any(record.read and record.drafted for record in rounds) == (at_once > 1)
    assert any(sum(record.read.values()) > 1 and len(record.read) > 1 for record in rounds) == (at_once > 1)
    if draft != "none":
        assert sum(done.stats.accepted_tokens for done in found) > 0 or (draft, settings) == ("lookup", "sampled")
    for done in found:
        assert done.draft == draft
        assert len(done.origins) == len(done.tokens)
        assert done.cached_tokens == 0


def test_it_is_what_generate_gives_with_the_same_draft() -> None:
    for draft, settings in itertools.product(("mxfp4,lookup", "fractal"), SETTINGS):
        many = model(draft).generate_many(PROMPTS, at_once=4, keep_logits=True, **SETTINGS[settings])
        for prompt, done in zip(PROMPTS, many, strict=True):
            alone = model(draft).generate(prompt, keep_logits=True, **SETTINGS[settings])
            assert (done.tokens, done.text, done.finish_reason) == (alone.tokens, alone.text, alone.finish_reason)
            assert done.logits is not None
            assert alone.logits is not None
            assert torch.equal(done.logits, alone.logits)


def test_by_the_rejection_rule_too_each_is_what_it_is_by_itself() -> None:
    """There the text depends on the draft, which must not depend on how many others share its passes."""
    judged = foretoken.load("stdlib-7m", draft="stdlib-1m:tokens=6", rule="rejection", threads=1)
    how: dict[str, Any] = {"max_new_tokens": 24, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    texts = ["def add(", LOOP, "import os\nimport", "class Stack:"]
    alone = [judged.generate(text, **how) for text in texts]
    together = judged.generate_many(texts, **how)
    assert [done.tokens for done in together] == [done.tokens for done in alone]
    assert max(len(done.stats.accepted_per_position) for done in together) > 3, "four of them drafted as one does"


def test_settings_may_come_ready_made_and_an_audit_finds_nothing() -> None:
    ready = foretoken.GenerateSettings(max_new_tokens=6, audit=True, hash_logits=True)
    for done in model("mxfp4,lookup").generate_many(PROMPTS, ready, at_once=3):
        assert done.audit is not None
        assert done.audit.identical
    expect_nothing_left(model("mxfp4,lookup"))
    with pytest.raises(SettingError, match="both ready-made and by name"):
        model("none").generate_many(PROMPTS, ready, max_new_tokens=3)


def test_without_a_seed_each_is_told_its_own() -> None:
    found = model("lookup").generate_many([LOOP] * 4, at_once=4, max_new_tokens=6, temperature=1.5)
    seeds = {done.seed for done in found}
    assert len(seeds) == 4
    for done in found:
        again = model("none").generate(LOOP, max_new_tokens=6, temperature=1.5, seed=done.seed)
        assert again.tokens == done.tokens


def test_no_prompts_give_no_completions() -> None:
    assert model("lookup").generate_many([]) == []
    assert list(model("lookup").generate_many(iter(()), as_completed=True)) == []


# -- one by one -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 3, 8])
@pytest.mark.parametrize("draft", ["none", "stdlib-1m:k=2:depth=3", "mxfp4,lookup"])
def test_as_they_are_done_each_comes_once(draft: str, at_once: int) -> None:
    ours = model(draft)
    for settings in SETTINGS:
        run = ours.generate_many(
            PROMPTS, as_completed=True, at_once=at_once, hash_logits=True, logprobs=1, **SETTINGS[settings]
        )
        assert isinstance(run, Iterator)
        found = list(run)
        order = [index for index, _ in found]
        assert sorted(order) == list(range(len(PROMPTS)))
        if at_once == 1:
            assert order == sorted(order)
        expect_all_the_same([dict(found)[index] for index in range(len(PROMPTS))], settings)
    expect_nothing_left(ours)


def test_who_is_done_first_comes_first() -> None:
    ours = model("none")
    (short,) = [index for index, done in enumerate(truth("stop strings")) if len(done.tokens) == _shortest()][:1]
    longest = max(range(len(PROMPTS)), key=lambda index: len(truth("stop strings")[index].tokens))
    order = [
        index
        for index, _ in ours.generate_many(PROMPTS, as_completed=True, at_once=len(PROMPTS), **SETTINGS["stop strings"])
    ]
    assert order.index(short) < order.index(longest)
    assert order != sorted(order)


def _shortest() -> int:
    return min(len(done.tokens) for done in truth("stop strings"))


@pytest.mark.parametrize("draft", ["none", "mxfp4,lookup", "stdlib-1m:k=2:depth=3", "fractal"])
def test_closing_it_early_frees_everything(draft: str) -> None:
    ours = model(draft)
    for taken in range(4):
        run: Any = ours.generate_many(PROMPTS, as_completed=True, at_once=4, **SETTINGS["greedy"])
        first = [next(run) for _ in range(taken)]
        assert len({index for index, _ in first}) == taken
        if taken:
            assert ours._verifier.caches._caches, "others are under way"  # type: ignore[attr-defined]
        run.close()
        expect_nothing_left(ours)
        assert next(run, None) is None
    expect_all_the_same(ours.generate_many(PROMPTS, hash_logits=True, logprobs=1, **SETTINGS["greedy"]), "greedy")


def test_ctrl_c_frees_everything_and_the_next_call_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = model("mxfp4,lookup")
    check = Decoder.check
    for at in (1, 2, 4, 7):
        passes = itertools.count(1)

        def interrupted(self: Decoder, rows: Rows, *more: Any, passes: Any = passes, at: int = at) -> Outputs:
            outputs = check(self, rows, *more)
            if self is ours.target and next(passes) == at:
                raise KeyboardInterrupt
            return outputs

        with monkeypatch.context() as patch:
            patch.setattr(Decoder, "check", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ours.generate_many(PROMPTS, at_once=3, **SETTINGS["greedy"])
        expect_nothing_left(ours)
    expect_all_the_same(ours.generate_many(PROMPTS, hash_logits=True, logprobs=1, **SETTINGS["greedy"]), "greedy")


# -- what fails -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 3, 8])
def test_where_some_prompts_fail_the_others_are_finished(at_once: int) -> None:
    ours = model("mxfp4,lookup")
    context = ours.context_length
    bad: dict[int, tuple[Any, str]] = {
        0: ("", "the prompt is empty; expected at least one token"),
        2: ([5] * context, f"the prompt has {context} tokens, and the model's context holds {context}"),
        3: ([5, 10**6], "the prompt holds token 1000000; the model has tokens 0 to"),
        5: ([], "the prompt is empty"),
        6: (7, "the prompt is 7, expected text, token ids, or messages with a role and a content"),
        8: ([-1], "the prompt holds token -1"),
        11: ("\ud800", "half a character|surrogate|UTF-8|not whole|cannot be"),
    }
    rest = iter(PROMPTS)
    prompts = [bad[index][0] if index in bad else next(rest) for index in range(len(PROMPTS) + len(bad))]
    good = [index for index in range(len(prompts)) if index not in bad]
    with pytest.raises(BatchError) as raised:
        ours.generate_many(prompts, at_once=at_once, hash_logits=True, logprobs=1, **SETTINGS["greedy"])
    error = raised.value
    assert sorted(error.errors) == sorted(bad)
    for index, (_, said) in bad.items():
        assert isinstance(error.errors[index], PromptError)
        if index != 11:
            assert str(error.errors[index]).startswith(said)
        assert error.completions[index] is None
    expect_all_the_same([error.completions[index] for index in good], "greedy")
    assert str(error) == (
        f"7 of {len(prompts)} prompts failed, the first of them prompts[0]: {error.errors[0]}; what the others gave is "
        "in this error's completions"
    )
    expect_nothing_left(ours)

    run: Any = ours.generate_many(prompts, as_completed=True, at_once=at_once, **SETTINGS["greedy"])
    done = [next(run)[0] for _ in good]
    with pytest.raises(BatchError):
        next(run)
    assert sorted(done) == good
    expect_nothing_left(ours)


def tiny(target: Decoder) -> Model:
    return Model(
        Checkpoint(target, None, "tiny", Path()),
        LocalVerifier(target),
        LookupDrafter(min_match=1),
        budgets={"lookup": Budget(5, 5)},
        settings=LoadSettings(),
    )


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_one_that_fails_in_mid_run_is_told_and_the_others_are_finished(at_once: int) -> None:
    """The row of one token is NaN: in a prompt, or on the way."""
    special, *plains = apart().plains
    ours = tiny(poisoned(special.tokens[3]).target)
    prompts = [plains[0].prompt, (3, special.tokens[3]), plains[1].prompt, special.prompt, plains[0].prompt]
    with pytest.raises(
        BatchError, match=r"^2 of 5 prompts failed, the first of them prompts\[1\]: the model's logits"
    ) as raised:
        ours.generate_many(prompts, at_once=at_once, max_new_tokens=15)
    assert {index: type(error) for index, error in raised.value.errors.items()} == {1: NumericsError, 3: NumericsError}
    found = [None if done is None else done.tokens for done in raised.value.completions]
    assert found == [plains[0].tokens[:15], None, plains[1].tokens[:15], None, plains[0].tokens[:15]]
    expect_nothing_left(ours)


def test_an_audit_that_fails_is_that_prompts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    audits = itertools.count()

    def failing(*given: Any) -> Any:
        if next(audits) == 2:
            raise NumericsError("in the audit")
        return audit(*given)

    monkeypatch.setattr("foretoken.api.model.audit", failing)
    with pytest.raises(BatchError) as raised:
        model("lookup").generate_many(PROMPTS, at_once=3, audit=True, **SETTINGS["greedy"])
    assert [str(error) for error in raised.value.errors.values()] == ["in the audit"]
    assert all(error.__traceback__ is None for error in raised.value.errors.values()), "it holds the audit's pass"
    assert sum(done is None for done in raised.value.completions) == 1
    expect_nothing_left(model("lookup"))


def test_a_token_of_thousands_of_digits_is_that_prompts_own() -> None:
    with pytest.raises(BatchError, match="the prompt holds token <int>; the model has tokens 0 to"):
        model("lookup").generate_many([[5], [10**5000], [6]], max_new_tokens=2)


def test_each_follows_its_grammar_and_one_that_cannot_be_read_is_refused_once() -> None:
    pytest.importorskip("llguidance", reason="the extra 'grammar' is not installed")
    ours = model("lookup")
    allowed = ours.generate_many(PROMPTS, at_once=3, regex="[a-z]{4}", max_new_tokens=9)
    alone = [model("none").generate(prompt, regex="[a-z]{4}", max_new_tokens=9).tokens for prompt in PROMPTS]
    assert [done.tokens for done in allowed] == alone
    with pytest.raises(GrammarError) as alone_refused:
        ours.generate(PROMPTS[0], regex="(", max_new_tokens=9)
    for as_completed in (False, True):
        with pytest.raises(GrammarError) as refused:
            ours.generate_many(PROMPTS, at_once=3, regex="(", max_new_tokens=9, as_completed=as_completed)
        assert str(refused.value) == str(alone_refused.value)
    expect_nothing_left(ours)


def test_settings_that_are_none_are_refused() -> None:
    ours: Any = model("none")
    calls = (ours.generate, ours.stream, ours.completions, ours.chat(plain=True).send)
    for call in (*calls, lambda *given: ours.generate_many(["import os"], *given[1:])):
        for given in (5, {"max_new_tokens": 5}, "greedy", LoadSettings()):
            with pytest.raises(
                SettingError, match=r"settings came as .*, expected them by name, or a GenerateSettings"
            ):
                call("import os", given)
    for given in (None, 1, "yes"):
        with pytest.raises(SettingError, match=r"as_completed is .*, expected True or False"):
            ours.generate_many(["import os"], as_completed=given)
    expect_nothing_left(ours)


@pytest.mark.parametrize(
    ("prompts", "settings", "said"),
    [
        ("one prompt", {}, "prompts is 'one prompt', expected several prompts; give one prompt to `generate`"),
        (b"bytes", {}, "prompts is b'bytes', expected several prompts; give one prompt to `generate`"),
        (None, {}, "prompts is None, expected several prompts; give one prompt to `generate`"),
        (7, {}, "prompts is 7, expected several prompts; give one prompt to `generate`"),
        ([10, 20, 30], {}, "prompts is [10, 20, 30], expected several prompts; give one prompt to `generate`"),
        (["a"], {"n": 2}, "n is 2, and here each prompt has one completion; repeat the prompt instead"),
        (["a"], {"at_once": 0}, "at_once is 0, expected a whole number, 1 or more"),
        (["a"], {"at_once": -3}, "at_once is -3, expected a whole number, 1 or more"),
        (["a"], {"at_once": 2.0}, "at_once is 2.0, expected a whole number, 1 or more"),
        (["a"], {"at_once": True}, "at_once is True, expected a whole number, 1 or more"),
        (["a"], {"at_once": None}, "at_once is None, expected a whole number, 1 or more"),
        (["a"], {"at_once": "many"}, "at_once is 'many', expected a whole number, 1 or more"),
        (["a"], {"max_new_tokens": 0}, "max_new_tokens is 0, expected a whole number, 1 or more"),
        (["a"], {"as_complete": True}, "there is no setting 'as_complete'"),
    ],
)
@pytest.mark.parametrize("as_completed", [False, True])
def test_arguments_that_make_no_sense_are_refused_at_once(
    as_completed: bool, prompts: Any, settings: dict[str, Any], said: str
) -> None:
    call: Any = model("none").generate_many
    with pytest.raises(SettingError) as raised:
        call(prompts, as_completed=as_completed, **settings)
    assert str(raised.value).startswith(said)
