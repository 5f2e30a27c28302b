"""Both rules on a target that is a table: what comes out has the target's distribution, whatever drafts.

The rejection rule is enumerated: every draft that can be drawn, every coin, every residual draw, each with its exact
probability. The walk throws real dice: seed for seed it must say what plain decoding says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pytest
import torch

from foretoken.acceptance.rejection import reject, without
from foretoken.acceptance.walk import walk
from foretoken.protocol.types import Distribution, Request, SamplingParams
from foretoken.sampling.sampler import Sampler
from tests.chance import Dice, assert_drawn_from, every_run
from tests.oracles import path_to, sampled_distribution

VOCABULARY, STEPS = 4, 3
START = (3, 0)
Context = tuple[int, ...]  # what a next token depends on: the last two
Table = Callable[[Context], torch.Tensor]  # logits after a context
PARAMS = {
    "temperature 0.7": SamplingParams(0.7),
    "temperature 1.0": SamplingParams(1.0),
    "top-k 2": SamplingParams(1.0, top_k=2),
    "top-p 0.8": SamplingParams(0.7, top_p=0.8),
}


def table(seed: int, scale: float) -> torch.Tensor:
    return scale * torch.randn(VOCABULARY, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))


TARGET = table(1, 1.5)
DRAFTS = {
    "good": TARGET + table(2, 0.5),
    "useless": torch.zeros_like(TARGET),
    "lying": -TARGET + table(3, 1.0),  # sure of what the target would hardly say
}


@cache
def probs_after(context: Context, draft: str | None, params: SamplingParams) -> Distribution:
    """What the library takes for the distribution of the target, or of a draft."""
    logits = (TARGET if draft is None else DRAFTS[draft])[context]
    probs = Sampler(Request(0, START, STEPS, sampling=params)).probabilities(logits)
    assert probs is not None
    return probs


def true_distribution(params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Of all texts of three tokens, from the table and the plain definition of sampling."""
    total: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(STEPS):
        longer: dict[tuple[int, ...], float] = {}
        for said, probability in total.items():
            row = TARGET[(*START, *said)[-2:]]
            for token, p in enumerate(sampled_distribution(row.tolist(), params).tolist()):
                longer[*said, token] = probability * p
        total = longer
    return total


@dataclass
class Drawn:
    """A draft, and from what the children of its nodes were drawn."""

    tokens: list[int]
    parents: list[int]
    probs: dict[int, Distribution]

    def context(self, start: Context, node: int) -> Context:
        return (*start, *(self.tokens[i] for i in path_to(node, self.parents)))[-2:]


Former = Callable[[Dice, Context, int], Drawn]  # draws a draft after a context, with so many tokens left to say
Claim = Callable[[Distribution], "Distribution | None"]  # what a drafter says that it draws from


def honest(probs: Distribution) -> Distribution:
    return probs


def tree(
    dice: Dice, start: Context, left: int, *, draft: str, params: SamplingParams, depth: int, width: int, claim: Claim
) -> Drawn:
    """`width` children of every node, without replacement, as far as the distribution goes. A chain is a tree, too."""
    drawn = Drawn([], [], {})
    levels = [-1]
    for _ in range(depth):
        below = []
        for node in levels:
            given = probs_after(drawn.context(start, node), draft, params)
            said = claim(given)
            if said is not None:
                drawn.probs[node] = said
            for _ in range(width):
                if given.sum() > 0.0:
                    token = dice.throw(given.tolist())
                    below.append(len(drawn.tokens))
                    drawn.tokens.append(token)
                    drawn.parents.append(node)
                    given = without(given, token)
        levels = below
    return drawn


def chain_of(length: int, draft: str, params: SamplingParams, claim: Claim = honest) -> Former:
    # the last round's chain may be longer than what is left: what is beyond is cut off, as the engine does
    return partial(tree, draft=draft, params=params, depth=length, width=1, claim=claim)


def tree_of(depth: int, width: int, draft: str, params: SamplingParams, claim: Claim = honest) -> Former:
    def form(dice: Dice, start: Context, left: int) -> Drawn:
        return tree(dice, start, left, draft=draft, params=params, depth=min(depth, left - 1), width=width, claim=claim)

    return form


def distribution_of_rejection(
    form: Former, params: SamplingParams, events: Counter[str] | None = None
) -> dict[tuple[int, ...], float]:
    """Of all texts of three tokens, by the rejection rule: exactly. `events` counts runs, not probabilities."""

    def one_round(dice: Dice, start: Context, left: int) -> tuple[int, ...]:
        drawn = form(dice, start, left)

        class Rejecting:
            def target_probs(self, node: int) -> Distribution:
                return probs_after(drawn.context(start, node), None, params)

            def coin(self, n: int, probability: float) -> bool:
                accepted = dice.toss(probability)
                if events is not None:
                    events["accepted" if accepted else "rejected"] += 1
                return accepted

            def pick(self, probs: Distribution) -> int:
                return dice.throw(probs.tolist())

            def accept(self, token: int) -> None:
                pass

        accepted, bonus = reject(drawn.tokens, drawn.parents, drawn.probs, Rejecting())
        if events is not None and drawn.tokens and accepted and accepted[-1] == len(drawn.tokens) - 1:
            events["accepted to the end"] += 1
        return (*(drawn.tokens[i] for i in accepted), bonus)[:left]

    @cache
    def said_after(start: Context, left: int) -> dict[tuple[int, ...], float]:
        total: dict[tuple[int, ...], float] = {}
        for gained, p in every_run(lambda dice: one_round(dice, start, left)).items():
            rest = said_after((*start, *gained)[-2:], left - len(gained)) if left > len(gained) else {(): 1.0}
            for more, q in rest.items():
                total[gained + more] = total.get(gained + more, 0.0) + p * q
        return total

    return said_after(START, STEPS)


