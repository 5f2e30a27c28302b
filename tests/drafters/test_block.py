"""A drafter that drafts in one pass, as a user meets it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import foretoken
from foretoken.api import pacing
from foretoken.common.source import EMBEDDED
from foretoken.decoder.decoder import Decoder
from foretoken.drafters.block import BlockDrafter
from foretoken.errors import CheckpointError, DraftSpecError
from foretoken.pace.auto import AutoPace
from foretoken.prices.price import Price
from foretoken.protocol.types import Budget
from foretoken.trained.blocks import BlockDecoder
from foretoken.trained.config import MixtureConfig
from foretoken.trained.files import read_trained, write_trained
from foretoken.trained.network import Block
from foretoken.trained.sizes import block_of

PROMPT = "def add(one, other):\n    return one +"
SAMPLED = {"temperature": 0.8, "seed": 3}


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded drafter as a block that was not trained further: what it drafts first is what that one drafts."""
    folder, start = tmp_path_factory.mktemp("drafters") / "block", read_trained(EMBEDDED["stdlib-7m"].with_name("moa"))
    assert isinstance(start.config, MixtureConfig)
    config = block_of(start.config, block=5, depth=3)
    torch.manual_seed(0)
    network = Block(config, 1e-6)
    network.go_on_from({name: tensor.float() for name, tensor in start.tensors.items()})
    write_trained(folder, config, network.state_dict())
    return folder


@pytest.mark.parametrize("options", ["", ":tokens=3", ":format=mxfp4", ":confidence=0.5", ":k=3:depth=4", ":k=4"])
@pytest.mark.parametrize("below", ["", ",lookup"])
@pytest.mark.parametrize("pace", ["fixed", "auto"])
def test_it_changes_no_token_and_takes_one_pass_a_draft(drafter: Path, options: str, below: str, pace: str) -> None:
    if below and "depth" in options:
        pytest.skip("a beam has nothing below it")
    plain, model = (
        foretoken.load("stdlib-7m", draft=draft, pace=pace) for draft in ("none", f"{drafter}{options}{below}")
    )
    for settings in ({}, SAMPLED):
        done, right = (
            each.generate(PROMPT, max_new_tokens=32, ignore_eos=True, keep_rounds=True, **settings)
            for each in (model, plain)
        )
        assert done.tokens == right.tokens
        assert done.rounds is not None
        assert isinstance(model.drafter, BlockDrafter)
        its = model.drafter.name
        works = [[work for some in each.work.values() for work in some] for each in done.rounds]
        passes = [sum(work.passes for work in some if work.level == its) for some in works]
        assert set(passes) <= {0, 1}
        assert pace == "auto" or passes.count(1) > 4
        if pace == "fixed":
            assert done.stats.levels[0].accepted_tokens > 4, "the first of each draft is often right"


def test_several_texts_share_a_pass(drafter: Path) -> None:
    model, plain = (foretoken.load("stdlib-7m", draft=draft, pace="fixed") for draft in (str(drafter), "none"))
    ours, right = (each.completions(PROMPT, n=3, max_new_tokens=16, **SAMPLED) for each in (model, plain))
    assert [each.tokens for each in ours] == [each.tokens for each in right]
    assert all(each.stats.draft_tokens > 8 for each in ours)


def test_a_guess_of_lookup_is_run_in_the_same_pass(drafter: Path) -> None:
    model = foretoken.load("stdlib-7m", draft=f"{drafter}:tokens=8,lookup:tokens=6", pace="fixed")
    assert isinstance(model.drafter, BlockDrafter)
    text = "one = two(three, four)\n" * 6
    done = model.generate(text, max_new_tokens=24, ignore_eos=True, keep_rounds=True)
    assert done.tokens == foretoken.load("stdlib-7m", draft="none").generate(text, max_new_tokens=24).tokens
    assert done.rounds is not None
    assert max(sum(record.accepted.values()) for record in done.rounds) > 5, "a draft is longer than the block"
    assert done.stats.levels[0].accepted_tokens + done.stats.levels[1].accepted_tokens > 15


