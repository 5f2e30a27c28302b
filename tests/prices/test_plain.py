"""The speed of plain decoding, told by passes that checked drafts."""

from __future__ import annotations

import pytest

from foretoken.prices.plain import plain_speed
from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord


def checked(drafted: int, seconds: float, *others: int, read: bool = False) -> RoundRecord:
    """A round of sequence 0, perhaps with others."""
    gained = dict.fromkeys((0, *others), 1)
    return RoundRecord(
        round=1,
        drafted={0: drafted},
        accepted={},
        new_tokens=gained,
        propose_seconds=9.0,
        check_seconds=seconds,
        read={5: 3} if read else {},
    )


def test_it_is_one_by_a_check_of_one_row() -> None:
    # 0.1 seconds a pass, and 0.01 for each further row
    records = [checked(drafted, 0.1 + 0.01 * drafted) for drafted in (3, 8, 5, 0, 1, 1, 7, 4)]
    assert plain_speed(records, 0) == pytest.approx(10.0)
    assert plain_speed([checked(4, 0.2)] * 8, 0) == 0.0, "no pass of one or two rows"


def test_few_checks_are_compared_with_the_price_at_the_start() -> None:
    price = Price({1: 1.0, 8: 1.2, 16: 2.0})
    records = [checked(7, 0.13), checked(15, 0.2), checked(7, 0.12)]
    assert plain_speed(records, 0, price) == pytest.approx(10.0)
    assert plain_speed(records, 0) == plain_speed(records[1:], 0, price) == 0.0


def test_what_others_share_says_nothing() -> None:
    alone = [checked(1, 0.5)] * 8
    shared = [checked(2, 0.1, 1), checked(2, 0.1, read=True)]
    assert plain_speed([*shared, *alone], 0) == pytest.approx(2.0)
    assert plain_speed(shared, 0) == 0.0
    assert plain_speed(alone, 1) == 0.0
    assert plain_speed([], 0) == plain_speed(alone[:7], 0) == 0.0, "few passes are chance"


def test_a_long_generation_is_told_by_some_of_its_passes() -> None:
    records = [checked(n % 7, 0.1 + 0.01 * (n % 7)) for n in range(5000)]
    assert plain_speed(records, 0) == pytest.approx(10.0, rel=1e-6)
