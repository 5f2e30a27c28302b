"""What drafts cost and spared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretoken.protocol.telemetry import RoundRecord, Work
from foretoken.protocol.types import Budget
from foretoken.timeline.worth import worth
from tests.timeline.rounds import PROMPT


def record(drafted: int, accepted: int, *work: Work) -> RoundRecord:
    """A check takes 10 ms, and 2 ms more for each row of the draft."""
    check = 0.010 + 0.002 * drafted
    return RoundRecord(1, {0: drafted}, {0: accepted}, {0: accepted + 1}, 0.005, check, work={0: work})


def check(checked: int, accepted: int) -> Work:
    """1 ms, and half a one more for each row."""
    return Work("small", 1 + checked, 0.0, 0.001 + 0.0005 * checked, accepted + 1, checked, accepted, passes=1)


LOOKED_UP = Work("lookup", seconds=0.0001, draft_tokens=3)
RECORDS = [
    PROMPT,
    *[record(4, 3, LOOKED_UP, check(3, 2), check(0, 0)), record(2, 0, check(1, 0)), record(0, 0)] * 4,
]


def test_drafts_cost_their_drafting_and_what_checks_took_longer_and_spare_passes() -> None:
    small, lookup = worth(RECORDS, ("small", "lookup"))
    assert small.known
    assert lookup.known
    assert small.drafting == pytest.approx((4 * (0.0025 + 0.001 + 0.0015), 4 * 0.0001))
    assert small.wider == pytest.approx(4 * (4 + 2) * 0.002)
    assert (small.accepted, small.spared) == ((12, 0), pytest.approx(12 * 0.010))
    assert small.cost == pytest.approx(sum(small.drafting) + small.wider)
    assert lookup.drafting == pytest.approx((4 * 0.0001,))
    assert lookup.wider == pytest.approx(4 * (3 + 1) * 0.0005)
    assert (lookup.accepted, lookup.spared) == ((0, 8), pytest.approx(8 * 0.001))


def test_where_all_checks_are_equally_wide_it_is_not_known_what_a_narrow_one_takes() -> None:
    (found,) = worth([PROMPT, *[record(4, 2)] * 9], ("lookup",))
    assert not found.known
    assert (found.wider, found.spared) == (0.0, pytest.approx(18 * 0.018))
    (found,) = worth([PROMPT, *[record(4, 2)] * 9, record(0, 0)], ("lookup",))
    assert not found.known, "one narrow round at the end says too little"


def test_a_round_that_reads_a_prompt_says_nothing_of_drafts() -> None:
    held_up = replace(record(4, 3, LOOKED_UP, check(3, 2)), check_seconds=9.0, read={1: 256})
    assert worth([*RECORDS, held_up], ("small", "lookup")) == worth(RECORDS, ("small", "lookup"))


def test_nothing_drafted_costs_and_spares_nothing() -> None:
    for records in ([PROMPT], [PROMPT, record(0, 0)]):
        (found,) = worth(records, ("lookup",))
        assert (found.cost, found.spared, found.accepted) == (0.0, 0.0, (0, 0))


def test_a_level_that_drafts_for_the_target_itself_spares_the_targets_passes() -> None:
    alone = replace(record(4, 3, LOOKED_UP), budgets={0: (Budget(0, 0), Budget(4, 4))})
    small, lookup = worth([*RECORDS, alone], ("small", "lookup"))
    assert small == worth(RECORDS, ("small", "lookup"))[0], "it had no part in that round"
    assert lookup.accepted == (3, 8)
    assert lookup.spared == pytest.approx(3 * 0.010 + 8 * 0.001)
    assert lookup.wider == pytest.approx(4 * 0.002 + 4 * (3 + 1) * 0.0005)
    assert lookup.drafting == pytest.approx((5 * 0.0001,))
