"""The integer formats against the same definition in numpy, with ml_dtypes' bfloat16, and against bounds."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from foretoken.formats import FORMATS, Format, integers
from foretoken.formats.quantiser import quantise
from foretoken.formats.values import codes_of, dequantise
from foretoken.formats.weight import QuantisedWeight, expect_valid
from tests.formats.layout import DTYPES, GROUPED, HARD, hard

F32 = np.float32
BF16 = ml_dtypes.bfloat16
TINY, HUGE = F32(2.0**-100), F32(2.0**100)

hard_floats = st.one_of(
    st.floats(-1, 1, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, -1.0, 1.5, 2.0**-100, 2.0**-99, -(2.0**100), 2.0**100, 3e38, 1e-40]),
)
hard_rows = hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 70)), elements=hard_floats)


def groups_of(w: np.ndarray, group: int) -> list[list[np.ndarray]]:
    return [[row[i : i + group] for i in range(0, len(row), group)] for row in w]


def theirs(group: np.ndarray, bits: int) -> tuple[np.ndarray, np.float32, np.float32]:
    """Codes, scale and zero point of the numbers of one group."""
    last = F32((1 << bits) - 1)
    low = max(min(group.min(), F32(0)), -HUGE)
    high = min(max(group.max(), F32(0)), HUGE)
    scale = F32(((high - low) / last).astype(BF16))
    if scale < TINY:
        return np.zeros(len(group), np.uint8), F32(0), F32(0)
    zero = F32((-low / scale).astype(BF16))
    if abs(zero) < 2.0**-20:
        zero = F32(0)
    return np.clip(np.rint(group / scale + zero), 0, last).astype(np.uint8), scale, zero


def scales_of(q: QuantisedWeight) -> torch.Tensor:
    """Scales and zero points, float32 [outputs, groups, 2]."""
    return q.scales.float().transpose(1, 2).flatten(0, 1)[: q.shape[0]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", HARD)
@pytest.mark.parametrize("format", GROUPED, ids=lambda f: f.label)
def test_groups_are_cast_as_numpy_casts_them(format: Format, kind: str, dtype: torch.dtype) -> None:
    w = hard(kind, 35, 300, dtype)
    q = quantise(w, format, name="w")
    expect_valid(q, "w")
    codes, scales, values = codes_of(q), scales_of(q), dequantise(q)
    for o, row in enumerate(groups_of(w.float().numpy(), format.group)):
        for g, group in enumerate(row):
            mine = codes[o, g * format.group : g * format.group + len(group)]
            expected, scale, zero = theirs(group, format.bits)
            assert scales[o, g].tolist() == [scale, zero]
            assert mine.tolist() == expected.tolist()
            number = ((expected.astype(F32) - zero) * scale).astype(BF16)
            stands = values[o, g * format.group : g * format.group + len(group)]
            assert stands.view(torch.int16).tolist() == number.view(np.int16).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", HARD)
def test_int8_is_cast_as_numpy_casts_it(kind: str, dtype: torch.dtype) -> None:
    w = hard(kind, 35, 300, dtype)
    q = quantise(w, FORMATS["int8"], name="w")
    expect_valid(q, "w")
    row = w.float().numpy()
    scale = np.minimum(np.abs(row).max(-1), HUGE) / F32(127)
    scale[scale < TINY] = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(scale[:, None] > 0, np.clip(np.rint(row / scale[:, None]), -127, 127), 0).astype(np.int8)
    assert q.scales[:35].tolist() == scale.tolist()
    assert codes_of(q).tolist() == codes.tolist()
    values = (codes.astype(F32) * scale[:, None]).astype(BF16)
    assert dequantise(q).view(torch.int16).tolist() == values.view(np.int16).tolist()


@settings(deadline=None, max_examples=60)
@given(w=hard_rows, format=st.sampled_from(GROUPED))
def test_a_group_errs_by_half_a_step_at_most(w: np.ndarray, format: Format) -> None:
    """Before values are rounded to bf16. number / scale + zero is rounded twice, to 24 bits, and is at most 16: 2**-19.

    No code beyond the ends is wanted by half a step: scale and zero point, of 8 bits, move them by 0.1 at most.
    """
    q = quantise(torch.from_numpy(w), format, name="w")
    expect_valid(q, "w")
    scales = scales_of(q).double().repeat_interleave(format.group, 1)[:, : w.shape[1]]
    scale, zero = scales.unbind(-1)
    exact = torch.from_numpy(w).double().clamp(-(2.0**100), 2.0**100)
    error = ((codes_of(q).double() - zero) * scale - exact).abs()
    bound = torch.where(scale > 0, scale * (0.5 + 2.0**-19), 2.0**-100 * (1 << format.bits))
    assert (error <= bound).all()
    assert dequantise(q).isfinite().all()


@settings(deadline=None, max_examples=60)
@given(w=hard_rows)
def test_a_row_of_int8_errs_by_half_a_step_at_most(w: np.ndarray) -> None:
    """Before values are rounded to bf16. number / scale is rounded to 24 bits and is at most 127: 2**-18."""
    q = quantise(torch.from_numpy(w), FORMATS["int8"], name="w")
    expect_valid(q, "w")
    scale = q.scales[: len(w), None].double()
    exact = torch.from_numpy(w).double().clamp(-(2.0**100), 2.0**100)
    error = (codes_of(q).double() * scale - exact).abs()
    assert (error <= torch.where(scale > 0, scale * (0.5 + 2.0**-17), 127 * 2.0**-100)).all()
    assert dequantise(q).isfinite().all()


@pytest.mark.parametrize("number", [1.0, -1.0, 0.3, -0.3, 1e-20, -7e20])
@pytest.mark.parametrize("format", [*GROUPED, FORMATS["int8"]], ids=lambda f: f.label)
def test_a_group_of_one_number_comes_out_well(format: Format, number: float) -> None:
    """Scale, zero point and value are each rounded to 8 bits once: 2**-8 each."""
    w = torch.full((3, 130), number)
    values = dequantise(quantise(w, format, name="w"))
    assert ((values.double() - w.double()).abs() <= 3 * 2.0**-8 * abs(number)).all()
    assert (values == values[0, 0]).all()


@pytest.mark.parametrize("number", [0.0, -0.0, 1e-40, -1e-40, 2.0**-126, -(2.0**-101)])
@pytest.mark.parametrize("format", [*GROUPED, FORMATS["int8"]], ids=lambda f: f.label)
def test_what_is_as_good_as_zero_has_no_scale(format: Format, number: float) -> None:
    w = torch.full((17, 33), number)
    w[16] = 1.0  # another output of another tile
    q = quantise(w, format, name="w")
    expect_valid(q, "w")
    assert codes_of(q)[:16].count_nonzero() == 0
    assert (q.scales[:16] if format.name == "int8" else q.scales[0]).count_nonzero() == 0
    assert (dequantise(q)[:16].view(torch.int16) == 0).all(), "+0"
    assert (dequantise(q)[16] != 0).all()


def test_no_value_is_subnormal() -> None:
    """Whether a result just below the smallest normal number is one is where processors differ: none comes near it."""
    scale = torch.tensor([2.0**-100], dtype=torch.bfloat16)
    for last in (3, 7, 15):
        codes = torch.arange(last + 1, dtype=torch.uint8)
        patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
        zeros = patterns[(patterns == 0) | ((patterns.abs() >= 2.0**-20) & (patterns.abs() <= 2.0**20))]
        values = integers.group_values(codes.expand(len(zeros), -1), scale, zeros).double().abs()
        assert ((values == 0) | (values >= 2.0**-120)).all()
        assert len(zeros) > 10_000
