"""Without keys and values kept from pass to pass, whatever drafts: the same tokens, and the same logits bit for bit."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import foretoken
from foretoken.api.build import with_draft
from foretoken.api.model import Model
from foretoken.decoder.caches import Caches
from foretoken.errors import ContractError, SettingError
from foretoken.protocol.types import Request
from foretoken.verification.uncached import UncachedVerifier
from tests.contracts.stage import Stage
from tests.contracts.table import TABLE
from tests.costs import cost_of
from tests.costs import counting as counting
from tests.engine.common import both
from tests.world import Run, make_world

PROMPT = "for i in range(3):\n    print(i)\nfor i in range(3):"
DRAFTS = (
    "none",
    "lookup",
    "mxfp4",
    "mxfp4,lookup",
    "int4,int2,lookup",
    "int8:own-cache",
    "int4:k=2:depth=3",
    "stdlib-1m:format=int2",
    "fractal:n=2:w=3",
)
SAMPLING: list[dict[str, Any]] = [{}, {"temperature": 0.8, "seed": 3, "repetition_penalty": 1.1}]


@cache
def model(draft: str, cached: bool) -> Model:
    if draft == "none":
        return foretoken.load("stdlib-1m", draft=draft, threads=1, cache=cached, pace="fixed")
    return with_draft(model("none", cached), draft)


@pytest.mark.parametrize("sampling", SAMPLING, ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_tokens_and_logits_are_those_with_a_cache(draft: str, sampling: dict[str, Any]) -> None:
    settings = {"max_new_tokens": 20, "ignore_eos": True, "keep_logits": True, **sampling}
    expected = model("none", True).generate(PROMPT, **settings)
    for cached in (True, False):
        done = model(draft, cached).generate(PROMPT, **settings)
        assert done.tokens == expected.tokens
        assert done.logits is not None
        assert expected.logits is not None
        assert torch.equal(done.logits, expected.logits)
        assert (done.stats.draft_tokens > 0) == (draft != "none")
        assert done.stats.accepted_tokens > 0 or draft == "none" or (draft == "lookup" and sampling)


@pytest.mark.sampled(3)
@both
@pytest.mark.parametrize("name", TABLE)
def test_every_drafter_of_the_table_gives_what_plain_decoding_gives(name: str, arithmetic: str) -> None:
    world, caches = make_world(arithmetic), Caches()
    drafter = TABLE[name].make(Stage(world, caches, "chain"))
    if drafter.needs.extractors:
        verifier = UncachedVerifier(world.target, caches, extractors=getattr(drafter, "extractors", ()))
        with pytest.raises(ContractError, match="an extractor reads keys and values, and none are kept here"):
            verifier.admit(Request(0, world.plains[0].prompt, 9, needs=drafter.needs))
        assert caches._caches == {}
        return
    requests = [Request(s, plain.prompt, 9, keep_logits=True) for s, plain in enumerate(world.plains)]
    budgets = TABLE[name].budgets(5)
    run = Run(world.target, drafter, requests, budgets=budgets, caches=caches, cached=False, prefill_chunk=7)
    for s, plain in enumerate(world.plains):
        assert run.sequences[s].tokens == plain.tokens[:9]
        assert torch.equal(run.sequences[s].logits, plain.logits[:9])


def test_nothing_is_kept_from_pass_to_pass() -> None:
    passes: dict[bool, list[int]] = {}
    for cached in (True, False):
        before = cost_of(model("none", cached).target)
        done = model("none", cached).generate(PROMPT, max_new_tokens=6, ignore_eos=True, keep_rounds=True)
        assert done.rounds is not None
        passes[cached] = [record.cost["target"].flops for record in done.rounds]
        assert cost_of(model("none", cached).target) != before
    prompt, *rounds = passes[False]
    assert passes[True][0] == prompt
    assert max(passes[True][1:]) < prompt / 2
    assert min(rounds) > prompt, "the whole text, again and again"
    assert rounds == sorted(rounds)


def test_turns_of_a_talk_and_completions_together_are_what_they_are_with_a_cache() -> None:
    said = {}
    for cached in (True, False):
        ours = model("fractal:n=2:w=3", cached)
        talk = ours.chat(plain=True)
        turns = ["".join(piece.text for piece in talk.send(line, max_new_tokens=12)) for line in ("x = 1\n", "y")]
        together = ours.completions(PROMPT, n=3, temperature=0.9, seed=4, max_new_tokens=12)
        said[cached] = (turns, [done.tokens for done in together])
        assert len(set(said[cached][1])) == 3
    assert said[True] == said[False]


def test_an_audit_and_a_hash_need_no_cache() -> None:
    ours = model("fractal:n=2:w=3", False)
    done = ours.generate(PROMPT, max_new_tokens=12, audit=True, hash_logits=True)
    assert done.audit is not None
    assert done.audit.identical
    assert done.logits_sha256 == model("none", True).generate(PROMPT, max_new_tokens=12, hash_logits=True).logits_sha256


def test_a_setting_that_is_no_truth_value_is_refused() -> None:
    with pytest.raises(SettingError, match=r"^cache is 'no', expected True or False$"):
        foretoken.load("stdlib-1m", cache="no")
