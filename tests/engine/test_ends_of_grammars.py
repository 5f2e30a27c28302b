"""Where a grammar ends, a round ends: within a draft, without a bonus, with the cache as plain decoding has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from foretoken.decoder.caches import Caches
from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.fractal import FractalDrafter
from foretoken.drafters.fractal_published import PublishedFractalDrafter
from foretoken.drafters.nothing import NothingDrafter
from foretoken.drafters.tree import TreeDrafter
from foretoken.loop.engine import Engine
from foretoken.protocol.roles import Drafter
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget, Request, SamplingParams, Turn, Verdict
from foretoken.sampling.sampler import DRAFT_NOISE, TARGET_NOISE, Sampler
from foretoken.verification.local import LocalVerifier
from tests.fakes import Scripted, without_views
from tests.world import VOCABULARY, Snapshot, chain_of, make_world, read, weak_decoder

PROMPT = make_world().plains[0].prompt
Samplers = Callable[[Request], Sampler]


class Until:
    """A grammar of so many tokens, any but 7; it has no end token."""

    def __init__(self, count: int) -> None:
        self._left = count

    @property
    def complete(self) -> bool:
        return self._left <= 0

    def allowed(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.array([not self.complete and token != 7 for token in range(size)])

    def advance(self, token: int) -> None:
        self._left -= 1

    def rewind(self, count: int) -> None:
        self._left += count


def until(count: int, stream: int = TARGET_NOISE) -> Samplers:
    return lambda request: Sampler(request, Until(count), stream)


class Known(Scripted):
    """Says what is coming, whole, and what would come after the end."""

    def guess(self, turn: Turn) -> list[int]:
        position = len(self.texts[turn.sequence])
        return list(self.truth[turn.sequence][position : position + turn.depth])


BUDGETS = {
    "model": chain_of(9),
    "model, known": chain_of(9, 4),
    "tree": [Budget(12, 4, 2)],
}


def drafters(
    count: int, truth: tuple[int, ...], *, caches: Caches | None = None, independent: bool = False
) -> dict[str, Drafter]:
    samplers = until(count, DRAFT_NOISE if independent else TARGET_NOISE)
    poor = weak_decoder(1, noise=0.1)

    def model(inner: Drafter | None = None) -> Drafter:
        return ModelDrafter(
            poor,
            samplers,
            name="model",
            vocab_size=VOCABULARY,
            below=without_views(inner),
            independent=independent,
        )

    return {
        "known, chain": Known({0: truth}, "chain"),
        "known, tree": Known({0: truth}, "tree"),
        "model": model(),
        "model, known": model(Known({0: truth}, "chain")),
        "tree": TreeDrafter(
            poor,
            samplers,
            name="tree",
            vocab_size=VOCABULARY,
            shape="full" if independent else "beam",
            sharpness=1.0,
            independent=independent,
        ),
        "fractal": (PublishedFractalDrafter if independent else FractalDrafter)(
            poor,
            samplers,
            name="fractal",
            vocab_size=VOCABULARY,
            target=make_world().target,
            layers=(0, 2),
            window=9,
            independent=independent,
            views=Caches() if caches is None else caches,
        ),
    }


def run(
    drafter: Drafter,
    count: int,
    temperature: float,
    rule: str = "walk",
    most: int = 50,
    caches: Caches | None = None,
    budgets: Sequence[Budget] = (),
) -> tuple[list[Verdict], list[RoundRecord], str]:
    caches, records = Caches() if caches is None else caches, list[RoundRecord]()
    verifier = LocalVerifier(make_world().target, caches, samplers=until(count), rule=rule)
    engine = Engine(verifier, drafter, budgets=budgets or chain_of(12), recorder=records.append)
    sampling = SamplingParams(temperature=temperature, seed=3)
    verdicts, digest = [], ""
    for (verdict,) in engine.run([Request(0, PROMPT, most, keep_logits=True, sampling=sampling)]):
        verdicts.append(verdict)
        digest = Snapshot(caches[0]).digest_at(caches[0].length)
    return verdicts, records, digest


def tokens_of(verdicts: list[Verdict]) -> list[int]:
    return [token for verdict in verdicts for token in verdict.tokens]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 12])
def test_every_draft_ends_where_plain_decoding_ends(count: int, temperature: float) -> None:
    plain, _, digest = run(NothingDrafter(), count, temperature)
    longer = tokens_of(run(NothingDrafter(), count + 9, temperature)[0])
    assert longer[:count] == tokens_of(plain), "what the drafts say goes on after the end"
    no_bonus = 0
    caches = Caches()
    for name, drafter in drafters(count, (*PROMPT, *longer), caches=caches).items():
        budgets = BUDGETS.get(name, ())
        verdicts, records, its_digest = run(drafter, count, temperature, caches=caches, budgets=budgets)
        assert tokens_of(verdicts) == tokens_of(plain), name
        assert [verdict.finish_reason for verdict in verdicts] == [None] * (len(verdicts) - 1) + ["stop"], name
        assert its_digest == digest, name
        for verdict in verdicts:
            assert verdict.logits is not None
            assert len(verdict.logits) == len(verdict.tokens) == len(verdict.origins)
        no_bonus += len(verdicts[-1].accepted) == len(verdicts[-1].tokens)
        if count > 2:
            assert sum(record.accepted[0] for record in records) > 0, f"{name}: vacuous"
            assert max(record.drafted.get(0, 0) for record in records) <= 12
    assert no_bonus > 0 or count == 1


@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_the_rejection_rule_ends_there_too(count: int) -> None:
    longer = tokens_of(run(NothingDrafter(), count + 9, 0.9)[0])
    caches = Caches()
    for name, drafter in drafters(count, (*PROMPT, *longer), caches=caches, independent=True).items():
        verdicts, _, _ = run(drafter, count, 0.9, "rejection", caches=caches, budgets=BUDGETS.get(name, ()))
        assert len(tokens_of(verdicts)) == count, name
        assert verdicts[-1].finish_reason == "stop"
        assert 7 not in tokens_of(verdicts)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_level_keeps_what_it_had_checked_before_the_end(temperature: float) -> None:
    count = 6
    truth = (*PROMPT, *tokens_of(run(NothingDrafter(), count + 9, temperature)[0]))
    alone, checking = (drafters(count, truth)[name] for name in ("model", "model, known"))
    request = Request(0, PROMPT, 50, sampling=SamplingParams(temperature=temperature, seed=3))
    first = Verdict(0, 0, len(PROMPT), (), (truth[len(PROMPT)],), ("target",))
    drafts = []
    for drafter in (alone, checking):
        drafter.begin([request])
        drafter.observe([first])
        (draft,) = drafter.propose([Turn.of(0, 1, len(PROMPT) + 1, chain_of(9, 4))])
        drafts.append(draft.tokens)
    assert drafts[0] == drafts[1]
    assert len(drafts[0]) == count - 1


def test_the_length_is_told_before_the_end_of_a_grammar_that_comes_later() -> None:
    truth = (*PROMPT, *tokens_of(run(NothingDrafter(), 9, 0.0)[0]))
    for most, count, reason in ((4, 5, "length"), (5, 5, "stop"), (6, 5, "stop")):
        verdicts, _, _ = run(Known({0: truth}, "chain"), count, 0.0, most=most)
        assert tokens_of(verdicts) == list(truth[len(PROMPT) :][: min(most, count)])
        assert verdicts[-1].finish_reason == reason


def test_nothing_is_judged_after_the_end() -> None:
    verifier = LocalVerifier(make_world().target, samplers=until(1))
    (verdict,) = read(verifier, [Request(0, PROMPT, 9)])
    assert verdict.finish_reason == "stop"
    assert len(verdict.tokens) == 1
    digest = verifier.caches[0].digest()
    draft = Turn(0, 1, len(PROMPT) + 1, rows=1, depth=1).chain((5,), "x")
    assert verifier.result(verifier.submit([draft])) == [], "it is passed over"
    assert verifier.caches[0].digest() == digest
