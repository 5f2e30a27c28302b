from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.drafters.reading import log_probs
from foretoken.errors import ContractError, GrammarError
from foretoken.protocol.types import Request, SamplingParams
from foretoken.sampling.sampler import DRAFT_NOISE, Constraint, Sampler
from tests.chance import assert_drawn_from
from tests.oracles import edited_logits, first_largest, sampled_distribution

VOCABULARY = 6
PROMPT = (1, 4)
ROW = torch.tensor([0.3, -1.0, 1.2, 0.9, -0.4, 1.1])
OTHER = torch.tensor([1.0, -0.5, 0.2, 1.2, 0.4, -1.1])
SEEDS = 4000


class Unlike:
    """A grammar: no token follows itself, and after `last` tokens nothing does."""

    def __init__(self, last: int = 10**9) -> None:
        self.tokens: list[int] = []
        self.last = last

    @property
    def complete(self) -> bool:
        return len(self.tokens) >= self.last

    def allowed(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        allowed = np.full(size, len(self.tokens) < self.last)
        if self.tokens:
            allowed[self.tokens[-1]] = False
        return allowed

    def advance(self, token: int) -> None:
        assert self.allowed(VOCABULARY)[token]
        self.tokens.append(token)

    def rewind(self, count: int) -> None:
        assert 0 < count <= len(self.tokens)
        del self.tokens[-count:]


def sampler(
    params: SamplingParams,
    tokens: tuple[int, ...] = (),
    *,
    seed: int | None = None,
    completion: int = 0,
    constraint: Constraint | None = None,
    stream: int | None = None,
) -> Sampler:
    params = params if seed is None else replace(params, seed=seed)
    request = Request(0, PROMPT, 99, sampling=params, completion=completion)
    made = Sampler(request, constraint) if stream is None else Sampler(request, constraint, stream)
    made.advance(tokens)
    return made


def probabilities(made: Sampler, row: torch.Tensor = ROW) -> list[float]:
    probs = made.probabilities(row)
    assert probs is not None
    return [float(p) for p in probs]


def choice(made: Sampler, row: torch.Tensor = ROW) -> int:
    token = made.choose(row)
    assert token is not None
    return token


def ranked(made: Sampler, count: int, row: torch.Tensor = ROW) -> list[int]:
    result = made.rank(row, count)
    assert result is not None
    return result[0]


WARM = SamplingParams(temperature=0.8)
PENALISED = SamplingParams(
    temperature=0.8, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, logit_bias=((3, 1.0),)
)
CUT = SamplingParams(temperature=1.3, top_k=5, top_p=0.9, min_p=0.05)


# a choice is a function of what came before


@given(
    st.sampled_from([SamplingParams(), WARM, PENALISED, replace(PENALISED, temperature=0.0), CUT]),
    st.booleans(),
    st.lists(st.one_of(st.lists(st.integers(0, VOCABULARY - 1), max_size=4), st.floats(0, 1)), max_size=8),
)
@settings(deadline=None, max_examples=150)
def test_any_way_to_a_history_gives_the_choices_of_that_history(
    params: SamplingParams, constrained: bool, moves: list[list[int] | float]
) -> None:
    travelled = sampler(params, constraint=Unlike() if constrained else None)
    tokens: list[int] = []
    for move in moves:
        if isinstance(move, float):  # back by this part
            step = int(move * len(tokens))
            travelled.rewind(step)
            del tokens[step:]
            continue
        for token in move:
            if not (constrained and tokens[-1:] == [token]):
                travelled.advance([token])
                tokens.append(token)
    fresh = sampler(params, tuple(tokens), constraint=Unlike() if constrained else None)
    assert travelled.step == fresh.step == len(tokens)
    for row in (ROW, OTHER):
        assert travelled.choose(row) == fresh.choose(row)
        assert travelled.rank(row, 3) == fresh.rank(row, 3)
        assert probabilities(travelled, row) == probabilities(fresh, row)
    for which in range(3):
        assert travelled.coin(which, 0.5) == fresh.coin(which, 0.5)
    assert travelled.pick(np.full(9, 1 / 9)) == fresh.pick(np.full(9, 1 / 9))


def test_asking_changes_nothing() -> None:
    made = sampler(PENALISED, (2,), constraint=Unlike())
    before = ROW.clone()
    first = (made.choose(ROW), made.rank(ROW, 4), probabilities(made), made.coin(0, 0.5), made.pick(np.ones(6) / 6))
    assert first == (
        made.choose(ROW), made.rank(ROW, 4), probabilities(made), made.coin(0, 0.5), made.pick(np.ones(6) / 6)
    )  # fmt: skip
    assert made.step == 1
    assert torch.equal(ROW, before), "the target's logits are not edited in place"


@pytest.mark.parametrize("step", [-1, 3])
def test_a_rewind_to_where_it_has_not_been_is_refused(step: int) -> None:
    made = sampler(WARM, (2, 3))
    with pytest.raises(ContractError, match=f"^cannot rewind to step {step}; expected 0 to 2$"):
        made.rewind(step)
    assert made.step == 2


# greedy


@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, -3.0, float("-inf")]), min_size=1, max_size=8).filter(
        lambda row: max(row) > float("-inf")
    ),
    st.lists(st.integers(0, 7), max_size=4),
    st.sampled_from([SamplingParams(), replace(PENALISED, temperature=0.0)]),
)
@settings(deadline=None, max_examples=200)
def test_greedy_takes_the_first_of_the_largest_edited_logits(
    row: list[float], output: list[int], params: SamplingParams
) -> None:
    made = sampler(params, tuple(output))
    expected = first_largest(edited_logits(row, PROMPT, output, params))
    assert made.choose(torch.tensor(row)) == expected
    assert [i for i, p in enumerate(probabilities(made, torch.tensor(row))) if p] == [expected]


