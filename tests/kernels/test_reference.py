"""The reference is right: its operations against exact fractions, float64, and cases where an order shows."""

from __future__ import annotations

import contextlib
import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.kernels import reference
from tests.kernels.numbers import BITS, KINDS, floats, same, some_of_all_floats
from tests.oracles import first_largest

NASTY = (
    *(0.0, -0.0, 1.0, -1.0, 1 + 2.0**-23, -1 - 2.0**-23, 1 - 2.0**-24, 3.0, 2.0**-24, -(2.0**-24), 2.0**-25),
    *(2.0**-149, -(2.0**-149), 2.0**-126, 2.0**-126 - 2.0**-149, 2.0**-63, 2.0**-75, -(2.0**-126)),
    *(2.0**127, -(2.0**127), 2.0**64, (2 - 2.0**-23) * 2.0**127, 16777217.0 - 1, 8388609.0, float("inf")),
)


def rounded(exact: Fraction) -> float:
    """The nearest float32, on a tie the even one; infinity beyond the largest. 0 has no sign here."""
    if exact == 0:
        return 0.0
    top = exact.numerator.bit_length() - exact.denominator.bit_length()  # 2^top is exact's size, or twice that
    top -= abs(exact) < Fraction(2) ** top
    unit = Fraction(2) ** max(top - 23, -149)
    value = round(exact / unit) * unit  # Python rounds fractions half to even
    if abs(value) >= 1 << 128:
        return float("inf") if value > 0 else float("-inf")
    return float(value)


def fused_by_fractions(a: float, b: float, c: float) -> float:
    """a * b + c, rounded once. IEEE's rules for infinities and for the sign of 0 are those of Python's floats."""
    if not all(np.isfinite((a, b, c))):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return float(np.copysign(0.0, a) * np.copysign(1.0, b) + c) if a == 0 or b == 0 else 0.0
    return float(np.copysign(rounded(exact), 1 if exact > 0 else -1))