@pytest.mark.parametrize("kind", ["block", "moa"])
@pytest.mark.parametrize("options", ["", ":format=bf16", ":k=3:depth=4", ",lookup"])
def test_tokens_that_it_cannot_draft_are_the_models_alone(
    drafter: Path, tmp_path: Path, kind: str, options: str
) -> None:
    whole = read_trained(drafter if kind == "block" else EMBEDDED["stdlib-7m"].with_name("moa"))
    some = torch.arange(0, 4096, 2)
    assert isinstance(whole.config, MixtureConfig)
    config = replace(whole.config, choices=len(some))
    write_trained(tmp_path / "it", config, {**whole.tensors, "vocabulary": some})
    model = foretoken.load("stdlib-7m", draft=f"{tmp_path / 'it'}{options}", pace="fixed")
    plain = foretoken.load("stdlib-7m", draft="none")
    for settings in ({}, SAMPLED):
        done, right = (each.generate(PROMPT, max_new_tokens=48, ignore_eos=True, **settings) for each in (model, plain))
        assert done.tokens == right.tokens
        drafted = [token for token, origin in zip(done.tokens, done.origins, strict=True) if origin == "it"]
        assert len(drafted) > 3
        assert not any(token % 2 for token in drafted)
    write_trained(tmp_path / "wrong", config, {**whole.tensors, "vocabulary": some.flip(0)})
    with pytest.raises(CheckpointError, match="vocabulary is no list of tokens in order"):
        read_trained(tmp_path / "wrong")


def test_what_is_said_of_lengths_stays(drafter: Path) -> None:
    def budget(options: str, **settings: object) -> Budget:
        model = foretoken.load("stdlib-7m", draft=f"{drafter}{options}", **settings)  # type: ignore[arg-type]
        done = model.generate(PROMPT, max_new_tokens=12, ignore_eos=True, keep_rounds=True)
        assert done.rounds is not None
        return max((each.budgets[0][0] for each in done.rounds if each.budgets), key=lambda its: its.rows)

    assert budget("", pace="fixed") == Budget(5, 5)  # of a block of five
    assert budget(":tokens=3,lookup") == Budget(3, 3)
    its = budget(":k=4:depth=3:shape=best-first,lookup")
    assert (its.depth, its.width) == (3, 4)
    assert budget("", num_speculative_tokens=2) == Budget(2, 2)
    with pytest.raises(DraftSpecError, match="so there is no other pass for 'least' to save; leave it out"):
        foretoken.load("stdlib-7m", draft=f"{drafter}:k=2:shape=best-first:least=0.6")


@pytest.mark.parametrize("options", ["", ":k=4:shape=best-first", ",lookup", ":k=4,lookup"])
def test_the_pace_learns_what_drafts_come_to(drafter: Path, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def price(decoder: Decoder) -> Price:
        """At the beginning it expects that drafts pay, on any machine."""
        return Price({1: 0.001, 64: 0.002} if isinstance(decoder, BlockDecoder) else {1: 1.0, 64: 1.1})

    monkeypatch.setattr(pacing, "first_price", price)
    model = foretoken.load("stdlib-7m", draft=f"{drafter}{options}")
    done = model.generate(PROMPT, max_new_tokens=96, ignore_eos=True, keep_rounds=True)
    assert done.rounds is not None
    assert isinstance(model.pace, AutoPace)
    whole = 10 if "lookup" in options else 5  # as long as a draft may be
    heard = [each for each in done.rounds if each.drafted.get(0) and each.budgets[0][0].longest == whole]
    learned = sum(float(its.yields._rounds.sum()) for its in model.pace._ways.values() if its.yields is not None)
    assert bool(learned) == bool(heard)
    assert heard


def test_only_lookup_may_stand_below_it(drafter: Path) -> None:
    with pytest.raises(DraftSpecError, match="drafts in one pass, which only lookup is fast enough"):
        foretoken.load("stdlib-7m", draft=f"{drafter},stdlib-1m")