def test_greedy_throws_no_dice() -> None:
    flat = torch.zeros(VOCABULARY)
    assert {sampler(SamplingParams(), (0,) * step, seed=seed).choose(flat) for seed in range(9) for step in (0, 1)} == {
        0
    }


def test_plain_means_that_the_largest_logit_is_the_choice() -> None:
    assert sampler(SamplingParams()).plain
    assert sampler(SamplingParams(top_k=3, top_p=0.5, min_p=0.1, seed=5)).plain, "what cuts is for sampling"
    edits: list[dict[str, Any]] = [
        {"repetition_penalty": 1.1},
        {"presence_penalty": -0.1},
        {"frequency_penalty": 0.1},
        {"logit_bias": ((1, 0.0),)},
        {"temperature": 0.1},
    ]
    assert not any(sampler(SamplingParams(**edit)).plain for edit in edits)
    assert not sampler(SamplingParams(), constraint=Unlike()).plain
    assert sampler(SamplingParams()).greedy
    assert not sampler(WARM).greedy


# NaN, and nothing left


@pytest.mark.parametrize("params", [SamplingParams(), WARM, PENALISED, CUT, replace(PENALISED, temperature=0.0)])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [0, 3, 5])
@pytest.mark.parametrize("constrained", [False, True])
def test_broken_logits_give_no_token(params: SamplingParams, broken: float, at: int, constrained: bool) -> None:
    # token 3 was the last one, so the grammar forbids it: that must not hide that the weights are broken
    made = sampler(params, (3,), constraint=Unlike() if constrained else None)
    row = ROW.clone()
    row[at] = broken
    assert made.choose(row) is None
    assert made.rank(row, 2) is None
    assert made.probabilities(row) is None