def expect_fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    expected = [fused_by_fractions(*abc) for abc in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
    assert same(reference.fused(a, b, c), torch.tensor(expected, dtype=torch.float32))


# -- fused multiply-add -----------------------------------------------------------------------------------------------


def test_fused_is_rounded_once_on_nasty_numbers() -> None:
    a, b, c = (torch.tensor(column) for column in zip(*itertools.product(NASTY, repeat=3), strict=True))
    expect_fused(a, b, c)


@settings(derandomize=True, database=None, deadline=None, max_examples=40)
@given(kinds=st.tuples(*[st.sampled_from(KINDS)] * 3), seed=st.integers(0, 2**32 - 1))
def test_fused_is_rounded_once_on_numbers_of_all_kinds(kinds: tuple[str, str, str], seed: int) -> None:
    a, b, c = (floats(kind, (50,), seed + i) for i, kind in enumerate(kinds))
    expect_fused(a, b, c)
    expect_fused(a, b, -(a * b))  # what is left is what the rounding of the product lost


def test_two_roundings_would_show() -> None:
    # the product is half a unit above 1, and c pulls it below: rounded to double first, the sum is a tie
    a, b, c = torch.tensor([1 + 2.0**-12]), torch.tensor([1 + 2.0**-12]), torch.tensor([-(2.0**-60)])
    exact = reference.fused(a, b, c)
    assert exact == 1 + 2.0**-11
    assert reference.fused(a, b, -c) == 1 + 2.0**-11 + 2.0**-23
    assert (a.double() * b.double() + c.double()).float() == (a.double() * b.double() - c.double()).float()


def test_while_flushed_a_subnormal_number_is_zero() -> None:
    small = torch.tensor([2.0**-126, -(2.0**-126), 2.0**-127, 2.0**-149])
    half, many, zero = torch.full((4,), 0.5), torch.full((4,), 2.0**100), torch.zeros(4)
    assert same(reference.fused(small, half, zero), torch.tensor([2.0**-127, -(2.0**-127), 2.0**-128, 0.0]))
    with reference.flushed():
        results, operands, addends = (
            reference.fused(small, half, zero),
            reference.fused(small, many, zero),
            reference.fused(zero, many, small),
        )
    assert same(results, torch.tensor([0.0, -0.0, 0.0, 0.0]))
    assert same(operands, torch.tensor([2.0**-26, -(2.0**-26), 0.0, 0.0]))
    assert same(addends, torch.tensor([2.0**-126, -(2.0**-126), 0.0, 0.0]))


def test_flushing_ends_where_it_ends() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with contextlib.suppress(ZeroDivisionError), reference.flushed():
            assert torch.get_num_threads() == 1
            assert float(torch.tensor([2.0**-149]) * 1.0) == 0
            raise ZeroDivisionError
        assert float(torch.tensor([2.0**-149]) * 1.0) == 2.0**-149
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


# -- orders of summation ----------------------------------------------------------------------------------------------


def at(places: dict[int, float], k: int = 64) -> torch.Tensor:
    row = torch.zeros(k)
    for place, value in places.items():
        row[place] = value
    return row


TINY = 2.0**-24  # half a unit of 1: lost where it is added to 1, not where two are added first

# weights by place, with inputs of 1: the sum, and that of the same weights in another place
ORDERS = {
    "bf16": (
        ({0: 1, 2: TINY, 4: TINY}, 1.0),  # one after the other
        ({2: TINY, 4: TINY, 6: 1}, 1 + 2 * TINY),
        ({0: 1, 1: TINY, 3: TINY}, 1 + 2 * TINY),  # odd places apart from even ones
        ({0: 1, 2: TINY, 3: TINY}, 1.0),
        ({0: 1, 32: TINY, 34: TINY}, 1 + 2 * TINY),  # each 32 apart from those before
        ({0: 1, 32: TINY, 33: TINY}, 1 + 2 * TINY),
        ({0: 1, 30: TINY, 32: TINY}, 1.0),
        ({31: 1, 32: TINY, 63: TINY}, 1 + 2 * TINY),
    ),
    "fp32": (
        ({0: 1, 16: TINY, 32: TINY}, 1.0),  # lane 0, step after step
        ({0: TINY, 16: TINY, 32: 1}, 1 + 2 * TINY),
        ({0: 1, 8: TINY, 24: TINY}, 1 + 2 * TINY),  # lane 8 apart, then added to lane 0
        ({0: 1, 8: TINY, 4: TINY}, 1.0),  # 8 to 0, then 4 to 0
        ({0: 1, 4: TINY, 12: TINY}, 1 + 2 * TINY),  # 12 to 4, then 4 to 0
        ({0: 1, 2: TINY, 10: TINY}, 1 + 2 * TINY),
        ({0: 1, 1: TINY, 15: TINY}, 1 + 2 * TINY),  # 15 to 7, 7 to 3, 3 to 1, 1 to 0
        ({0: 1, 1: TINY, 4: TINY}, 1.0),
    ),
}
CASES = [(name, *case) for name, cases in ORDERS.items() for case in cases]


@pytest.mark.parametrize(("order", "places", "expected"), CASES)
def test_the_order_of_a_sum_is_the_format_s(order: str, places: dict[int, float], expected: float) -> None:
    weight, x = at(places), torch.ones(64)
    if order == "bf16":
        assert float(reference.dot_bf16(x, weight.bfloat16())) == expected
    else:
        assert float(reference.dot16(x, weight)) == expected
        assert float(reference.dot(x, weight.half())) == expected


@pytest.mark.parametrize("order", ORDERS)
def test_another_order_gives_other_bits(order: str) -> None:
    # or equality with the reference would say nothing about orders
    values = floats("normal", (200, 96), 0)
    weight = floats("normal", (200, 96), 1).to(torch.bfloat16 if order == "bf16" else torch.float32)
    shuffled = torch.randperm(96, generator=torch.Generator().manual_seed(2))
    one, other = reference.dot(values, weight), reference.dot(values[:, shuffled], weight[:, shuffled])
    assert torch.allclose(one, other, atol=1e-4)
    assert 0.3 < float((one != other).float().mean()) < 1


def test_the_two_orders_are_not_the_same() -> None:
    x, weight = floats("normal", (200, 96), 3).bfloat16(), floats("normal", (200, 96), 4).bfloat16()
    assert float((reference.dot(x.float(), weight) != reference.dot(x.float(), weight.float())).float().mean()) > 0.3


def test_a_product_of_float32_weights_is_rounded_once_with_its_sum() -> None:
    # (1 + 2^-12)^2 - 1: the product's last bit would be lost
    x = at({0: 1.0, 16: 1 + 2.0**-12})
    weight = at({0: -1.0, 16: 1 + 2.0**-12})
    assert float(reference.dot16(x, weight)) == 2.0**-11 + 2.0**-24


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("k", [1, 15, 17, 32, 100])
def test_a_linear_layer_is_near_the_product_in_float64(dtype: torch.dtype, k: int) -> None:
    x, weight, bias = floats("normal", (5, k), 0), floats("normal", (7, k), 1).to(dtype), floats("normal", (7,), 2)
    rows = x.to(dtype) if dtype == torch.bfloat16 else x
    exact = rows.double() @ weight.double().T + bias.double()
    size = rows.double().abs() @ weight.double().abs().T + bias.double().abs()
    assert float(((reference.linear(x, weight, bias) - exact).abs() / size).max()) < 2.0**-22
    assert same(reference.linear(x, weight, torch.zeros(7)), reference.linear(x, weight) + 0.0)


def test_halves_are_added_by_halves() -> None:
    assert float(reference.halves(torch.arange(16.0))) == 120
    lanes = floats("wide", (100, 16), 0) * 2.0**-4
    eight = lanes[:, :8] + lanes[:, 8:]
    four = eight[:, :4] + eight[:, 4:]
    two = four[:, :2] + four[:, 2:]
    assert same(reference.halves(lanes), two[:, 0] + two[:, 1])


# -- elementwise ------------------------------------------------------------------------------------------------------


def test_the_exponential_is_within_a_unit_of_the_last_place() -> None:
    every = some_of_all_floats()
    between = torch.linspace(-87.33654, 88.37626, 300_000)
    steps = torch.arange(-126, 128) * float(np.log(2)) / 2  # where n changes, and where the rest is 0
    near = torch.cat([steps.float() + shift for shift in (-1e-5, 0.0, 1e-5)])
    x = torch.cat([every, between, near])
    x = x[(x >= -87.33654) & (x <= 88.37626)]
    exact = np.exp(x.double().numpy())
    wrong = np.abs(reference.exponential(x).double().numpy() - exact) / np.spacing(exact.astype(np.float32))
    assert wrong.max() < 1
    assert wrong.mean() < 0.3


def test_the_ends_of_the_exponential() -> None:
    largest = reference.exponential(torch.tensor([88.37626]))
    x = torch.tensor([0.0, -0.0, -87.33655, -1e30, -torch.inf, 88.4, 1e30, torch.nan])
    expected = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, torch.nan])
    expected[5:7] = largest
    assert same(reference.exponential(x), expected)
    assert same(reference.exponential(torch.tensor([2.0**-149, -(2.0**-149)])), torch.ones(2))


