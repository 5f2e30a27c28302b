from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.acceptance.rejection import chance, reject, residual, without
from foretoken.errors import ContractError
from foretoken.protocol.types import Distribution
from tests.chance import Dice, every_run

TARGET = np.array([0.5, 0.3, 0.2, 0.0])
DRAFT = np.array([0.1, 0.6, 0.1, 0.2])


class Judged:
    """One call of `reject` in which every node of the target has one distribution; what was asked is noted."""

    def __init__(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        draft_probs: dict[int, Distribution],
        *,
        target: Distribution = TARGET,
        coins: Sequence[bool] | None = None,
        dice: Dice | None = None,
    ) -> None:
        self._script = iter(coins or ())
        self._target, self._dice = target, dice
        self.tosses: list[tuple[int, float]] = []
        self.asked: list[object] = []
        self.picked_from: list[Distribution] = []

        self.accepted, self.bonus = reject(tokens, parents, draft_probs, self)

    def target_probs(self, node: int) -> Distribution:
        self.asked.append(f"after {node}")
        return self._target

    def coin(self, n: int, probability: float) -> bool:
        self.tosses.append((n, probability))
        return next(self._script) if self._dice is None else self._dice.toss(probability)

    def pick(self, probs: Distribution) -> int:
        self.picked_from.append(probs)
        return int(probs.argmax()) if self._dice is None else self._dice.throw(probs.tolist())

    def accept(self, token: int) -> None:
        self.asked.append(token)


def test_the_acceptance_is_the_ratio_of_the_probabilities_at_most_one() -> None:
    assert [chance(TARGET, DRAFT, token) for token in range(4)] == [1.0, 0.3 / 0.6, 1.0, 0.0]
    assert chance(TARGET, TARGET, 3) == 1.0, "both say never: it cannot have been drawn"
    assert chance(TARGET, np.array([5e-324, 0.0, 0.0, 0.0]), 0) == 1.0


def test_the_residual_is_what_the_target_has_more_of() -> None:
    np.testing.assert_allclose(residual(TARGET, DRAFT), [0.8, 0.0, 0.2, 0.0], rtol=1e-15)
    np.testing.assert_array_equal(residual(TARGET, TARGET), TARGET)  # none is left: only rounding comes here


def test_without_a_token_the_others_share_its_part() -> None:
    np.testing.assert_allclose(without(DRAFT, 1), [0.25, 0.0, 0.25, 0.5], rtol=1e-15)
    np.testing.assert_array_equal(without(np.array([0.0, 1.0]), 1), [0.0, 0.0])
    assert DRAFT[1] == 0.6, "the draft's own distribution stays"


def test_an_empty_draft_gives_a_token_of_the_target() -> None:
    judged = Judged([], [], {})
    assert (judged.accepted, judged.bonus, judged.tosses, judged.asked) == ([], 0, [], ["after -1"])
    np.testing.assert_array_equal(judged.picked_from, [TARGET])


def test_a_chain_that_is_wholly_accepted_ends_in_a_token_of_the_target() -> None:
    judged = Judged([1, 0, 1], [-1, 0, 1], dict.fromkeys(range(-1, 2), DRAFT), coins=[True] * 3)
    assert (judged.accepted, judged.bonus) == ([0, 1, 2], 0)
    assert judged.tosses == [(0, 0.5), (0, 1.0), (0, 0.5)]
    # each token is told before the next distribution is asked for
    assert judged.asked == ["after -1", 1, "after 0", 0, "after 1", 1, "after 2"]
    np.testing.assert_array_equal(judged.picked_from, [TARGET])


def test_a_chain_ends_at_the_first_rejection_with_the_residual() -> None:
    judged = Judged([1, 1, 0], [-1, 0, 1], dict.fromkeys(range(-1, 2), DRAFT), coins=[True, False])
    assert judged.accepted == [0]
    assert judged.asked == ["after -1", 1, "after 0"]
    np.testing.assert_array_equal(judged.picked_from, [residual(TARGET, DRAFT)])


def test_a_second_child_is_judged_by_what_is_left_of_both() -> None:
    target, draft = np.array([0.25, 0.5, 0.25, 0.0]), np.array([0.4, 0.1, 0.2, 0.3])
    judged = Judged([0, 3, 2, 1], [-1, -1, -1, 2], {-1: draft}, target=target, coins=[False, False, True, True])
    left, given = residual(target, draft), without(draft, 0)
    assert left.tolist() == pytest.approx([0.0, 0.4 / 0.45, 0.05 / 0.45, 0.0])
    left, given = residual(left, given), without(given, 3)
    assert judged.accepted == [2, 3]
    assert judged.tosses == [(0, 0.25 / 0.4), (1, 0.0), (2, chance(left, given, 2)), (0, 0.5)]


def test_a_child_that_the_target_never_says_is_never_accepted() -> None:
    runs = every_run(lambda dice: tuple(Judged([3, 0], [-1, -1], {-1: DRAFT}, dice=dice).accepted))
    assert runs == {(1,): pytest.approx(1.0)}
    assert Judged([3], [-1], {}, coins=[False]).tosses == [(0, 0.0)]


