"""The audit finds what plain decoding would not have said, wherever it stands, and nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from foretoken.api.audit import audit
from foretoken.api.checkpoint import Checkpoint
from foretoken.api.model import Model
from foretoken.decoder.caches import Caches
from foretoken.drafters.lookup import LookupDrafter
from foretoken.errors import ContractError, SettingError
from foretoken.protocol.types import Budget, Request, Verdict
from foretoken.results.completion import Audit
from foretoken.settings.generate import GenerateSettings
from foretoken.settings.load import LoadSettings
from foretoken.verification.local import LocalVerifier
from tests.tiny import ARITHMETICS
from tests.world import World, make_world

COUNT = 20


class Flips(LocalVerifier):
    """A verifier with a bug: where a draft was first accepted, it says another token than the best after it."""

    flipped: int | None = None  # its position

    def result(self, ticket: int) -> list[Verdict]:
        verdicts = super().result(ticket)
        for i, verdict in enumerate(verdicts):
            if self.flipped is None and len(verdict.tokens) > 1:
                *accepted, bonus = verdict.tokens
                verdicts[i] = replace(verdict, tokens=(*accepted, (bonus + 1) % self.vocab_size))
                self.flipped = verdict.position + len(verdict.tokens) - 1
        return verdicts


def model_of(world: World, verifier: LocalVerifier) -> Model:
    return Model(
        Checkpoint(world.target, None, "tiny", Path()),
        verifier,
        LookupDrafter(),
        budgets={"test": Budget(5, 5)},
        settings=LoadSettings(),
    )


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_an_honest_generation_is_identical(arithmetic: str) -> None:
    world = make_world(arithmetic)
    caches = Caches()
    model = model_of(world, LocalVerifier(world.target, caches))
    done = model.generate(world.plains[0].prompt, max_new_tokens=COUNT, audit=True)
    assert done.stats.accepted_tokens > 0
    assert done.audit == Audit(True, COUNT)
    assert done.audit.gap is None
    assert done.logits is None
    assert done.stats.draft_tokens > 0, "the statistics are of the generation, not of the audit"
    for sequence in (0, 1):
        with pytest.raises(ContractError):
            caches[sequence]


def test_without_being_asked_nothing_is_audited() -> None:
    world = make_world()
    model = model_of(world, LocalVerifier(world.target))
    assert model.generate(world.plains[0].prompt, max_new_tokens=4).audit is None


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_a_token_that_drafting_changed_is_found_with_its_logits(arithmetic: str) -> None:
    world = make_world(arithmetic)
    plain = world.plains[0]
    caches = Caches()
    verifier = Flips(world.target, caches)
    done = model_of(world, verifier).generate(plain.prompt, max_new_tokens=COUNT, audit=True)
    assert verifier.flipped is not None
    at = verifier.flipped - len(plain.prompt)
    assert done.tokens[:at] == plain.tokens[:at]
    assert done.tokens[at] != plain.tokens[at]
    logit, best = (float(plain.logits[at][tokens[at]]) for tokens in (done.tokens, plain.tokens))
    assert done.audit == Audit(False, at + 1, at, done.tokens[at], plain.tokens[at], logit, best)
    assert done.audit.gap == best - logit > 0
    with pytest.raises(ContractError):  # it ended at the difference, and left nothing behind
        caches[1]


def test_a_difference_is_found_wherever_it_stands() -> None:
    world = make_world()
    plain = world.plains[0]
    verifier = LocalVerifier(world.target)
    for at in range(COUNT):
        other = (plain.tokens[at] + 1) % 500
        found = audit(verifier, Request(9, plain.prompt, 99), (*plain.tokens[:at], other, *plain.tokens[at + 1 :]))
        logits = plain.logits[at]
        assert found == Audit(
            False, at + 1, at, other, plain.tokens[at], float(logits[other]), float(logits[plain.tokens[at]])
        )


def test_an_end_token_that_was_passed_over_is_a_difference() -> None:
    world = make_world()
    plain = world.plains[0]
    request = Request(9, plain.prompt, 99, frozenset([plain.tokens[5]]))
    verifier = LocalVerifier(world.target)
    assert audit(verifier, request, plain.tokens[:6]) == Audit(True, 6)
    found = audit(verifier, request, plain.tokens[:9])
    assert found == Audit(False, 7, 6, plain.tokens[6])
    assert found.gap is None


def test_logits_are_hashed_without_being_kept() -> None:
    world = make_world()
    model = model_of(world, LocalVerifier(world.target))
    hashed = model.generate(world.plains[0].prompt, max_new_tokens=COUNT, hash_logits=True)
    assert hashed.logits is None
    assert hashed.stats.accepted_tokens > 0
    expected = world.plains[0].logits.numpy().astype("<f4").tobytes()
    assert hashed.logits_sha256 == hashlib.sha256(expected).hexdigest()
    assert model.generate(world.plains[0].prompt, max_new_tokens=COUNT).logits_sha256 is None


def test_settings_come_ready_made_or_by_name_but_not_both() -> None:
    world = make_world()
    model = model_of(world, LocalVerifier(world.target))
    ready = GenerateSettings(max_new_tokens=3)
    by_name = model.generate(world.plains[0].prompt, max_new_tokens=3)
    assert model.generate(world.plains[0].prompt, ready).tokens == by_name.tokens
    with pytest.raises(
        SettingError, match=r"^settings came both ready-made and by name \(ignore_eos\); give one of them$"
    ):
        model.stream(world.plains[0].prompt, ready, ignore_eos=True)
