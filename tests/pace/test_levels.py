"""How the levels below the first one draft: against drafts whose worth is known."""

from __future__ import annotations

import random

import numpy as np
import pytest

from foretoken.pace.acceptance import Acceptance
from foretoken.pace.auto import AutoPace
from foretoken.pace.cost import Moment, PassCost
from foretoken.pace.levels import Levels, Paced
from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord, Work
from foretoken.protocol.types import Budget
from tests.paces import LONG

COPY = Price({1: 0.3, 4: 0.31, 8: 0.4, 16: 0.7, 32: 1.4})
MOST = Budget(32, 32)


def ladder(free: bool = True) -> list[Paced]:
    return [
        Paced("mxfp4", MOST, True, (0.7,), PassCost(COPY, Moment())),
        Paced("lookup", MOST if free else Budget(3, 3), free, (0.4,)),
    ]


def taught(levels: Levels, likely: float, rounds: int = 200) -> Levels:
    """Levels that have seen drafts of the lower level, of whose tokens a share is accepted."""
    chance = random.Random(3)
    for _ in range(rounds):
        allowed = (9, levels.inner(0, [0]).below[0].rows)
        made, works = 0, []
        while made < allowed[0]:
            most = min(allowed[1], allowed[0] - made - 1)
            right = 0
            while right < most and chance.random() < likely:
                right += 1
            seconds = COPY.of(1 + most)
            works.append(Work("mxfp4", 1 + most, float(made), seconds, right + 1, most, right, passes=1))
            made += right + 1
        levels.heard({0: works}, {0: allowed})
    return levels


@pytest.mark.parametrize(("likely", "least", "most"), [(0.0, 0, 0), (0.5, 2, 4), (0.95, 6, 16)])
def test_the_level_below_drafts_as_much_as_its_tokens_are_worth(likely: float, least: int, most: int) -> None:
    levels = taught(Levels(ladder()), likely)
    found = levels.inner(0, [0])
    assert least <= found.below[0].rows <= most
    alone = COPY.of(1)
    assert found.seconds == pytest.approx(alone) if likely == 0 else found.seconds < 0.8 * alone


def test_a_level_that_seldom_proposes_anything_costs_only_what_it_proposes() -> None:
    """Lookup often finds nothing. If what it finds is right, it may draft much."""
    levels, chance = Levels(ladder()), random.Random(3)
    for _ in range(600):
        allowed = (9, levels.inner(0, [0]).below[0].rows)
        made, works = 0, []
        while made < allowed[0]:
            most = min(allowed[1], allowed[0] - made - 1) if chance.random() < 0.1 else 0
            works.append(Work("mxfp4", 1 + most, float(made), COPY.of(1 + most), most + 1, most, most, passes=1))
            made += most + 1
        levels.heard({0: works}, {0: allowed})
    assert levels.inner(0, [0]).below[0].rows >= 8


def test_a_draft_that_takes_one_pass_costs_the_same_at_each_length() -> None:
    block = Paced("block", Budget(7, 7), True, (0.7,), PassCost(COPY, Moment()), at_once=7)
    alone, sped_up = (Levels([block, *below]).inner(0, [0]) for below in ([], ladder()[1:]))
    assert alone.drafting(np.array([0, 1, 7])).tolist() == pytest.approx([0, COPY.of(7), COPY.of(7)])
    assert alone.each_pass == alone.of_one(3) == pytest.approx(COPY.of(7))
    assert sped_up.below == (Budget(7, 7),)
    assert sped_up.each_pass == pytest.approx(COPY.of(14)), "guesses are rows of the same pass"


def test_a_length_that_a_user_named_stays() -> None:
    for likely in (0.0, 0.95):
        assert taught(Levels(ladder(free=False)), likely).inner(0, [0]).below == (Budget(3, 3),)


def test_a_level_that_gains_nothing_is_tried_again_now_and_then() -> None:
    levels = taught(Levels(ladder()), 0.0)
    tried = 0
    for _ in range(640):
        rows = levels.inner(0, [0]).below[0].rows
        tried += rows > 0
        levels.heard({0: [Work("mxfp4", 1 + rows, 0.0, COPY.of(1 + rows), 1, rows, 0, passes=1)]}, {0: (9, rows)})
    assert tried == 10


def test_the_first_level_is_left_out_where_the_one_below_is_worth_more() -> None:
    """On text that repeats itself, lookup alone costs no pass of the copy."""
    pace, used = AutoPace(ladder(), PassCost(Price({1: 1.0, 16: 1.1, 32: 2.2}), Moment())), []
    chance = random.Random(1)
    for count in range(2000):
        budgets = pace.choose([0], LONG)[0]
        allowed = tuple(budget.rows for budget in budgets)
        length = next((rows for rows in allowed if rows), 0)
        right = 0
        while right < length and chance.random() < 0.97:
            right += 1
        propose = length * 0.15 if allowed[0] else 0.0
        works = (Work("mxfp4", length, float(count), propose, length, passes=max(1, length // 2)),)
        pace.heard(
            RoundRecord(
                count,
                {0: length},
                {0: right},
                {0: right + 1},
                propose,
                1.0 + 0.1 * length / 15,
                work={0: works if allowed[0] else ()},
                budgets={0: tuple(budgets)},
            )
        )
        used.append(next((at for at, rows in enumerate(allowed) if rows), None))
    assert used[-500:].count(1) > 480


def test_what_a_sequence_taught_by_itself_is_forgotten_with_its_text() -> None:
    accepted = Acceptance((0.7,))
    for _ in range(50):
        accepted.heard(0, 4, 4)
        accepted.heard(1, 4, 0)
    mine, other = accepted.survival([0, 1], 1)
    assert mine[0] > 0.9 > 0.2 > other[0]
    accepted.forget([0, 1])
    mine, other = accepted.survival([0, 1], 4)
    assert mine.tolist() == other.tolist()


def test_a_draft_that_is_shorter_than_allowed_counts_as_refused_where_it_ends() -> None:
    accepted = Acceptance((0.7,))
    for _ in range(200):
        accepted.heard(0, 8, 2)  # the drafter proposed two tokens, which were right, and then nothing
    (survival,) = accepted.survival([0], 3)
    assert survival[1] > 0.9
    assert survival[2] < 0.1