def test_a_repeated_child_is_passed_over() -> None:
    once = Judged([1, 2], [-1, -1], {-1: DRAFT}, coins=[False, False])
    twice = Judged([1, 1, 2], [-1, -1, -1], {-1: DRAFT}, coins=[False, False])
    assert [p for _, p in twice.tosses] == [p for _, p in once.tosses]
    assert [which for which, _ in twice.tosses] == [0, 2], "a coin belongs to its child"
    np.testing.assert_array_equal(twice.picked_from, once.picked_from)


def test_certain_children_are_accepted_with_their_probability() -> None:
    judged = Judged([1, 0, 1, 2], [-1, -1, -1, -1], {}, coins=[False, False, False, True])
    assert judged.tosses == [(0, 0.3), (1, pytest.approx(0.5 / 0.7)), (2, 0.0), (3, pytest.approx(1.0))]
    assert judged.accepted == [3]


def test_a_node_may_be_drawn_and_the_next_one_certain() -> None:
    judged = Judged([1, 1], [-1, 0], {-1: DRAFT}, coins=[True, True])
    assert judged.tosses == [(0, 0.5), (0, 0.3)]
    assert judged.accepted == [0, 1]


def test_draft_and_target_the_same_reject_nothing() -> None:
    def run(dice: Dice) -> tuple[int, ...]:
        token = dice.throw(TARGET.tolist())
        return tuple(Judged([token], [-1], {-1: TARGET}, dice=dice).accepted)

    assert every_run(run) == {(0,): pytest.approx(1.0, abs=1e-15)}


def test_a_draft_that_has_fewer_tokens_gives_the_others_no_probability() -> None:
    short, padded = np.array([0.4, 0.6]), np.array([0.4, 0.6, 0.0, 0.0])
    one = Judged([1, 0], [-1, -1], {-1: short}, coins=[False, False])
    other = Judged([1, 0], [-1, -1], {-1: padded}, coins=[False, False])
    assert one.tosses == other.tosses
    assert one.tosses[0] == (0, 0.5)
    np.testing.assert_array_equal(one.picked_from, other.picked_from)


def test_a_draft_that_has_more_tokens_than_the_target_is_refused() -> None:
    with pytest.raises(ContractError, match=r"^draft_probs of node 0 came for 5 tokens; expected at most 4$"):
        Judged([1, 1], [-1, 0], {-1: DRAFT, 0: np.full(5, 0.2)}, coins=[True, True])


@st.composite
def distributions(draw: st.DrawFn, size: int = 4) -> Distribution:
    """Any, often with zeros, sometimes all on one token."""
    parts = draw(st.lists(st.sampled_from([0, 0, 1, 2, 3, 50]), min_size=size, max_size=size).filter(any))
    weights = np.array(parts) * draw(st.lists(st.floats(0.1, 1), min_size=size, max_size=size))
    probs: Distribution = weights / weights.sum()
    return probs


@given(distributions(), distributions(), st.integers(0, 4))
@settings(deadline=None, max_examples=150)
def test_one_node_gives_the_targets_distribution(target: Distribution, draft: Distribution, children: int) -> None:
    def run(dice: Dice) -> tuple[int, bool]:
        tokens, given = [], draft
        for _ in range(min(children, int((draft > 0).sum()))):
            tokens.append(dice.throw(given.tolist()))
            given = without(given, tokens[-1])
        judged = Judged(tokens, [-1] * len(tokens), {-1: draft}, target=target, dice=dice)
        return (tokens[judged.accepted[0]], True) if judged.accepted else (judged.bonus, False)

    total = np.zeros(len(target))
    accepted = 0.0
    # a child that is accepted gains another token, which is not looked at here
    for (token, was_accepted), probability in every_run(run).items():
        total[token] += probability
        accepted += probability * was_accepted
    np.testing.assert_allclose(total, target, rtol=0, atol=1e-12)
    if children == 1:
        assert accepted == pytest.approx(1.0 - np.abs(target - draft).sum() / 2, abs=1e-12)  # 1 - total variation
    if children == 0:
        assert accepted == 0.0


def test_more_children_are_accepted_more_often() -> None:
    """And never as often as if they were chosen with the target's distribution in sight: 1 minus nothing."""

    def accepted(children: int) -> float:
        def run(dice: Dice) -> bool:
            tokens, given = [], DRAFT
            for _ in range(children):
                tokens.append(dice.throw(given.tolist()))
                given = without(given, tokens[-1])
            return bool(Judged(tokens, [-1] * children, {-1: DRAFT}, dice=dice).accepted)

        return every_run(run)[True]

    rates = [accepted(children) for children in (1, 2, 3)]
    assert rates[0] == pytest.approx(0.5)
    assert rates == sorted(rates)
    assert rates[0] + 0.1 < rates[1] < 1.0
    assert rates[2] < 1.0 + 1e-12
