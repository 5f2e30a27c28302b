"""The table of rotations."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from foretoken.decoder import rope
from foretoken.decoder.config import RopeConfig
from foretoken.decoder.rope import RopeTable


@pytest.mark.parametrize("head_dim", [8, 10, 128])
@pytest.mark.parametrize("kind", ["default", "dynamic", "yarn"])
def test_a_rotation_does_not_depend_on_which_positions_were_asked_for_before(kind: str, head_dim: int) -> None:
    config = RopeConfig(type=kind, factor=4.0, original=100)
    positions = [0, 1, 99, 100, 255, 256, 300, 1000]
    table = RopeTable(config, head_dim, torch.device("cpu"))
    at_once = table(positions)
    for position in reversed(positions):
        alone = RopeTable(config, head_dim, torch.device("cpu"))([position])
        later = table([position])
        for both in zip(at_once, alone, later, strict=True):
            assert torch.equal(both[0][positions.index(position)], both[1][0])
            assert torch.equal(both[1], both[2])


@pytest.mark.parametrize("head_dim", [10, 256, 258, 1024])
def test_frequencies_that_follow_the_position_do_not_depend_on_how_many_are_asked_for(head_dim: int) -> None:
    # they are computed in pieces, so that PyTorch does not share them out
    config, positions = RopeConfig(type="dynamic", factor=4.0, original=100), torch.arange(256)
    at_once = rope.inverse_frequencies(config, head_dim, positions)
    for position in (0, 99, 100, 126, 127, 128, 254, 255):
        alone = rope.inverse_frequencies(config, head_dim, positions[position : position + 1])
        assert torch.equal(at_once[position], alone[0])


@pytest.mark.parametrize("head_dim", [6, 10, 128])
def test_addresses_lead_to_what_the_table_says(head_dim: int) -> None:
    table = RopeTable(RopeConfig(), head_dim, torch.device("cpu"))
    positions = [0, 255, 256, 3, 1000]
    addresses = table.addresses(positions)
    for which, expected in enumerate(table(positions)):
        for address, row in zip(addresses[which], expected.tolist(), strict=True):
            assert list((ctypes.c_float * (head_dim // 2)).from_address(address)) == row


def test_addresses_stay_good_when_another_thread_makes_the_same_page(monkeypatch: pytest.MonkeyPatch) -> None:
    table = RopeTable(RopeConfig(), 8, torch.device("cpu"))
    real, others = rope.inverse_frequencies, []

    def overtaken(*args: Any) -> torch.Tensor:
        if not others:
            others.append(None)
            others.append(table.addresses([7]))  # as another thread would, while this one has not finished
        return real(*args)

    monkeypatch.setattr(rope, "inverse_frequencies", overtaken)
    mine = table.addresses([7])
    cos, sin = table._pages[0]
    assert mine == others[1] == ([cos[7].data_ptr()], [sin[7].data_ptr()])
