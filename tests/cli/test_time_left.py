"""How long it will still take: said when it is known, of parts that are alike."""

from __future__ import annotations

import pytest

from foretoken.cli import time_left
from foretoken.cli.time_left import TimeLeft


def test_time_left_is_that_of_parts_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr(time_left, "perf_counter", lambda: clock)
    left = TimeLeft()
    assert left("first", 0, 10) == "", "nothing is known yet"
    clock += 5
    assert left("first", 1, 10) == ", about 45 seconds left"
    clock += 995
    assert left("first", 9, 10) == ", about 2 minutes left"
    assert left("first", 10, 10) == ""
    assert left("second", 4, 6) == "", "what went before may have been quicker"
    clock += 1
    assert left("second", 5, 6) == ", about 1 second left"