@pytest.mark.parametrize("params", [SamplingParams(), WARM, PENALISED, CUT])
def test_nothing_left_to_choose_is_an_error_of_the_grammar(params: SamplingParams) -> None:
    made = sampler(params, (3,), constraint=Unlike(last=1))
    assert made.rank(ROW, 2) == ([], [])
    with pytest.raises(GrammarError, match="no token may come next"):
        made.choose(ROW)
    with pytest.raises(GrammarError, match="no token may come next"):
        made.probabilities(ROW)


# constraints


@pytest.mark.parametrize("params", [SamplingParams(), WARM, PENALISED, CUT])
def test_a_constraint_is_asked_after_edits_and_before_the_cuts(params: SamplingParams) -> None:
    best = int(ROW.argmax())
    made = sampler(params, (best,), constraint=Unlike())
    probs = probabilities(made)
    assert probs[best] == 0.0
    edited = edited_logits(ROW.tolist(), PROMPT, (best,), params)
    edited[best] = float("-inf")
    if not made.greedy:  # what the cuts keep is counted among the tokens that are allowed
        np.testing.assert_allclose(probs, sampled_distribution(edited, params), rtol=1e-12)
    assert made.choose(ROW) != best
    assert best not in ranked(made, VOCABULARY)


# dice


def test_top_k_beyond_the_vocabulary_cuts_nothing() -> None:
    for top_k in (VOCABULARY, VOCABULARY + 1, 2**31):
        assert probabilities(sampler(replace(WARM, top_k=top_k))) == probabilities(sampler(WARM))
        assert len(ranked(sampler(replace(WARM, top_k=top_k)), 99)) == VOCABULARY
    assert len(ranked(sampler(replace(WARM, top_k=2)), 99)) == 2


@pytest.mark.parametrize("params", [WARM, PENALISED, CUT, SamplingParams(temperature=0.3, top_k=3)])
def test_probabilities_are_the_distribution_of_choices(params: SamplingParams) -> None:
    probs = probabilities(sampler(params, (2, 2)))
    edited = edited_logits(ROW.tolist(), PROMPT, (2, 2), params)
    np.testing.assert_allclose(probs, sampled_distribution(edited, params), rtol=1e-12, atol=0)
    assert abs(sum(probs) - 1.0) < 1e-12
    counts = Counter(choice(sampler(params, (2, 2), seed=seed)) for seed in range(SEEDS))
    assert_drawn_from(counts, dict(enumerate(probs)))


def test_steps_throw_as_freely_as_seeds() -> None:
    made = sampler(replace(WARM, seed=2**64 - 1))
    counts: Counter[tuple[int, int]] = Counter()
    last = choice(made)
    for _ in range(SEEDS):
        made.advance([0])
        token = choice(made)
        counts[last, token] += 1
        last = token
    probs = probabilities(made)
    assert_drawn_from(counts, {(a, b): probs[a] * probs[b] for a in range(6) for b in range(6)})


def test_ranked_tokens_are_drawn_without_replacement() -> None:
    params = replace(WARM, top_k=4)
    probs = probabilities(sampler(params))
    counts: Counter[tuple[int, ...]] = Counter(tuple(ranked(sampler(params, seed=seed), 2)) for seed in range(SEEDS))
    pairs: dict[tuple[int, ...], float] = {
        (a, b): probs[a] * probs[b] / (1 - probs[a]) for a in range(6) for b in range(6) if a != b
    }
    assert_drawn_from(counts, pairs)


def test_the_first_of_the_ranked_is_the_choice() -> None:
    for seed in range(50):
        made = sampler(CUT, seed=seed)
        tokens, scores = made.rank(ROW, 5) or ([], [])
        assert tokens[0] == made.choose(ROW)
        assert scores == sorted(scores, reverse=True)


