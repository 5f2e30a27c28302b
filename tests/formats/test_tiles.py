from __future__ import annotations

import pytest
import torch

from foretoken.formats import tiles
from tests.formats.layout import codes_in


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (48, 32), (16, 160), (32, 96)])
def test_every_code_lies_where_the_document_says(bits: int, outputs: int, inputs: int) -> None:
    codes = torch.randint(0, 1 << bits, (outputs, inputs), dtype=torch.uint8)
    packed = tiles.pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.is_contiguous()
    assert packed.shape == (outputs // 16, inputs // 32, 64 * bits)
    assert torch.equal(codes_in(packed, bits), codes.long())
    assert torch.equal(tiles.unpack(packed, bits), codes)


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_every_bit_of_a_block_is_a_bit_of_one_code(bits: int) -> None:
    """Unpacking all patterns and packing them again loses nothing: no bit is unused, none is used twice."""
    packed = torch.randint(0, 256, (3, 5, 64 * bits), dtype=torch.uint8)
    assert torch.equal(tiles.pack(tiles.unpack(packed, bits), bits), packed)


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_memory_that_is_not_in_one_piece_is_packed_alike(bits: int) -> None:
    codes = torch.randint(0, 1 << bits, (64, 32), dtype=torch.uint8)
    assert torch.equal(tiles.pack(codes.T, bits), tiles.pack(codes.T.contiguous(), bits))
    packed = tiles.pack(codes, bits)
    assert torch.equal(
        tiles.unpack(packed[::2], bits), tiles.unpack(packed, bits).unflatten(0, (-1, 16))[::2].flatten(0, 1)
    )