def distance(one: dict[tuple[int, ...], float], other: dict[tuple[int, ...], float]) -> float:
    return max(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in one.keys() | other.keys())


def test_the_truth_is_not_trivial() -> None:
    for params in PARAMS.values():
        truth = true_distribution(params)
        assert sum(truth.values()) == pytest.approx(1.0, abs=1e-12)
        assert max(truth.values()) < 0.5
        assert len([text for text, p in truth.items() if p > 0.0]) >= 8


def forms(draft: str, params: SamplingParams) -> Iterator[tuple[str, Former]]:
    for length in (1, 2, 3):
        yield f"chain of {length}", chain_of(length, draft, params)
    yield "tree of depth 2", tree_of(2, 2, draft, params)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("name", PARAMS)
def test_the_rejection_rule_keeps_the_distribution(name: str, draft: str) -> None:
    params = PARAMS[name]
    truth = true_distribution(params)
    for form_name, form in forms(draft, params):
        events: Counter[str] = Counter()
        got = distribution_of_rejection(form, params, events)
        assert distance(got, truth) < 1e-12, form_name
        assert min(events["accepted"], events["rejected"]) > 0, (form_name, events)
        assert events["accepted to the end"] > 0 or draft == "lying", (form_name, events)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_children_that_were_certain_keep_the_distribution(width: int) -> None:
    """A drafter without dice, which names no distributions: its likeliest tokens, one of them twice."""

    def form(dice: Dice, start: Context, left: int) -> Drawn:
        drawn = Drawn([], [], {})
        for node in (-1, 0):
            best = (-DRAFTS["good"][drawn.context(start, node)]).argsort().tolist()[:width]
            best.insert(1, best[0])
            drawn.tokens += best
            drawn.parents += [node] * len(best)
        return drawn

    for params in PARAMS.values():
        events: Counter[str] = Counter()
        got = distribution_of_rejection(form, params, events)
        assert distance(got, true_distribution(params)) < 1e-12
        assert min(events["accepted"], events["rejected"]) > 0


def test_children_said_to_be_impossible_are_as_if_they_were_not_there() -> None:
    params = PARAMS["temperature 1.0"]

    def none_of_it(probs: Distribution) -> Distribution:
        return np.zeros(VOCABULARY)

    events: Counter[str] = Counter()
    got = distribution_of_rejection(tree_of(2, 2, "lying", params, none_of_it), params, events)
    assert distance(got, true_distribution(params)) < 1e-12
    assert not events


def test_a_draft_that_knows_fewer_tokens_keeps_the_distribution() -> None:
    params = PARAMS["top-k 2"]

    def first_three(probs: Distribution) -> Distribution:
        return probs[:3]

    def form(dice: Dice, start: Context, left: int) -> Drawn:
        given = without(probs_after(start, "good", params), 3)
        return Drawn([dice.throw(given.tolist())] if given.sum() else [], [-1] if given.sum() else [], {-1: given[:3]})

    events: Counter[str] = Counter()
    got = distribution_of_rejection(form, params, events)
    assert distance(got, true_distribution(params)) < 1e-12
    assert min(events["accepted"], events["rejected"]) > 0


def test_a_draft_that_keeps_its_distribution_to_itself_is_judged_rightly() -> None:
    # a child that was drawn is certain for who does not know from what
    params = PARAMS["top-p 0.8"]
    events: Counter[str] = Counter()
    got = distribution_of_rejection(tree_of(2, 2, "good", params, lambda probs: None), params, events)
    assert distance(got, true_distribution(params)) < 1e-12
    assert min(events["accepted"], events["rejected"]) > 0


def two_children(dice: Dice, given: Distribution, *, replaced: bool = False) -> list[int]:
    first = dice.throw(given.tolist())
    return [first, dice.throw((given if replaced else without(given, first)).tolist())]


def test_children_drawn_with_replacement_keep_the_distribution() -> None:
    """A second child that is not the first was drawn as if without replacement; one that is, is passed over."""
    params = PARAMS["temperature 1.0"]

    def form(dice: Dice, start: Context, left: int) -> Drawn:
        given = probs_after(start, "good", params)
        return Drawn(two_children(dice, given, replaced=True), [-1, -1], {-1: given})

    assert distance(distribution_of_rejection(form, params), true_distribution(params)) < 1e-12


