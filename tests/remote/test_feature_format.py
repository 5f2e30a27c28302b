"""What a trained drafter sees of the model, as it travels: packed, read again, asked for, and offered."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken.errors import InputError, NumericsError, RemoteError
from foretoken.protocol.types import Features, Needs
from foretoken.remote.features import Arriving, Offered, Part, bytes_of_row, names_of, needs_of, packed, read

LAYOUT = (Part("observed", 1, 24), Part("keys.3", 2, 8))


def features(rows: int, start: int = 0) -> Features:
    chance = torch.Generator().manual_seed(rows)
    return Features(
        start,
        {
            "observed": torch.randn((rows, 24), generator=chance) * 10,
            "keys.3": torch.randn((rows, 2, 8), generator=chance).bfloat16(),
        },
    )


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_what_is_packed_is_read_again_within_half_a_step(rows: int) -> None:
    its = features(rows, start=5)
    block = packed(its, LAYOUT, 5, 5 + rows)
    assert len(block) == rows * bytes_of_row(LAYOUT) == rows * (2 + 24 + 2 * (2 + 8))
    for name, found in read(block, LAYOUT).items():
        true = its.tensors[name].float()
        assert found.shape == true.shape
        if rows:
            step = true.abs().amax(-1, keepdim=True) / 127
            assert ((found - true).abs() <= step * 0.51 + 1e-6).all()
            assert not torch.equal(found, true)


def test_zeros_stay_zeros_and_what_no_scale_holds_is_refused() -> None:
    zeros = Features(0, {name: torch.zeros_like(tensor) for name, tensor in features(3).tensors.items()})
    assert not any(tensor.any() for tensor in read(packed(zeros, LAYOUT, 0, 3), LAYOUT).values())
    for wrong in (float("nan"), float("inf"), 1e9):
        its = features(3)
        its.tensors["observed"][1, 2] = wrong
        with pytest.raises(NumericsError, match="the feature observed of a token has a number that no scale holds"):
            packed(its, LAYOUT, 0, 3)


def test_a_block_that_makes_no_sense_is_refused() -> None:
    block = packed(features(4), LAYOUT, 0, 4)
    for spoiled in (block[:-1], block + b"x"):
        with pytest.raises(RemoteError, match=r"features came with \d+ bytes, expected a multiple of 46"):
            read(spoiled, LAYOUT)
    for scale in (b"\x00\x7e", b"\x00\x7c", b"\x00\xbc"):  # NaN, infinity, -1
        with pytest.raises(RemoteError, match="a scale that is no number"):
            read(scale + block[2:], LAYOUT)


def test_pieces_that_come_twice_or_leave_a_gap_are_dropped() -> None:
    its, arriving = features(12), Arriving(LAYOUT)

    def come(start: int, stop: int) -> None:
        arriving.come(start, packed(its, LAYOUT, start, stop), 12)

    whole = read(packed(its, LAYOUT, 0, 12), LAYOUT)
    for start, stop in ((0, 4), (0, 4), (6, 8), (2, 7)):
        come(start, stop)
    found = arriving.taken()
    assert found is not None
    assert (found.start, arriving.have) == (0, 7)
    assert all(torch.equal(found.tensors[name], whole[name][:7]) for name in whole)
    assert arriving.taken() is None
    come(5, 12)
    found = arriving.taken()
    assert found is not None
    assert (found.start, arriving.have) == (7, 12)
    assert all(torch.equal(found.tensors[name], whole[name][7:]) for name in whole)
    with pytest.raises(RemoteError, match="expected a multiple of"):
        Arriving(()).come(0, b"nobody wants them", 9)
    with pytest.raises(RemoteError, match="features came up to position 12, expected at most 11"):
        Arriving(LAYOUT).come(10, packed(its, LAYOUT, 10, 12), 11)


def test_what_is_asked_for_is_read_again_or_refused() -> None:
    for needs in (Needs(), Needs((1, 5), normed=True), Needs(extractors=("layers-abc",)), Needs(normed=True)):
        assert needs_of(names_of(needs)) == needs
    for wrong in ("normed", [3], ["hidden.1"] * 2, ["hidden.2", "hidden.1"], ["a", "b"], ["x"] * 17):
        with pytest.raises(InputError, match="expected"):
            needs_of(wrong)
    with pytest.raises(InputError, match="4 layers"):
        needs_of([f"hidden.{layer}" for layer in range(5)])
    offered = Offered(8, 64, {"layers-abc": LAYOUT})
    states = Part("hidden.8", 1, 64), Part("normed", 1, 64)
    assert offered.layout(Needs((8,), normed=True, extractors=("layers-abc",))) == (*states, *LAYOUT)
    with pytest.raises(InputError, match="before layer 9"):
        offered.layout(Needs((9,)))
    lacking = Needs(extractors=("other",))
    with pytest.raises(InputError, match="the host does not run the part 'other' of a trained drafter"):
        offered.layout(lacking)
    assert offered.possible(lacking) == Needs()
    wide = Offered(8, 20_000, {})
    assert wide.possible(Needs((1, 2, 3))) == Needs((1, 2, 3))
    with pytest.raises(InputError, match="what the drafter sees of a token takes 80,008 bytes"):
        wide.layout(Needs((1, 2, 3, 4)))
    assert Offered.read(offered.to_json()) == offered


@pytest.mark.parametrize(
    "said",
    [
        None,
        {},
        {"layers": 3, "hidden_size": 4},
        {"layers": -1, "hidden_size": 4, "extractors": {}},
        {"layers": 3, "hidden_size": 4, "extractors": {"x": []}},
        {"layers": 3, "hidden_size": 4, "extractors": {"x": [["name", 1]]}},
        {"layers": 3, "hidden_size": 4, "extractors": {"x": [["name", 1, 1 << 17]]}},
        {"layers": 3, "hidden_size": 4, "extractors": {"x": [["name", 0, 5]]}},
        {"layers": 3, "hidden_size": 4, "extractors": {str(n): [["name", 1, 5]] for n in range(65)}},
    ],
)
def test_an_offer_that_makes_no_sense_is_refused(said: Any) -> None:
    with pytest.raises(RemoteError, match="the host says of its features what makes no sense"):
        Offered.read(said)
