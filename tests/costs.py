"""What a decoder has cost in a test, whoever called it: import `counting`, and ask `cost_of`."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import pytest

from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import Rows
from foretoken.protocol.telemetry import Cost

_totals: WeakKeyDictionary[Decoder, Cost] = WeakKeyDictionary()


def cost_of(decoder: Decoder) -> Cost:
    """Of all its calls in this test."""
    return _totals.get(decoder, Cost())


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count what every call adds, to a pass or to none."""
    _totals.clear()
    add = Decoder._add_cost

    def counted(decoder: Decoder, cost: Cost, rows: Rows | None) -> None:
        _totals[decoder] = cost_of(decoder) + cost
        add(decoder, cost, rows)

    monkeypatch.setattr(Decoder, "_add_cost", counted)
