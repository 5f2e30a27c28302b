"""A pace for checks whose cost nobody has measured."""

from __future__ import annotations

import pytest

from foretoken.pace.cost import ASSUMED
from foretoken.pace.fixed import FixedPace
from foretoken.pace.unpriced import PlainAtTimes, SeenCost
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget


def test_before_anything_was_heard_the_usual_form_is_assumed_and_one_pass_gives_it_a_unit() -> None:
    cost = SeenCost()
    assert not cost.known
    assert cost.of(8) == pytest.approx(ASSUMED.of(8))
    cost.heard(1, 3.0)
    assert cost.known
    assert [cost.of(rows) for rows in (1, 8, 16)] == pytest.approx([3 * ASSUMED.of(rows) for rows in (1, 8, 16)])


def test_two_numbers_of_rows_make_a_line_which_goes_on() -> None:
    cost = SeenCost()
    cost.heard(5, 6.0)
    cost.heard(1, 2.0)
    assert [cost.of(rows) for rows in (1, 3, 5, 9, 30)] == pytest.approx([2, 4, 6, 10, 31])


def test_more_rows_never_take_less_time_and_one_pass_that_was_disturbed_is_forgotten() -> None:
    cost = SeenCost()
    for seconds in (1.0, 1.0, 9.0):
        cost.heard(1, seconds)
    cost.heard(4, 7.0)
    cost.heard(4, 3.0)
    assert [cost.of(rows) for rows in (1, 4)] == [1.0, 3.0]
    cost.heard(6, 2.5)
    assert [cost.of(rows) for rows in (1, 4, 6)] == [1.0, 2.5, 2.5]


def test_what_no_pass_has_shown_for_long_is_forgotten() -> None:
    cost = SeenCost()
    cost.heard(1, 1.0)
    cost.heard(8, 8.0)
    for _ in range(600):
        cost.heard(1, 1.0)
    assert cost.of(8) == pytest.approx(ASSUMED.of(8))


def _record(texts: int, drafted: int, *, reads: bool = False) -> RoundRecord:
    each = dict.fromkeys(range(texts), drafted)
    return RoundRecord(0, each, each, each, 0.0, 0.0, read={0: 1} if reads else {})


def test_the_first_rounds_and_some_later_ones_have_no_draft_for_each_number_of_texts() -> None:
    pace = PlainAtTimes(FixedPace([Budget(4, 4), Budget(2, 2)]))

    def drafts(texts: int, *, reads: bool = False) -> bool:
        chosen = pace.choose(range(texts), dict.fromkeys(range(texts), 100))
        assert set(chosen) == set(range(texts))
        assert all(len(budgets) == 2 for budgets in chosen.values())
        drafted = chosen[0][0].rows
        pace.heard(_record(texts, drafted, reads=reads))
        return drafted > 0

    assert not drafts(1, reads=True)  # a pass that reads a prompt tells nothing
    assert [drafts(1) for _ in range(5)] == [False, False, True, True, True]
    assert [drafts(2) for _ in range(4)] == [False, False, True, True]
    assert [drafts(3) for _ in range(3)] == [False, False, True]
    assert drafts(4)  # near three
    vain = [drafts(16, reads=True) for _ in range(150)]  # prompts in every pass
    assert [vain[:8], vain[8:100]] == [[False] * 8, [True] * 92]
    assert vain[100:].count(False) == 8  # and once more, to no avail
    later = [drafts(1) for _ in range(300)]
    assert 2 <= later.count(False) <= 3