def test_draft_and_target_throw_the_same_dice() -> None:
    """Of two distributions p and q, sampled with the same dice, the choices agree with probability
    sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) (Daliri, Musco and Suresh 2024); with dice of their own, sum_i p_i q_i."""
    p, q = np.array(probabilities(sampler(WARM))), np.array(probabilities(sampler(WARM), OTHER))
    same = float(sum(1 / np.maximum(p / p[i], q / q[i]).sum() for i in range(VOCABULARY)))
    apart = float((p * q).sum())
    assert same > apart + 0.2
    for stream, expected in ((None, same), (DRAFT_NOISE, apart)):
        counts = Counter(
            sampler(WARM, seed=seed).choose(ROW) == sampler(WARM, seed=seed, stream=stream).choose(OTHER)
            for seed in range(SEEDS)
        )
        assert_drawn_from(counts, {True: expected, False: 1 - expected})


def test_all_dice_of_one_step_are_independent() -> None:
    """The target's choice, the draft's, both coins and the residual's: together as likely as each alone."""
    params = SamplingParams(temperature=1.0, top_k=2)
    row = torch.tensor([1.2, 1.0, -1.0])  # tokens 0 and 1, whose numbers the coins have, too
    residual = np.array([0.25, 0.0, 0.75])
    probs = probabilities(sampler(params), row)
    counts: Counter[tuple[Any, ...]] = Counter()
    for seed in range(SEEDS):
        made, draft = sampler(params, seed=seed), sampler(params, seed=seed, stream=DRAFT_NOISE)
        outcome = made.choose(row), draft.choose(row), made.coin(0, 0.5), made.coin(1, 0.3), made.pick(residual)
        counts[outcome] += 1
    assert_drawn_from(
        counts,
        {
            (a, b, c, d, e): probs[a] * probs[b] * 0.5 * (0.3 if d else 0.7) * residual[e]
            for a in (0, 1)
            for b in (0, 1)
            for c in (True, False)
            for d in (True, False)
            for e in (0, 2)
        },
    )


def test_completions_throw_dice_of_their_own() -> None:
    probs = probabilities(sampler(WARM))
    counts = Counter(
        (choice(sampler(WARM, seed=seed)), choice(sampler(WARM, seed=seed, completion=1))) for seed in range(SEEDS)
    )
    assert_drawn_from(counts, {(a, b): probs[a] * probs[b] for a in range(6) for b in range(6)})


def test_a_coin_is_right_at_the_ends() -> None:
    for seed in range(200):
        made = sampler(WARM, seed=seed)
        assert made.coin(0, 1.0)
        assert not made.coin(0, 0.0)
        assert made.coin(0, 0.6) or not made.coin(0, 0.5), "one number is thrown, whatever it is compared with"


def test_a_pick_never_takes_what_has_no_probability() -> None:
    sparse = np.array([0.0, 0.0, 1e-300, 0.0, 1.0, 0.0])
    assert {sampler(WARM, seed=seed).pick(sparse) for seed in range(200)} == {4}
    assert {sampler(WARM, seed=seed).pick(np.array([0.0, 1e-300])) for seed in range(20)} == {1}
    one = np.zeros(9)
    one[8] = 1.0 - 1e-16  # sums that are not quite 1
    assert sampler(WARM).pick(one) == 8


def test_greedy_scores_become_probabilities_of_the_whole_vocabulary() -> None:
    sampler = Sampler(Request(0, PROMPT, SamplingParams(repetition_penalty=1.3)), Unlike())
    sampler.advance([2])
    ranked = sampler.rank(ROW, 3)
    assert ranked is not None
    tokens, scores = ranked
    edited = torch.from_numpy(sampler.edited(ROW))
    assert edited[2] == -float("inf"), "no token follows itself"
    for temperature in (0.2, 1.0):
        found = log_probs(scores, temperature, sampler.log_total(ROW, temperature))
        assert found == pytest.approx(torch.log_softmax(edited / temperature, 0)[tokens].tolist(), abs=1e-5)
        among = torch.log_softmax(torch.tensor(scores) / temperature, 0).tolist()
        assert log_probs(scores, temperature) == pytest.approx(among, abs=1e-5)
        assert sum(map(math.exp, found)) < 1
