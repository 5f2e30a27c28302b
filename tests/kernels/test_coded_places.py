"""Keys and values in int8 are those of the quantiser, with every instruction set."""

from __future__ import annotations

import pytest
import torch

from foretoken.errors import ContractError
from foretoken.formats.table import PLACES
from foretoken.formats.weight import bytes_of_places
from foretoken.kernels import coded, native
from tests.isas import HERE
from tests.kernels.numbers import DTYPES, numbers
from tests.tiny import needs_native

pytestmark = needs_native


def as_bytes(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor.contiguous().view(torch.uint8).flatten() for tensor in tensors])


@pytest.mark.parametrize("kind", ["normal", "edge", "ties", "wide", "huge"])
@pytest.mark.parametrize("width", [16, 48, 64, 80, 256])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_places_are_coded_as_weights_are(dtype: torch.dtype, width: int, kind: str) -> None:
    layers, heads = 2, 3
    room = (layers, PLACES + 7, heads, width)  # a cache has more positions than these
    finite = torch.finfo(dtype).max
    keys, values = (numbers(kind, room, dtype, seed).clamp(-finite, finite)[:, 2 : PLACES + 2] for seed in (1, 2))
    for isa in HERE:
        found = native.code_places(keys, values, isa, threads=2)
        assert found.shape[2] * heads == bytes_of_places(heads, width)
        for layer in range(layers):
            for head in range(heads):
                k, v = coded.code_places(keys[layer, :, head].contiguous(), values[layer, :, head].contiguous())
                assert torch.equal(found[layer, head], as_bytes(k.scales, v.scales, k.codes, v.codes)), isa


def test_numbers_too_small_for_a_scale_are_zeros() -> None:
    keys = torch.zeros((1, PLACES, 1, 16))
    keys[0, 0, 0, 3] = 2.0**-96
    keys[0, 1, 0, 3] = 2.0**-90
    found = native.code_places(keys, keys, native.isa())
    scales = found[0, 0, : 4 * PLACES].view(torch.float32)
    assert scales[0] == 0.0
    assert scales[1] > 0.0


def test_what_is_no_block_of_places_is_refused() -> None:
    good = torch.zeros((1, PLACES, 1, 16))
    for keys, values in (
        (good[:, 1:], good[:, 1:]),
        (torch.zeros((1, PLACES, 1, 24)),) * 2,
        (torch.zeros((1, PLACES, 1, 272)),) * 2,
        (good, good.bfloat16()),
        (torch.zeros((1, PLACES, 2, 16))[:, :, :1],) * 2,
        (good[0], good[0]),
    ):
        with pytest.raises(ContractError, match="expected"):
            native.code_places(keys, values, native.isa())