def test_silu_is_near_that_of_float64() -> None:
    gate, up = torch.linspace(-80, 80, 10_000), floats("normal", (10_000,), 1)
    exact = gate.double() / (1 + (-gate.double()).exp()) * up.double()
    assert float(((reference.silu_mul(gate, up) - exact).abs() / exact.abs().clamp(min=1e-30)).max()) < 1e-6


@pytest.mark.parametrize("width", [1, 8, 33, 100])
def test_a_norm_is_near_that_of_float64(width: int) -> None:
    x, weight = floats("normal", (9, width), 0), floats("normal", (width,), 1)
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert torch.allclose(reference.rms_norm(x, weight, 1e-5).double(), exact, rtol=1e-6, atol=0)


def test_a_rotation_turns_pairs() -> None:
    angles = torch.linspace(0, 3, 12).view(3, 4)
    heads = floats("normal", (3, 8), 0)
    turned = reference.rotate(heads, angles.cos(), angles.sin())
    points = torch.complex(heads[:, :4].double(), heads[:, 4:].double()) * torch.polar(
        torch.ones(3, 4).double(), angles.double()
    )
    assert torch.allclose(turned.double(), torch.cat((points.real, points.imag), dim=1), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_is_to_the_nearest_and_keeps_subnormal_numbers(dtype: torch.dtype) -> None:
    few = torch.tensor([2.0**-133, 3 * 2.0**-135, 2.0**-24, 3 * 2.0**-26])
    halfway = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11])
    with reference.flushed():
        small, ties = reference.round_to(few, dtype), reference.round_to(halfway, dtype)
    if dtype == torch.bfloat16:
        assert small.double().tolist() == [2.0**-133, 2.0**-133, 2.0**-24, 3 * 2.0**-26]
        assert ties.tolist() == [1, 1 + 2.0**-6, 1, 1]
    else:
        assert small.tolist() == [0, 0, 2.0**-24, 2.0**-24]
        assert ties.tolist() == [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1, 1 + 2.0**-9]


