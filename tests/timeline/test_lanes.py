"""Who worked when, and what became of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretoken.protocol.telemetry import RoundRecord, Work
from foretoken.protocol.types import Budget
from foretoken.timeline.lanes import Pass, Round, lanes, rows_of
from tests.timeline.rounds import PROMPT, rounds

LADDER = ("small", "lookup")


def test_rounds_follow_each_other_without_what_lies_between_them() -> None:
    first, second = lanes(rounds(2), LADDER)
    assert (first.number, first.start, first.check, first.end) == pytest.approx((1, 0.0, 0.003, 0.007))
    assert (second.number, second.start) == pytest.approx((2, first.end))
    assert (second.drafted, second.accepted, second.new_tokens) == (3, 1, 2)
    assert [p.start - second.start for p in second.passes] == pytest.approx([0.0, 0.0006, 0.0007, 0.0018, 0.0019])


def test_each_pass_is_told_what_the_level_above_made_of_its_tokens() -> None:
    third = lanes(rounds(3), LADDER)[2]  # of whose three tokens the target took two
    assert [(p.level, p.drafted, p.accepted) for p in third.passes] == [
        (0, 0, 0),  # it only read
        (1, 2, 1),
        (0, 2, 2),
        (1, 0, 0),
        (0, 1, 0),
    ]


def test_three_levels() -> None:
    work = (
        Work("c", draft_tokens=2),
        Work("b", draft_tokens=3, checked_tokens=2, accepted_tokens=2),
        Work("c", draft_tokens=1),
        Work("b", draft_tokens=1, checked_tokens=1, accepted_tokens=0),
        Work("a", draft_tokens=4, checked_tokens=4, accepted_tokens=3),
    )
    (only,) = lanes([PROMPT, RoundRecord(1, {0: 4}, {0: 4}, {0: 5}, 0.0, 1.0, work={0: work})], ("a", "b", "c"))
    assert [(p.level, p.drafted, p.accepted) for p in only.passes] == [
        (2, 2, 2),
        (1, 3, 3),
        (2, 1, 0),
        (1, 1, 0),
        (0, 4, 4),
    ]


def test_what_was_cut_off_before_the_check_is_not_shown() -> None:
    work = (Work("small", draft_tokens=2), Work("small", draft_tokens=2))
    (only,) = lanes([PROMPT, RoundRecord(1, {0: 3}, {0: 3}, {0: 4}, 0.0, 1.0, work={0: work})], LADDER)
    assert [(p.drafted, p.accepted) for p in only.passes] == [(2, 2), (1, 1)]


def test_the_target_judges_the_first_level_that_the_pace_has_not_left_out() -> None:
    record = RoundRecord(1, {0: 3}, {0: 2}, {0: 3}, 0.0, 1.0, work={0: (Work("lookup", draft_tokens=3),)})
    (only,) = lanes([PROMPT, replace(record, budgets={0: (Budget(0, 0), Budget(5, 5))})], LADDER)
    assert [(p.level, p.drafted, p.accepted) for p in only.passes] == [(1, 3, 2)]
    assert only.allowed == (0, 5)


def test_several_sequences_are_one_round() -> None:
    work = {0: (Work("lookup", draft_tokens=2),), 1: (Work("lookup", draft_tokens=1),)}
    record = RoundRecord(1, {0: 2, 1: 1}, {0: 0, 1: 1}, {0: 1, 1: 2}, 0.0, 1.0, work=work)
    (only,) = lanes([PROMPT, record], ("lookup",))
    assert (only.drafted, only.accepted, only.new_tokens) == (3, 1, 3)
    assert [(p.drafted, p.accepted) for p in only.passes] == [(2, 0), (1, 1)]


def test_work_by_another_clock_stays_within_its_round() -> None:
    strange = (Work("lookup", began=-5.0, seconds=99.0), Work("lookup", began=1e9, seconds=-1.0), Work("nobody"))
    (only,) = lanes([PROMPT, RoundRecord(1, {0: 0}, {0: 0}, {0: 1}, 2.0, 1.0, work={0: strange}, began=50.0)], LADDER)
    assert only.passes == (Pass(1, 0.0, 2.0), Pass(1, 2.0, 0.0))


def test_what_was_drafted_while_the_target_checked_is_drawn_in_the_round_before() -> None:
    first = RoundRecord(
        1, {0: 1}, {0: 1}, {0: 2}, 1.0, 3.0, work={0: (Work("a", began=10.0, seconds=1.0),)}, began=10.0
    )
    works = (Work("a", began=12.5, seconds=0.5, draft_tokens=2), Work("a", began=14.0, seconds=0.25, draft_tokens=1))
    second = RoundRecord(2, {0: 3}, {0: 3}, {0: 4}, 0.25, 2.0, work={0: works}, began=14.0)
    one, other = lanes([PROMPT, first, second], ("a",))
    assert [(made.start, made.seconds, made.drafted, made.accepted) for made in one.passes] == [
        (0.0, 1.0, 0, 0),
        (2.5, 0.5, 2, 2),
    ]
    assert [(made.start, made.seconds, made.drafted, made.accepted) for made in other.passes] == [(4.0, 0.25, 1, 1)]


def test_a_prompt_in_two_chunks_is_in_neither_of_its_rounds_drawn() -> None:
    first, *others = rounds(2)
    chunk = RoundRecord(0, {}, {}, {}, 0.0, 0.5, read={0: 256})
    assert lanes([chunk, first, *others], LADDER) == lanes([first, *others], LADDER)
    assert len(lanes([chunk, first, *others], LADDER)) == 2


def of_lengths(*seconds: float) -> list[Round]:
    found, now = [], 0.0
    for number, length in enumerate(seconds, 1):
        found.append(Round(number, now, now, now + length, 0, 0, 1, ()))
        now += length
    return found


def numbers(rows: list[list[Round]]) -> list[list[int]]:
    return [[r.number for r in row] for row in rows]


def test_rows_are_as_even_as_can_be() -> None:
    rows, width = rows_of(of_lengths(1, 1, 1, 3, 1, 1, 1, 1, 2), 3, most=9)
    assert numbers(rows) == [[1, 2, 3], [4, 5], [6, 7, 8, 9]] or width == pytest.approx(5)
    assert width <= 5.0001
    assert sum(map(len, rows)) == 9
    assert numbers(rows_of(of_lengths(1), 4, most=9)[0]) == [[1]]


def test_a_round_that_took_far_too_long_ends_its_row_and_counts_as_less() -> None:
    rows, width = rows_of(of_lengths(1, 1, 500, 1, 1, 1), 2, most=3)
    assert numbers(rows) == [[1, 2, 3], [4, 5, 6]]
    assert width == pytest.approx(5)


def test_a_picture_of_no_rounds_has_no_lanes() -> None:
    assert lanes([PROMPT], LADDER) == []
    assert lanes([replace(PROMPT, drafted={0: 0})], ()) == []
