"""The pace for several texts that begin together: how long until the last of them ends, beside plain decoding."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean

import pytest

from foretoken.pace.auto import AutoPace
from foretoken.pace.cost import Moment, PassCost
from foretoken.pace.levels import Paced
from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget

# measured seconds of a pass of the 1b shape on two cores (Zen 4), by rows
CURVE = Price({1: 0.053, 4: 0.056, 8: 0.064, 12: 0.076, 16: 0.092, 18: 0.104, 24: 0.131, 32: 0.167, 64: 0.34})
TOKENS = 128  # of each text
SEEDS = range(4)


@pytest.fixture(autouse=True)
def free_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds of passes are of another machine, so those of choosing on this one must not count beside them."""
    monkeypatch.setattr("foretoken.pace.auto.thread_time", lambda: 0.0)


Run = tuple[list[float], int]  # the seconds at which texts end, in the order of their ends, and draft tokens


def paced(rates: Sequence[float], seed: int) -> Run:
    """Texts whose draft tokens are accepted with these probabilities, until the last has ended."""
    chance = random.Random(seed)
    pace = AutoPace([Paced("lookup", Budget(24, 24), True, (0.5,))], PassCost(CURVE, Moment()))
    left = dict.fromkeys(range(len(rates)), TOKENS)
    ends: list[float] = []
    spent, sent, turn = 0.0, 0, 0
    while left:
        budgets = pace.choose(list(left))
        drafted = {text: min(budgets[text][0].rows, left[text] - 1) for text in left}
        accepted = {text: _accepted(count, rates[text], chance) for text, count in drafted.items()}
        gained = {text: count + 1 for text, count in accepted.items()}
        seconds = CURVE.of(len(left) + sum(drafted.values())) * chance.uniform(0.98, 1.02)
        asked = {text: budgets[text] for text in left}
        pace.heard(RoundRecord(turn, drafted, accepted, gained, 0.0, seconds, budgets=asked))
        spent, sent, turn = spent + seconds, sent + sum(drafted.values()), turn + 1
        before = len(left)
        left = {text: count - gained[text] for text, count in left.items() if count > gained[text]}
        ends += [spent] * (before - len(left))
    return ends, sent


def _accepted(count: int, rate: float, chance: random.Random) -> int:
    for at in range(count):
        if chance.random() >= rate:
            return at
    return count


def times_plain(rates: Sequence[float]) -> tuple[float, float, int]:
    """How many times as fast as plain decoding the last text ends, and texts on average; how much was drafted."""
    runs = [paced(rates, seed) for seed in SEEDS]
    plain = TOKENS * CURVE.of(len(rates))  # all texts end at once
    last, mean = fmean(ends[-1] for ends, _ in runs), fmean(end for ends, _ in runs for end in ends)
    return plain / last, plain / mean, sum(sent for _, sent in runs)


@pytest.mark.parametrize(
    "rates",
    [
        (0.3, 0.6, 0.9, 0.97) * 2,
        (0.3, 0.6, 0.9, 0.97) * 4,
        (0.1, *(0.97,) * 15),
        (0.95,) * 16,
    ],
)
def test_texts_that_draft_well_do_not_leave_the_others_behind_in_passes_with_room_to_spare(
    rates: tuple[float, ...],
) -> None:
    last, _, sent = times_plain(rates)
    assert last > 0.97
    assert sent


def test_one_text_that_cannot_be_drafted_ends_later_and_the_others_much_sooner() -> None:
    last, mean, _ = times_plain((0.1, *(0.97,) * 7))
    assert last > 0.9
    assert mean > 1.3


@pytest.mark.parametrize(("count", "least"), [(2, 2.2), (4, 1.6), (8, 1.1)])
def test_texts_that_draft_alike_end_sooner(count: int, least: float) -> None:
    assert times_plain((0.8,) * count)[0] > least