# -- attention --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize(("seen", "first"), [(1, 0), (16, 0), (37, 0), (20, 245), (300, 0), (30, 500)])
def test_attention_is_near_that_of_float64(dtype: torch.dtype, seen: int, first: int) -> None:
    query, keys = floats("normal", (4, 24), 0), floats("normal", (seen, 2, 24), 1).to(dtype)
    values = floats("normal", (seen, 2, 24), 2).to(dtype)
    rows = query.to(dtype) if dtype == torch.bfloat16 else query
    grouped = rows.double().view(2, 2, 24) * 24**-0.5
    weights = torch.softmax(grouped @ keys.double().permute(1, 2, 0), dim=-1)
    exact = (weights @ values.double().transpose(0, 1)).reshape(4, 24)
    bound = torch.full_like(exact, 1e-5)
    if dtype == torch.bfloat16:  # to which weights are rounded, each by 2^-9 of its size at most
        bound += 2.0**-9 * (weights @ values.double().abs().transpose(0, 1)).reshape(4, 24)
    assert ((reference.attention(query, keys, values, first).double() - exact).abs() <= bound).all()


def test_where_the_keys_stand_decides_the_blocks_of_attention() -> None:
    # of 40 keys from position 240 on, 16 are softened apart from the rest
    query, keys, values = (floats("normal", shape, 5) for shape in ((4, 24), (40, 2, 24), (40, 2, 24)))
    outs = [reference.attention(query, keys, values, first) for first in (0, 256, 240, 496)]
    assert same(outs[0], outs[1])
    assert same(outs[2], outs[3])
    assert not same(outs[0], outs[2])


def test_a_nan_among_the_keys_reaches_the_result() -> None:
    query, keys, values = (floats("normal", shape, 5) for shape in ((4, 24), (40, 2, 24), (40, 2, 24)))
    keys[7, 1, 3] = torch.nan
    out = reference.attention(query, keys, values)
    assert out[2:].isnan().all()
    assert out[:2].isfinite().all()


# -- choice -----------------------------------------------------------------------------------------------------------


@settings(derandomize=True, database=None, deadline=None, max_examples=100)
@given(st.lists(st.sampled_from([1.0, 2.0, -0.0, 0.0, float("inf"), float("-inf"), float("nan")]), min_size=1))
def test_the_choice_is_the_first_of_the_largest(values: list[float]) -> None:
    assert reference.choice(values) == first_largest(values)


def test_a_thread_counts_subnormal_numbers_as_before() -> None:
    # else every later computation of the process would take them for zero
    tiny, x = 5e-324, torch.ones(1, 32)
    reference.dot(x, x.bfloat16())
    assert tiny * 1.0 > 0.0
    with reference.flushed():
        reference.dot(x, x.bfloat16())
        assert tiny * 1.0 == 0.0
    assert tiny * 1.0 > 0.0
