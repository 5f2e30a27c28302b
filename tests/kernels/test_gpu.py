"""The kernels for a GPU, on one if there is one, else as Triton interprets them on the CPU."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch

from foretoken.formats import FORMATS
from foretoken.formats.quantiser import quantise
from foretoken.formats.table import Format
from foretoken.formats.values import dequantise
from foretoken.kernels import gpu, rowwise
from foretoken.kernels.gpu import Arithmetic

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed here")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROUNDING = 0.0 if torch.cuda.is_available() else 2**-7  # when interpreted, numbers are cut off where a GPU rounds
FORMATS_HERE = [*FORMATS.values(), Format("int4", 4, 32), Format("int4", 4, 128)]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_a_linear_layer_is_a_product_and_its_rows_are_independent(dtype: torch.dtype, biased: bool) -> None:
    x, weight = numbers(150, 70).bfloat16().float(), numbers(48, 70, seed=1).to(dtype)
    bias = numbers(48, seed=2).to(dtype) if biased else None
    found = Arithmetic().linear(x, weight, bias)
    expected = torch.nn.functional.linear(
        x.to(dtype).double(), weight.double(), None if bias is None else bias.double()
    )
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-2)
    for rows in (slice(3, 4), slice(60, 150)):
        assert torch.equal(Arithmetic().linear(x[rows], weight, bias), found[rows])


@pytest.mark.parametrize("width", [64, 70, 1000])
def test_a_norm(width: int) -> None:
    x, weight = numbers(5, 3, width), numbers(width, seed=1).bfloat16()
    found = Arithmetic().rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(found, rowwise.rms_norm(x, weight, 1e-5), rtol=1e-5, atol=1e-5)
    assert torch.equal(Arithmetic().rms_norm(x[2:3], weight, 1e-5), found[2:3])


def test_a_gate() -> None:
    gate, up = numbers(5, 70), numbers(5, 70, seed=1)
    found = Arithmetic().silu_mul(gate, up)
    torch.testing.assert_close(found, rowwise.silu_mul(gate, up), rtol=1e-5, atol=1e-6)
    assert torch.equal(Arithmetic().silu_mul(gate[2:3], up[2:3]), found[2:3])


@pytest.mark.parametrize("format", FORMATS_HERE, ids=lambda format: format.label)
@pytest.mark.parametrize("shape", [(48, 128), (33, 200)], ids=str)
def test_a_low_bit_weight_gives_what_its_values_give(format: Format, shape: tuple[int, int]) -> None:
    weight = quantise(numbers(*shape).cpu().bfloat16(), format, name="w")
    x, bias = numbers(20, shape[1], seed=1).bfloat16().float(), numbers(shape[0], seed=2).bfloat16()
    packed = gpu.pack(weight, DEVICE)
    assert packed.nbytes == gpu.bytes_of(format, *shape)
    found = Arithmetic().linear(x, packed, bias)
    stands_for = dequantise(weight).to(DEVICE).double().T
    expected = x.double() @ stands_for + bias.double()
    cut = max(2**-8, ROUNDING) * (x.double().abs() @ stands_for.abs())
    assert bool(((found - expected).abs() <= 0.01 + 0.01 * expected.abs() + cut).all())
    one = torch.eye(shape[1], device=DEVICE)[:40]  # picks single values
    torch.testing.assert_close(Arithmetic().linear(one, packed, None), stands_for[:40].float(), rtol=ROUNDING, atol=0)
    assert torch.equal(Arithmetic().linear(x[17:18], packed, bias), found[17:18])
