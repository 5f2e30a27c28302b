"""Prompts beside texts that decode: who reads how much, and how long the others wait for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from foretoken.loop.beside import SLOWER, Beside
from foretoken.loop.schedule import Live, Schedule
from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Request


def reading(*lefts: int) -> list[Live]:
    return [Live(Request(at, (1,) * left, 8), left, left) for at, left in enumerate(lefts)]


def rows_of(lefts: Sequence[int], used: int = 0, **how: int) -> dict[int, int]:
    chunks = Schedule(**{"rows": 1000, "prompt_rows": 64, **how}).chunks(reading(*lefts), used)
    return {chunk.sequence: chunk.rows for chunk in chunks}


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    assert rows_of([900, 20]) == {0: 44, 1: 20}
    assert rows_of([900, 40, 800]) == {0: 16, 1: 32, 2: 16}


def test_prompts_of_one_length_are_read_one_after_the_other_and_all_go_on() -> None:
    assert rows_of([300, 300, 300, 300, 300]) == {0: 32, 1: 8, 2: 8, 3: 8, 4: 8}
    assert rows_of([300] * 5, prompt_rows=3) == {0: 2, 1: 1}


def test_what_one_does_not_need_is_left_to_the_others() -> None:
    assert rows_of([2, 3, 300, 300]) == {0: 2, 1: 3, 2: 30, 3: 29}
    assert rows_of([5]) == {0: 5}
    assert sum(rows_of([50, 1, 900, 7], prompt_rows=100).values()) == 100


def test_drafts_leave_at_least_a_row() -> None:
    assert rows_of([300, 300], used=5000) == {0: 1}


def rounds(beside: Beside, usual: float, each: float, count: int) -> list[int]:
    """So many rounds with a prompt beside them, and as many without; the rows that were read."""
    read = []
    for at in range(count):
        beside.heard(RoundRecord(at, {0: 0}, {0: 0}, {0: 1}, 0.2 * usual, 0.8 * usual))
        rows = beside.rows
        read.append(rows)
        beside.heard(RoundRecord(at, {0: 0}, {0: 0}, {0: 1}, 0.2 * usual, 0.8 * usual + each * rows, read={1: rows}))
    return read


@pytest.mark.parametrize(("usual", "each"), [(0.07, 0.004), (0.011, 0.0006), (0.5, 0.02)])
def test_a_round_that_reads_takes_so_many_times_as_long_as_usual(usual: float, each: float) -> None:
    rows = rounds(Beside(256), usual, each, 12)[-1]
    assert (usual + each * rows) / usual == pytest.approx(SLOWER, abs=each / usual + 0.01)


def test_the_rows_have_bounds_and_follow_the_machine() -> None:
    beside = Beside(256)
    assert beside.rows == 24
    assert rounds(beside, 0.07, 0.0, 10)[-1] == 256
    assert rounds(beside, 0.07, 1.0, 30)[-1] == 4
    slow = rounds(Beside(256), 0.07, 0.008, 10)[-1]
    beside = Beside(256)
    rounds(beside, 0.07, 0.004, 20)
    assert rounds(beside, 0.07, 0.008, 20)[-1] == slow
    alone = Beside(256)
    alone.heard(RoundRecord(0, {}, {}, {}, 0.0, 9.0, read={0: 200}))  # nobody waits for it
    assert alone.rows == 24


def test_prices_that_were_measured_tell_how_many_rows_are_read_at_first() -> None:
    assert Beside(256, Price({1: 0.06, 32: 0.09, 96: 0.154})).rows == 77, "a pass of 0.135 seconds"
    assert Beside(64, Price({1: 0.06, 32: 0.09, 96: 0.154})).rows == 64
    assert Beside(256, Price({1: 0.05, 8: 0.06})).rows == 8, "nobody knows what more rows cost"
    assert Beside(256, Price({1: 0.05, 2: 0.2})).rows == 4, "a prompt goes on in any case"


def round_of(rows: int, seconds: float, read: int = 0, texts: int = 7) -> RoundRecord:
    """A round of some texts that checks so many rows of them, and reads so many of a prompt."""
    every = range(texts)
    drafted = {**dict.fromkeys(every, 0), 0: rows - texts}
    prompt = {9: read} if read else {}
    return RoundRecord(0, drafted, dict.fromkeys(every, 0), dict.fromkeys(every, 1), 0.0, seconds, read=prompt)


def test_what_longer_drafts_add_is_not_put_down_to_the_prompt() -> None:
    beside = Beside(256)
    for _ in range(15):
        beside.heard(round_of(7, 0.04 + 7 * 0.018))
    for _ in range(40):  # the texts have begun to repeat themselves, so all draft four tokens more
        rows = beside.rows
        beside.heard(round_of(35, 0.04 + (35 + rows) * 0.018, rows))
    assert beside.rows == pytest.approx((SLOWER - 1) * (0.04 + 7 * 0.018) / 0.018, abs=1)


@pytest.mark.parametrize("texts", [1, 7])
@pytest.mark.parametrize("slower", [1, 2, 2.5, 4, 40])
def test_no_prompt_is_starved_when_the_machine_gets_slower_while_it_is_read(texts: int, slower: float) -> None:
    def seconds(rows: int) -> float:
        return 0.13 + 0.004 * rows

    beside, left, read = Beside(256), 2000, []
    for _ in range(15):
        beside.heard(round_of(texts, seconds(texts), texts=texts))
    while left > 0:
        read.append(min(left, beside.rows))
        now = slower if len(read) > 2 else 1  # after two passes
        beside.heard(round_of(texts, now * seconds(texts + read[-1]), read[-1], texts=texts))
        left -= read[-1]
    usual = (SLOWER - 1) * seconds(texts) / 0.004
    assert max(read) <= 1.1 * usual
    assert len(read) <= 2000 / (usual / 1.5 if slower == 1 else min(4.0, usual / 8))


def test_a_machine_that_gets_faster_does_not_make_the_others_wait() -> None:
    beside = Beside(256)
    for _ in range(15):
        beside.heard(round_of(1, 0.3, texts=1))
    for at in range(30):
        rows = beside.rows
        beside.heard(round_of(1, (0.3 + 0.008 * rows) / (1 if at < 3 else 2), rows, texts=1))
    assert beside.rows <= 1.2 * (SLOWER - 1) * 0.3 / 0.008