def lie(dice: Dice, given: Distribution) -> Drawn:
    return Drawn(two_children(dice, given), [-1, -1], {-1: np.full(VOCABULARY, 0.25)})


def sort(dice: Dice, given: Distribution) -> Drawn:
    return Drawn(sorted(two_children(dice, given)), [-1, -1], {-1: given})


def choose_what_to_send(dice: Dice, given: Distribution) -> Drawn:
    tokens = [token for token in two_children(dice, given) if token != 2]
    return Drawn(tokens, [-1] * len(tokens), {-1: given})


@pytest.mark.parametrize("cheat", [lie, sort, choose_what_to_send])
def test_what_a_dishonest_draft_changes_is_seen(cheat: Callable[[Dice, Distribution], Drawn]) -> None:
    """That these tests can fail: what the rejection rule has to believe, and is not so."""
    params = PARAMS["temperature 1.0"]

    def form(dice: Dice, start: Context, left: int) -> Drawn:
        return cheat(dice, probs_after(start, "good", params))

    assert distance(distribution_of_rejection(form, params), true_distribution(params)) > 1e-3


# the walk: the same tokens, seed for seed

SEEDS = 900


def guesses(start: Context, sampler: Sampler, draft: torch.Tensor, depth: int, width: int) -> Drawn:
    """A drafter that adds the target's seeded noise to its own logits, as `drafters/tree.py` does."""
    drawn = Drawn([], [], {})
    levels = [-1]
    for _ in range(depth):
        below: list[int] = []
        for node in levels:
            step = sampler.step
            sampler.advance(drawn.tokens[i] for i in path_to(node, drawn.parents))
            ranked = sampler.rank(draft[drawn.context(start, node)], width)
            sampler.rewind(step)
            assert ranked is not None
            below += range(len(drawn.tokens), len(drawn.tokens) + len(ranked[0]))
            drawn.tokens += ranked[0]
            drawn.parents += [node] * len(ranked[0])
        levels = below
    return drawn


def walked(params: SamplingParams, draw: Callable[[Sequence[int]], Drawn], events: Counter[str]) -> tuple[int, ...]:
    """Three tokens by the walk."""
    sampler = Sampler(Request(0, START, STEPS, sampling=params))
    said: list[int] = []
    while len(said) < STEPS:
        start: Context = (*START, *said)[-2:]
        drawn = draw(said)

        def choose(node: int, start: Context = start, drawn: Drawn = drawn) -> int:
            token = sampler.choose(TARGET[drawn.context(start, node)])
            assert token is not None
            sampler.advance([token])
            return token

        accepted, bonus = walk(drawn.tokens, drawn.parents, choose)
        events["accepted"] += len(accepted)
        events["rejected"] += bool(drawn.tokens) and accepted[-1:] != [len(drawn.tokens) - 1]
        said += [*(drawn.tokens[i] for i in accepted), bonus]
    return tuple(said[:STEPS])


@pytest.mark.parametrize("name", PARAMS)
def test_the_walk_says_what_plain_decoding_says_and_that_is_the_targets_distribution(name: str) -> None:
    params = PARAMS[name]
    shapes = [(draft, depth, width) for draft in DRAFTS for depth, width in ((1, 1), (3, 1), (2, 2))]
    events: dict[str, Counter[str]] = {draft: Counter() for draft in DRAFTS}
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(SEEDS):
        thrown = SamplingParams(params.temperature, params.top_k, params.top_p, seed=seed)
        draft, depth, width = shapes[seed % len(shapes)]

        def draw(
            said: Sequence[int],
            thrown: SamplingParams = thrown,
            draft: str = draft,
            depth: int = depth,
            width: int = width,
        ) -> Drawn:
            sampler = Sampler(Request(0, START, STEPS, sampling=thrown))
            sampler.advance(said)
            return guesses((*START, *said)[-2:], sampler, DRAFTS[draft], depth, width)

        got = walked(thrown, draw, events[draft])
        assert got == walked(thrown, lambda said: Drawn([], [], {}), Counter()), (seed, draft, depth, width)
        counts[got] += 1
    assert_drawn_from(counts, true_distribution(params))
    for draft, happened in events.items():
        assert min(happened["accepted"], happened["rejected"]) > 0, (draft, happened)


def test_a_draft_that_cheats_changes_nothing_under_the_walk() -> None:
    """One that knows the target's choices, and leaves some out by what they are."""
    params, events = PARAMS["temperature 1.0"], Counter[str]()
    for seed in range(200):
        thrown = SamplingParams(params.temperature, seed=seed)
        plain = walked(thrown, lambda said: Drawn([], [], {}), Counter())

        def draw(said: Sequence[int], plain: tuple[int, ...] = plain) -> Drawn:
            rest = [token if token != 2 else 1 for token in plain[len(said) :]]  # never says 2
            return Drawn([*rest, *rest], [*range(-1, len(rest) - 1), *([-1] * len(rest))], {})

        assert walked(thrown, draw, events) == plain
    assert min(events["accepted"], events["rejected"]) > 0
