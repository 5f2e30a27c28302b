"""Norms, activations, rotations and changes of type, with every instruction set, against the reference, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foretoken.kernels import native, reference
from tests.isas import HERE
from tests.kernels.numbers import BITS, DTYPES, KINDS, floats, numbers, placed, same, some_of_all_floats
from tests.oracles import first_largest
from tests.tiny import needs_native

pytestmark = needs_native
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
half_types = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
isas = pytest.mark.parametrize("isa", HERE)
some = settings(derandomize=True, database=None, deadline=None, max_examples=150)
kinds = st.sampled_from(KINDS)
offsets = st.sampled_from((0, 4, 8, 36, 60))  # bytes behind a multiple of 64
seeds = st.integers(0, 2**32 - 1)


# -- norms and activations --------------------------------------------------------------------------------------------


@some
@given(
    rows=st.integers(0, 5),
    width=st.integers(1, 100),
    of=kinds,
    weight_of=kinds,
    eps=st.sampled_from((1e-5, 1e-6, 0.0, 1e-40, 3.0)),
    offset=offsets,
    seed=seeds,
)
@example(2, 16, "normal", "normal", 1e-6, 0, 0)
@example(2, 33, "edge", "normal", 0.0, 4, 0)  # squares vanish
@example(2, 33, "huge", "normal", 1e-5, 4, 0)  # squares overflow
@example(2, 7, "special", "special", 1e-5, 4, 0)
def test_a_norm_is_the_reference_s(
    rows: int, width: int, of: str, weight_of: str, eps: float, offset: int, seed: int
) -> None:
    x, weight = placed(floats(of, (rows, width), seed), offset), placed(floats(weight_of, (width,), seed + 1), offset)
    expected = reference.rms_norm(x, weight, eps)
    for isa in HERE:
        assert same(native.rms_norm(x, weight, eps, isa), expected), isa


def test_norms_of_every_width_and_of_wide_rows_are_the_reference_s() -> None:
    for width in (*range(1, 70), 896, 4097):
        x, weight = floats("normal", (2, width), width), floats("normal", (width,), width + 1)
        expected = reference.rms_norm(x, weight, 1e-6)
        for isa in HERE:
            assert same(native.rms_norm(x, weight, 1e-6, isa), expected), (isa, width)


@some
@given(size=st.integers(0, 70), of=kinds, up_of=kinds, offset=offsets, seed=seeds)
def test_an_activation_is_the_reference_s(size: int, of: str, up_of: str, offset: int, seed: int) -> None:
    gate, up = placed(floats(of, (size,), seed), offset), placed(floats(up_of, (size,), seed + 1), offset)
    expected = reference.silu_mul(gate, up)
    for isa in HERE:
        assert same(native.silu_mul(gate, up, isa), expected), isa


@isas
def test_activations_of_all_exponents_are_the_reference_s(isa: str) -> None:
    ends = [sign * end for sign in (1, -1) for end in (87.33654, 88.37626, 88.37627, 87.336548, 126 * 0.6931472)]
    gate = torch.cat([some_of_all_floats(), torch.linspace(-100, 100, 40_000), torch.tensor(ends)])
    up = floats("normal", (len(gate),), 1)
    assert same(native.silu_mul(gate, up, isa), reference.silu_mul(gate, up))


# -- rotations --------------------------------------------------------------------------------------------------------


@some
@given(rows=st.integers(0, 5), half=st.integers(1, 70), of=kinds, turned_by=kinds, offset=offsets, seed=seeds)
def test_a_rotation_is_the_reference_s(rows: int, half: int, of: str, turned_by: str, offset: int, seed: int) -> None:
    heads = placed(floats(of, (rows, 2 * half), seed), offset)
    cos, sin = (placed(floats(turned_by, (rows, half), seed + i), offset) for i in (1, 2))
    before, expected = heads.clone(), reference.rotate(heads, cos, sin)
    for isa in HERE:
        assert same(native.rotate(heads, cos, sin, isa), expected), isa
    assert same(heads, before)


# -- types ------------------------------------------------------------------------------------------------------------


def all_of(dtype: torch.dtype) -> torch.Tensor:
    """Every pattern of 16 bits."""
    return torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)


@isas
@half_types
def test_widening_is_exact_for_every_pattern(dtype: torch.dtype, isa: str) -> None:
    x = all_of(dtype)
    assert len(x) == 65_536
    assert same(native.widen(x, isa), x.float())


@isas
@dtypes
def test_widening_any_number_of_numbers_from_anywhere(dtype: torch.dtype, isa: str) -> None:
    for size in range(70):
        x = placed(numbers("wide", (size,), dtype, size), 2 * size % 64)
        assert same(native.widen(x, isa), x.float()), size


@isas
def test_float32_stays_as_it_is(isa: str) -> None:
    x = some_of_all_floats()
    for result in (native.widen(x, isa), native.round_to(x, torch.float32, isa)):
        assert torch.equal(result.view(torch.int32), x.view(torch.int32))


@isas
@half_types
def test_rounding_is_to_the_nearest_around_every_number(dtype: torch.dtype, isa: str) -> None:
    # each number, half-way to the next, and the float32 numbers beside both
    here = all_of(dtype).float()
    following = (all_of(dtype).view(BITS[dtype]) + 1).view(dtype).float()
    halfway = ((here.double() + following.double()) / 2).float()
    points = torch.cat([here, halfway])
    beside = [(points.view(torch.int32) + step).view(torch.float32) for step in (-2, -1, 1, 2)]
    x = torch.cat([points, *beside])
    with reference.flushed():
        by_the_reference = reference.round_to(x, dtype)
    rounded = native.round_to(x, dtype, isa)
    assert same(rounded, x.to(dtype))
    assert same(rounded, by_the_reference)


@isas
@half_types
def test_rounding_of_all_exponents(dtype: torch.dtype, isa: str) -> None:
    x = some_of_all_floats()
    assert same(native.round_to(x, dtype, isa), x.to(dtype))
    for size in range(40):
        assert same(native.round_to(x[size : 2 * size], dtype, isa), x[size : 2 * size].to(dtype)), size


# -- choice -----------------------------------------------------------------------------------------------------------


@some
@given(size=st.integers(1, 70), of=st.sampled_from(("normal", "ties", "wide", "special")), offset=offsets, seed=seeds)
def test_the_choice_is_the_reference_s(size: int, of: str, offset: int, seed: int) -> None:
    logits = placed(floats(of, (size,), seed), offset)
    expected = reference.choice(logits.tolist())
    assert expected == first_largest(logits.tolist())
    for isa in HERE:
        assert native.argmax(logits, isa) == expected, isa
    logits[seed % size] = torch.nan
    for isa in HERE:
        assert native.argmax(logits, isa) is None, isa


# -- the process is left as it was ------------------------------------------------------------------------------------


@isas
def test_subnormal_numbers_count_again_after_a_kernel(isa: str) -> None:
    x, small = torch.ones(3, 8), torch.full((4,), 2.0**-149)
    calls = (
        lambda: native.linear(x, torch.ones(4, 8), None, isa, 2),
        lambda: native.rms_norm(x, torch.ones(8), 1e-5, isa),
        lambda: native.silu_mul(x[0], x[1], isa),
        lambda: native.rotate(x, torch.ones(3, 4), torch.ones(3, 4), isa),
        lambda: native.round_to(x[0], torch.bfloat16, isa),
        lambda: native.widen(x[0].bfloat16(), isa),
        lambda: native.argmax(x[0], isa),
    )
    for call in calls:
        call()
        assert torch.equal(small * 1.0, small)
