"""As many nodes as a check can compute while it waits for a disk, on simulated disks."""

from __future__ import annotations

import pytest

import foretoken
from foretoken.pace.fixed import FixedPace
from foretoken.pace.waiting import WaitingPace
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget
from tests.paces import LONG
from tests.tiny import needs_native

TREE, LOOKUP = Budget(400, 160, 4, 0.3), Budget(8, 8)
EACH = 0.005  # seconds of arithmetic for a row


class Disk:
    """A disk that has the weights after `seconds`, and arithmetic beside it."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.waited = seconds, 0.0

    def read(self, number: int, rows: int) -> RoundRecord:
        """A pass over a prompt."""
        computing = EACH * rows
        self.waited += max(0.0, self.seconds - computing)
        return RoundRecord(number, {}, {}, {}, 0.0, max(self.seconds, computing), read={0: rows})

    def check(self, number: int, rows: int, drafting: float = 0.0) -> RoundRecord:
        """A check, with so many seconds of drafting beside it for which it waits."""
        computing = EACH * rows
        self.waited += max(0.0, self.seconds - computing)
        return RoundRecord(number, {0: rows - 1}, {0: 3}, {0: 4}, 0.1, max(self.seconds, computing) + drafting)


@pytest.mark.parametrize(("seconds", "nodes"), [(1.4, 168), (0.7, 84), (0.1, 48), (9.0, 400)])
def test_trees_are_as_large_as_a_check_has_time_for(seconds: float, nodes: int) -> None:
    disk = Disk(seconds)
    pace = WaitingPace(FixedPace([TREE, LOOKUP]), lambda: disk.waited)
    assert pace.choose([0], LONG)[0][0].rows == 160
    pace.heard(disk.check(0, 1))  # the shortest pass: as long as the reading
    for number in range(1, 12):
        pace.heard(disk.read(number, 100) if number % 3 == 1 else disk.check(number, pace.nodes + 1, drafting=0.4))
        first, lookup = pace.choose([0], LONG)[0]
        assert (first.depth, first.width, first.least, lookup) == (160, 4, 0.3, LOOKUP)
        assert first.rows == pytest.approx(nodes, abs=2)


def test_prompts_of_few_tokens_teach_nothing_and_sequences_share_the_nodes() -> None:
    disk = Disk(1.0)
    pace = WaitingPace(FixedPace([TREE]), lambda: disk.waited)
    pace.heard(disk.read(0, 9))
    assert pace.nodes == 160
    assert [budgets[0].rows for budgets in pace.choose([3, 4, 5], {3: 100, 4: 100, 5: 100}).values()] == [53, 53, 53]
    pace.heard(disk.read(2, 100))
    assert pace.nodes == 120


def test_checks_teach_until_a_prompt_does() -> None:
    disk = Disk(1.0)
    pace = WaitingPace(FixedPace([TREE]), lambda: disk.waited)
    pace.heard(disk.read(0, 9))
    pace.heard(disk.check(1, 8))
    assert pace.nodes == 160, "as many rows as that tell little"
    pace.heard(disk.check(2, 161))
    assert pace.nodes == 120
    pace.heard(disk.check(3, 121, drafting=0.4))
    pace.heard(disk.check(4, 121, drafting=0.4))
    assert pace.nodes == 120, "what is drafted beside them makes rows seem dear"
    pace.heard(disk.read(5, 100))
    assert pace.nodes == 120


@needs_native
def test_the_default_draft_of_a_model_on_a_disk_is_paced_unless_its_nodes_are_named() -> None:
    def kind(draft: str, **settings: object) -> str:
        return type(foretoken.load("stdlib-7m", draft=draft, **settings).pace).__name__

    assert kind("subspec,lookup", stream_layers="all") == "WaitingPace"
    assert kind("subspec:nodes=40,lookup", stream_layers="all") != "WaitingPace"
    assert kind("subspec,lookup", stream_layers="all", pace="fixed") == "FixedPace"
    assert kind("subspec", stream_layers="all") == "FixedPace"
    assert kind("subspec,lookup") != "WaitingPace"
