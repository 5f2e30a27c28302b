"""The pace while prompts are read beside texts that decode: what drafts are weighed against there."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from foretoken.pace.auto import AutoPace
from foretoken.pace.cost import Moment, PassCost
from foretoken.pace.lengths import best
from foretoken.pace.levels import Paced
from foretoken.pace.sharing import Shares, Sharing
from foretoken.pace.thinking import Thinking
from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget

PRICE = Price({1: 0.06, 8: 0.064, 16: 0.072, 32: 0.09, 64: 0.13, 128: 0.22, 256: 0.4, 512: 0.8})  # seconds of a pass
FOUR = (0, 1, 2, 3)


@pytest.fixture(autouse=True)
def free_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds of passes are of no machine, so those of choosing on this one must not count beside them."""
    monkeypatch.setattr("foretoken.pace.auto.thread_time", lambda: 0.0)


def shares(**more: Any) -> Shares:
    """Of one text that may draft, with all the time that it wants."""
    one = np.ones(1)
    return Shares(1, one, one * 99, np.inf, 1.0, 0.0, one, np.inf)._replace(**more)


def round_of(read: int, gained: int = 1, decoding: tuple[int, ...] = FOUR) -> RoundRecord:
    """A round in which texts decode and a part of the last one's prompt is read."""
    none, its = dict.fromkeys(decoding, 0), dict.fromkeys(decoding, gained)
    reads = {4: read} if read else {}
    return RoundRecord(0, none, none, its, 0.0, PRICE.of(len(decoding) + read), read=reads)


def test_other_texts_and_the_seconds_of_prompts_count_in_the_best_lengths() -> None:
    survival = np.array([[0.9, 0.8, 0.7, 0.6]])

    def length(texts: int, aside: float, step: float) -> int:
        its = shares(texts=texts, aside=aside, plain=1.0 + aside)
        return best([0], survival, lambda rows, longest: 1.0 + aside + step * longest, its).lengths[0]

    assert length(1, 0.0, 0.5) == 3
    assert length(4, 0.0, 0.5) == 0, "three more texts wait"
    assert length(4, 3.0, 0.5) == 0, "and do so for as long where prompts are read"
    assert length(4, 3.0, 0.1) == 4


def test_a_token_saves_a_round_as_long_as_usual() -> None:
    reading = shares(plain=4.0, aside=3.0, room=np.zeros(1))
    assert not reading.leave_behind(np.array([1.1]), 5.0)
    assert reading.leave_behind(np.array([0.9]), 5.0)
    pace = AutoPace([Paced("lookup", Budget(8, 8), True, (0.5,))], PassCost(PRICE, Moment()))
    left = dict.fromkeys(range(5), 99)
    pace.choose(FOUR, left)
    pace.heard(round_of(0))
    with patch.object(Sharing, "heard") as heard:
        pace.choose(FOUR, left)
        pace.heard(round_of(256, gained=3))
    _, _, plain, _ = heard.call_args.args
    assert plain == pytest.approx(PRICE.of(5), rel=0.05)


def test_the_mean_is_that_of_all_texts() -> None:
    sharing, left = Sharing(), {0: 99, 1: 99}
    sharing.begin(left)
    for _ in range(100):
        sharing.heard(RoundRecord(0, {}, {}, {0: 4, 1: 1}, 0.0, 1.0), 1.0, 1.0, 0.0)
    its = sharing.of([0], left, 1.0, 1.0)
    assert its is not None
    assert its.texts == 2
    assert float(its.weights[0]) == pytest.approx(2 / 17, rel=0.2), "beside one that is four times as slow"


@pytest.mark.parametrize("slower", [0.9, 1.1])
@pytest.mark.parametrize("read", [16, 250])
def test_prompts_do_not_take_longer_by_what_drafts_take_longer_than_expected(slower: float, read: int) -> None:
    def chosen(factor: float) -> dict[int, int]:
        pace = AutoPace([Paced("lookup", Budget(8, 8), True, (0.6,))], PassCost(PRICE, Moment()))
        left = dict.fromkeys(range(5), 99)
        pace.choose([], left)
        pace.heard(round_of(0))
        for its in pace._ways.values():
            for _ in range(9):
                its.shared.heard(1.0, factor)
            its.shared_at = pace._rounds
        pace.heard(round_of(read))
        return {text: budgets[0].rows for text, budgets in pace.choose(FOUR, left).items()}

    usual = chosen(1.0)
    assert any(usual.values())
    assert chosen(slower) == usual, "a tenth more or less than such drafts cost decides nothing here"


def test_rows_of_prompts_are_forgotten_when_all_are_read() -> None:
    pace = AutoPace([Paced("lookup", Budget(8, 8), True, (0.6,))], PassCost(PRICE, Moment()))
    left = dict.fromkeys(range(5), 99)
    pace.choose(FOUR, left)
    pace.heard(round_of(250))
    pace.choose(FOUR, left)
    assert pace._loop.aside > 0.2
    pace.heard(RoundRecord(0, {}, {}, {4: 1}, 0.0, 0.06, read={4: 6}))
    pace.choose((*FOUR, 4), left)
    assert pace._loop.aside == 0.0


def test_rounds_that_read_give_nothing_to_spend_on_trials() -> None:
    copy = Paced("copy", Budget(8, 8), True, (0.1,), PassCost(Price({1: 0.01}), Moment()))
    pace = AutoPace([copy], PassCost(PRICE, Moment()))
    left = dict.fromkeys(range(5), 99_999)
    pace.choose(FOUR, left)
    pace.heard(round_of(0))
    for _ in range(2000):
        pace.choose(FOUR, left)
        pace.heard(round_of(16))
    pace.heard(RoundRecord(0, {}, {}, {4: 1}, 0.0, 0.06, read={4: 6}))
    tried = 0
    for _ in range(100):
        tried += any(each[0].rows for each in pace.choose((*FOUR, 4), left).values())
        pace.heard(round_of(0, decoding=(*FOUR, 4)))
    assert tried <= 4, "1 % of 100 rounds, and a trial costs some 30 % of one"


def test_in_haste_it_chooses_now_and_then_and_repeats_nothing_for_nothing() -> None:
    thinking, chosen = Thinking(), 0
    for _ in range(1500):
        if not thinking.in_haste:
            thinking.took(1.0)
            chosen += 1
        thinking.took(0.1)
        thinking.heard(0.001, saved=0.0)
    assert 32 + 4 <= chosen <= 32 + 6, "at the beginning, and once in 256 rounds"
    pace = AutoPace([Paced("lookup", Budget(8, 8), True, (0.0,))], PassCost(PRICE, Moment()))
    left = dict.fromkeys(FOUR, 99)
    pace.choose(FOUR, left)
    with patch.object(Thinking, "in_haste", True), patch.object(Sharing, "of") as of:
        pace.choose(FOUR, left)
    assert not of.called
