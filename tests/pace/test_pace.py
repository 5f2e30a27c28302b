"""The pace against worlds in which the best length is known: by trying every fixed one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from foretoken.drafters.chain_recipe import RECIPE
from foretoken.drafters.lookup import RECIPE as LOOKUP
from foretoken.drafters.recipe import Expected, Level
from foretoken.drafters.table import CHAIN
from foretoken.formats import format_of
from foretoken.pace.auto import AutoPace
from foretoken.pace.cost import ASSUMED, Moment, PassCost
from foretoken.pace.lengths import best
from foretoken.pace.levels import Paced
from foretoken.pace.thinking import Thinking
from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord, Work
from foretoken.protocol.types import Budget
from tests.paces import LONG

MOST = 24
LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 11, 13, 15, 20, MOST)  # the fixed ones that are tried
SEEDS = (0, 1, 2, 3)
CURVE = Price({1: 64.0, 16: 72.0, 17: 100.0, 32: 130.0})  # milliseconds of a check, with a step
MEASURED = Price({rows: CURVE.of(rows) for rows in (1, 8, 16, 24, 32)})  # as at a start
MEASURED_COPY = Price({1: 19.0, 8: 27.0, 16: 45.0, 32: 80.0})
World = Callable[[int], float]  # the probability of a draft token, by how many tokens there are


def run(
    rate: World,
    draft: float,
    tokens: int,
    lengths: Callable[[], int],
    pace: AutoPace | None,
    seed: int,
    before: float = 0.0,
) -> float:
    """Milliseconds of a text of so many tokens, with a draft that costs `draft` a token, and `before` for each token
    since the last draft."""
    chance = random.Random(seed)
    made, spent, rounds, drafted = 0, 0.0, 0, 0
    while made < tokens:
        count = lengths()
        accepted = 0
        while accepted < count and chance.random() < rate(made):
            accepted += 1
        speed = 1.0 + 0.6 * (made // 300 % 2)  # another program comes and goes
        behind = made - drafted if count else 0
        prepare, drafted = before * behind * speed, made if count else drafted
        propose, check = count * draft * speed, CURVE.of(1 + count) * speed * chance.uniform(0.97, 1.05)
        if pace is not None:
            gained = {0: accepted + 1}
            work = Work("copy", count, rounds, propose / 1e3, count, passes=count, cost={})
            works = (Work("copy", behind, rounds - 0.5, prepare / 1e3, cost={}), work) if before else (work,)
            record = RoundRecord(
                rounds,
                {0: count},
                {0: accepted},
                gained,
                (prepare + propose) / 1e3,
                check / 1e3,
                work={0: works} if count else {},
                budgets={0: (Budget(count, count),)},
            )
            pace.heard(record)
        made += accepted + 1
        spent += prepare + propose + check
        rounds += 1
    return spent


def fixed(rate: World, draft: float, tokens: int, before: float = 0.0) -> dict[int, float]:
    return {
        count: sum(run(rate, draft, tokens, lambda count=count: count, None, seed, before) for seed in SEEDS)
        for count in LENGTHS
    }


GUESS = Expected((0.7,))
COPY = RECIPE.expected(Level("int4", CHAIN, {}, 5, format=format_of("int4"), is_copy=True))


def paced(rate: World, draft: float, tokens: int, before: float = 0.0) -> float:
    spent = 0.0
    for seed in SEEDS:
        moment = Moment()
        cost = PassCost(Price({1: 0.3}), moment) if draft else None
        pace = AutoPace([Paced("copy", Budget(MOST, MOST), True, (0.7,), cost)], PassCost(MEASURED, moment))
        spent += run(rate, draft, tokens, lambda pace=pace: pace.choose([0], LONG)[0][0].rows, pace, seed, before)
    return spent


@pytest.mark.sampled(4)
@pytest.mark.parametrize("draft", [0.0, 2.0, 20.0])
@pytest.mark.parametrize("likely", [0.02, 0.3, 0.6, 0.85, 0.97])
def test_a_text_of_one_kind_is_drafted_nearly_as_well_as_by_the_best_fixed_length(likely: float, draft: float) -> None:
    trials = fixed(lambda made: likely, draft, 2000)
    assert paced(lambda made: likely, draft, 2000) < min(trials.values()) / 0.95


@pytest.mark.parametrize("likely", [0.3, 0.6, 0.85, 0.97])
def test_seconds_before_a_drafts_first_pass_are_not_taken_for_those_of_its_tokens(likely: float) -> None:
    trials = fixed(lambda made: likely, 2.0, 2000, before=6.0)
    assert paced(lambda made: likely, 2.0, 2000, before=6.0) < min(trials.values()) / 0.95


@pytest.mark.parametrize("bad", [200, 600])
def test_what_is_caught_up_with_after_a_bad_stretch_does_not_speak_against_drafting(bad: int) -> None:
    def rate(made: int) -> float:
        return 0.02 if made < bad else 0.6

    assert paced(rate, 5.0, 3000, before=1.4) < min(fixed(rate, 5.0, 3000, before=1.4).values()) / 0.97


@pytest.mark.parametrize(("expected", "kept"), [(COPY, True), (GUESS, False)])
def test_a_copy_whose_first_draft_is_slow_and_refused_is_not_given_up(expected: Expected, kept: bool) -> None:
    moment = Moment()
    copy = Paced("copy", Budget(MOST, MOST), True, expected.shares, PassCost(MEASURED_COPY, moment), expected.weight)
    lookup = Paced("lookup", Budget(MOST, MOST), True, LOOKUP.usual)
    pace = AutoPace([copy, lookup], PassCost(MEASURED, moment))
    count = pace.choose([0], LONG)[0][0].rows
    assert count
    works = tuple(Work("copy", 1, at, 0.020, 1, passes=1, cost={}) for at in range(count))
    work = (replace(works[0], seconds=0.045), *works[1:])  # the first pass touches the weights for the first time
    seconds = sum(each.seconds for each in work)
    record = RoundRecord(
        0, {0: count}, {0: 0}, {0: 1}, seconds, 0.068, work={0: work}, budgets={0: (Budget(count, count), Budget(0, 0))}
    )
    pace.heard(record)
    assert (pace.choose([0], LONG)[0][0].rows > 1) == kept, (
        "what copies were measured to have is doubted later than a guess"
    )


def test_a_text_whose_kind_changes_is_drafted_better_than_by_any_fixed_length() -> None:
    def rate(made: int) -> float:
        return (0.95, 0.2, 0.7, 0.02)[made // 500 % 4]

    assert paced(rate, 15.0, 4000) < min(fixed(rate, 15.0, 4000).values()) / 1.05


def test_drafts_that_cannot_help_cost_next_to_nothing() -> None:
    plain = fixed(lambda made: 0.0, 20.0, 2000)[0]
    assert paced(lambda made: 0.0, 20.0, 2000) < plain / 0.97


def test_several_sequences_share_the_rows_that_cost_little() -> None:
    steep = Price({1: 64.0, 16: 72.0, 32: 150.0, 64: 300.0})

    seconds = np.vectorize(lambda rows, longest: steep.of(rows))
    shares = np.array([0.9**at for at in range(1, 9)])
    one = best([0], shares[None], seconds)
    assert one.lengths == {0: 8}
    many = best(range(8), np.tile(shares, (8, 1)), seconds)
    assert sum(1 + count for count in many.lengths.values()) == 16
    assert max(many.lengths.values()) - min(many.lengths.values()) <= 1
    assert best(range(16), np.tile(shares, (16, 1)), seconds).lengths == dict.fromkeys(range(16), 0)


@pytest.mark.parametrize("shares", [[0.5, 0.5, 0.4], [1.0] * 8, [0.1, 0.0]])
def test_a_step_in_the_costs_does_not_hide_what_lies_behind_it(shares: Sequence[float]) -> None:
    def seconds(rows: int, longest: int) -> float:
        assert rows == 1 + longest
        return {0: 1.0, 1: 2.2, 2: 2.2, 3: 2.3}.get(longest, 2.4)

    found = best([0], np.array([shares]), np.vectorize(seconds))
    rates = [(1 + sum(shares[:count])) / seconds(1 + count, count) for count in range(len(shares) + 1)]
    assert found.tokens / found.seconds == pytest.approx(max(rates))


def test_the_curve_is_learned_and_its_scale_follows_the_machine() -> None:
    cost, chance = PassCost(ASSUMED, Moment()), random.Random(5)
    for turn in range(400):
        rows, slow = chance.choice([1, 2, 5, 9, 13, 17, 20]), 2.0 if turn > 300 else 1.0
        cost.heard(rows, slow * CURVE.of(rows) * chance.uniform(0.97, 1.03))
    for rows in (1, 5, 13, 17, 20):
        assert cost.of(rows) == pytest.approx(2 * CURVE.of(rows), rel=0.08)


def test_where_rounds_are_short_the_pace_computes_in_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    computed, each = 0, 5e-5  # seconds, by a clock on which nothing else takes time

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def its(*args: Any) -> Any:
            nonlocal computed
            computed += 1
            return work(*args)

        return its

    monkeypatch.setattr("foretoken.pace.auto.thread_time", lambda: computed * each)
    for name in ("_plan", "_learn"):
        monkeypatch.setattr(AutoPace, name, counted(getattr(AutoPace, name)))
    pace = AutoPace([Paced("lookup", Budget(MOST, MOST), True, (0.5,))], PassCost(MEASURED, Moment()))
    taken, short = 0.0, 2e-4
    for turn in range(4000):
        count = pace.choose([0], LONG)[0][0].rows
        assert turn < 100 or count > 3, "what was learned is still used"
        record = RoundRecord(
            turn, {0: count}, {0: count}, {0: count + 1}, 0.0, short, budgets={0: (Budget(count, count),)}
        )
        pace.heard(record)
        taken += short
        if turn == 32:
            begun = computed
            assert computed > 60, "at the beginning it computes in every round"
    assert 0 < each * (computed - begun) < 0.011 * taken


def test_what_was_saved_for_other_texts_long_ago_pays_for_no_choosing_today() -> None:
    thinking, each = Thinking(), 0.0018  # seconds, 1.8 % of a round

    def chosen(rounds: int, saved: float) -> int:
        count = 0
        for _ in range(rounds):
            if not thinking.in_haste:
                thinking.took(each)
                count += 1
            thinking.heard(0.1, saved)
        return count

    assert chosen(1000, saved=0.1) == 1000, "drafts save as much as passes take, so choosing may take 2 %"
    chosen(200, saved=0.0)
    assert 0.9 < chosen(1000, saved=0.0) * each < 1.02, "1 % of 100 seconds"
