"""MXFP4 against ml_dtypes, which knows both of its number formats, and against the tables of the specification."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from foretoken.formats import FORMATS, mxfp4
from foretoken.formats.quantiser import quantise
from foretoken.formats.values import codes_of, dequantise
from tests.formats.layout import DTYPES, HARD, hard, weights

FORMAT = FORMATS["mxfp4"]


def theirs(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and bytes of float32 [blocks, 32], by ml_dtypes' rounding; our limits and our only zero laid on."""
    largest = np.abs(blocks).max(-1)
    exponents = np.clip(np.frexp(largest)[1] - 1 - 2, -60, 60)
    scaled = np.ldexp(blocks.astype(np.float64), -exponents[:, None]).astype(np.float32)
    codes = scaled.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    codes = np.where(codes == 8, 0, codes)
    exponents = np.where((codes == 0).all(-1), 0, exponents)
    scales = np.ldexp(np.float32(1), exponents).astype(ml_dtypes.float8_e8m0fnu)
    return codes, scales.view(np.uint8)


def scales_of(q) -> torch.Tensor:
    """E8M0 bytes [outputs, blocks]."""
    return q.scales.transpose(1, 2).flatten(0, 1)[: q.shape[0]]


def test_the_tables_of_the_specification() -> None:
    half = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert mxfp4.E2M1.tolist() == half + [-x for x in half]
    assert mxfp4.E2M1.signbit().tolist() == [False] * 8 + [True] * 8
    some = {0: 2.0**-127, 1: 2.0**-126, 67: 2.0**-60, 126: 0.5, 127: 1.0, 128: 2.0, 187: 2.0**60, 254: 2.0**127}
    assert {byte: float(mxfp4.E8M0[byte]) for byte in some} == some
    assert mxfp4.E8M0[255].isnan()


def test_the_tables_are_those_of_ml_dtypes() -> None:
    e2m1 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert mxfp4.E2M1.numpy().view(np.uint32).tolist() == e2m1.view(np.uint32).tolist()
    e8m0 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    np.testing.assert_array_equal(mxfp4.E8M0.numpy(), e8m0)


def test_every_code_with_every_byte_is_the_product() -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(2).expand(256, 32)
    got = mxfp4.values(codes, torch.arange(256, dtype=torch.uint8))
    for byte in range(256):
        scale = 2.0 ** (byte - 127) if byte < 255 else np.nan
        expected = np.array([float(mxfp4.E2M1[c]) * scale for c in range(16)] * 2)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got[byte].numpy(), expected.astype(np.float32))
    assert not got[:255, 8].signbit().any(), "code 8 is 0, as in kernels, and not -0"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [*HARD, "places"])
def test_the_cast_is_that_of_ml_dtypes(kind: str, dtype: torch.dtype) -> None:
    if kind == "places":  # every place between two codes, on every scale that there is, and just beside it
        places = torch.tensor([0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 7.96875])
        eps = torch.finfo(dtype).eps
        places = torch.cat((places, places * (1 + eps), places * (1 - eps / 2)))
        exponents = torch.arange(-126, 125) if dtype != torch.float16 else torch.arange(-20, 13)
        exact = places[None, :] * 2.0 ** exponents[:, None].float()
        exact = torch.nn.functional.pad(exact.repeat(1, 2)[:, :93].view(-1, 3, 31), (1, 0))
        exact[..., 0] = 2.0 ** exponents[:, None].float() * torch.tensor([4.0, 6.0, 7.5])  # sets the block's scale
        w = exact.flatten(1).to(dtype)
    else:
        w = hard(kind, 200, 320, dtype)
    w[0] = 0
    assert w.isfinite().all()
    q = quantise(w, FORMAT, name="w")
    codes, scales = theirs(w.float().numpy().reshape(-1, 32))
    assert codes_of(q).numpy().reshape(-1, 32).tolist() == codes.tolist()
    assert scales_of(q).numpy().flatten().tolist() == scales.tolist()
    if kind in ("normal", "places"):
        assert set(codes.flatten().tolist()) >= set(range(8)), "codes that were not met prove nothing"
    expected = mxfp4.E2M1[codes_of(q).long()].view(-1, 32).double() * 2.0 ** (scales_of(q).double().view(-1, 1) - 127)
    assert torch.equal(dequantise(q).double().view(-1, 32), expected), "values are exact in bf16"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", HARD)
def test_what_was_cast_once_is_cast_to_itself(kind: str, dtype: torch.dtype) -> None:
    w = hard(kind, 70, 100, dtype)
    once = quantise(w, FORMAT, name="w")
    again = quantise(dequantise(once), FORMAT, name="w")
    assert torch.equal(once.codes, again.codes)
    assert torch.equal(once.scales, again.scales)


def test_an_error_is_at_most_half_a_step() -> None:
    """Between neighbours the step is their distance; above 6, up to where the next power of two begins, it is 2."""
    w = weights(64, 640)
    q = quantise(w, FORMAT, name="w")
    unit = 2.0 ** (scales_of(q).double() - 127).repeat_interleave(32, 1)
    error = (w.double() - dequantise(q).double()).abs() / unit
    size = w.double().abs() / unit
    assert (size < 8).all()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    inside = size <= 6
    assert (error <= step / 2)[inside].all()
    assert (error == size - 6)[~inside].all()
    assert (~inside).any()


def test_there_is_no_negative_zero() -> None:
    w = torch.full((16, 32), -0.1)
    w[:, 0] = -6
    w[:, 1] = -0.0
    w[:, 2] = -0.25  # half way between 0 and -0.5
    w[:, 3] = -0.26
    q = quantise(w, FORMAT, name="w")
    assert codes_of(q)[0, :5].tolist() == [15, 0, 0, 9, 0]
    assert not (codes_of(q) == 8).any()
    assert not dequantise(q)[:, 1].signbit().any()


@pytest.mark.parametrize(
    ("largest", "byte", "code"),
    [
        (0.0, 127, 0),
        (2.0**-126, 127, 0),
        (2.0**-127, 127, 0),  # subnormal
        (2.0**-62, 127, 0),  # half way between 0 and half of the smallest scale
        (2.0**-61, 67, 1),
        (2.0**-60, 67, 2),
        (2.0**-58, 67, 6),
        (2.0**-57, 68, 6),
        (1.0, 125, 6),
        (2.0**62, 187, 6),
        (2.0**63, 187, 7),
        (3e38, 187, 7),
    ],
)
def test_blocks_at_the_ends_of_the_scales(largest: float, byte: int, code: int) -> None:
    w = torch.zeros(16, 64)
    w[3, 40] = largest
    q = quantise(w, FORMAT, name="w")
    assert q.scales[0, 1].tolist() == [byte if o == 3 else 127 for o in range(16)]
    assert q.scales[0, 0].tolist() == [127] * 16
    assert int(codes_of(q)[3, 40]) == code
    assert int(codes_of(q).count_nonzero()) == (code != 0)
