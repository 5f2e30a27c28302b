"""The price of a pass: by its rows, measured or observed."""

from __future__ import annotations

import pytest

from foretoken.decoder.rows import Rows
from foretoken.prices import measuring
from foretoken.prices.measuring import measure, seconds_of
from foretoken.prices.price import PassPrice, Price
from tests.tiny import one_thread, tiny_decoder

__all__ = ["one_thread"]


def test_a_price_lies_on_the_line_between_what_was_measured() -> None:
    price = Price({1: 1.0, 4: 2.5, 8: 3.5})
    assert [price.of(rows) for rows in (0, 1, 2, 4, 6, 8, 12)] == [0.0, 1.0, 1.5, 2.5, 3.0, 3.5, 4.5]
    assert Price({3: 2.0}).of(7) == 2.0
    assert price.times(2).of(2) == 3.0


def test_fewer_rows_never_cost_more() -> None:
    assert Price.measured({8: 5.0, 1: 2.0, 2: 9.0, 4: 4.0}) == Price({1: 2.0, 2: 4.0, 4: 4.0, 8: 5.0})


def test_a_line_through_passes_is_not_bent_by_one_that_was_held_up() -> None:
    passes = [(rows, 0.010 + 0.002 * (rows - 1)) for rows in (1, 3, 5, 5, 1, 3, 4, 2)]
    for observed in (passes, [*passes, (5, 9.0)]):
        price = Price.observed(observed)
        assert (price.of(1), price.of(9)) == pytest.approx((0.010, 0.026))
    assert Price.observed([]).of(3) == 0.0
    assert Price.observed([(5, 0.3)] * 4).of(40) == 0.3
    falling = Price.observed([(1, 0.3), (2, 0.2), (3, 0.1)])
    assert falling.of(1) == falling.of(3), "rows never make a pass shorter"


def test_a_line_through_many_passes_is_found_in_an_instant() -> None:
    price = Price.observed([(1 + i % 7, 0.010 + 0.001 * (i % 7)) for i in range(50_000)])
    assert (price.of(1), price.of(2)) == pytest.approx((0.010, 0.011))


def test_a_pass_is_its_layers_and_its_logits() -> None:
    price = PassPrice(Price({1: 8.0, 2: 16.0}), Price({1: 1.0, 2: 2.0}), 9.0)
    assert (price.whole(1), price.whole(3), price.part(2, 0.25)) == (9.0, 27.0, 4.0)
    assert price.times(0.5) == PassPrice(Price({1: 4.0, 2: 8.0}), Price({1: 0.5, 2: 1.0}), 4.5)


def test_what_is_timed_is_timed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(measuring, "perf_counter", lambda: float(next(clock)))
    seen: list[str] = []
    seconds = seconds_of({"a": lambda: seen.append("a"), "b": lambda: (seen.append("b"), next(clock))}, rounds=3)
    assert seen == ["a", "b"] * 4
    assert seconds == {"a": 1.0, "b": 2.0}


def test_without_a_cache_a_pass_computes_the_prefix_too(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = tiny_decoder()
    passes: list[tuple[int, int]] = []
    forward = decoder.forward

    def counted(rows: Rows) -> object:
        passes.append((rows.positions[0], len(rows)))
        return forward(rows)

    monkeypatch.setattr(decoder, "forward", counted)
    (price,) = measure({"plain": decoder}, prefix=20, rows=(1, 3), rounds=1).values()
    assert passes == [(0, 20), *[(20, 1), (20, 3)] * 2], "nothing stays in the cache"
    passes.clear()
    measure({"plain": decoder}, prefix=20, rows=(1, 3), cached=False, rounds=1)
    assert passes == [(0, 21), (0, 23)] * 2
    assert all(price.whole(rows) > 0 for rows in (1, 3))
    assert price.step > 0
