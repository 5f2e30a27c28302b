"""The definition of low-bit layers with int8 and fp32 inputs is right: against single steps and float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.formats import Format, format_of
from foretoken.formats.values import codes_of
from foretoken.formats.weight import QuantisedWeight
from foretoken.kernels import coded
from tests.formats.layout import ALL
from tests.kernels.low_bit import weight
from tests.kernels.numbers import floats, same

UNIT = 2.0**-24  # the largest relative error of one rounding to float32
formats = pytest.mark.parametrize("format", ALL, ids=lambda format: format.label)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def exact_values(w: QuantisedWeight) -> torch.Tensor:
    """What the codes stand for before anything is rounded: float64 [outputs, inputs]."""
    codes = codes_of(w).double()
    outputs, inputs = w.shape
    if w.format.name == "int8":
        return codes * w.scales.double()[:outputs, None]
    by_output = w.scales.transpose(1, 2).flatten(0, 1)[:outputs]
    if w.format.name == "mxfp4":
        signs = torch.where(codes < 8, 1.0, -1.0)
        scale = 2.0 ** (by_output.double() - 127)
        return signs * torch.tensor(E2M1).double()[codes.long() % 8] * scale.repeat_interleave(32, 1)[:, :inputs]
    scale, zero = (part.repeat_interleave(w.format.group, 1)[:, :inputs] for part in by_output.double().unbind(-1))
    return (codes - zero) * scale


# -- int8 inputs ------------------------------------------------------------------------------------------------------


def quantised_block(block: list[float]) -> tuple[list[int], float, bool]:
    """A block of inputs, number by number."""
    top = np.float32(0.0)
    for value in block:
        if not abs(value) <= 2.0**60:
            return [0] * 32, 1.0, False
        top = max(top, np.float32(abs(value)))
    if top < 2.0**-40:
        return [0] * 32, 1.0, True
    by = np.float32(127) / top
    return [round(float(np.float32(value) * by)) for value in block], float(top / np.float32(127)), True


kinds = st.sampled_from(("normal", "edge", "ties", "wide", "special"))
sizes = st.sampled_from((1.0, 2.0**-39, 2.0**40, 2.0**58))


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(
    st.integers(1, 5), st.integers(1, 140), kinds, st.sampled_from((1.0, 2.0**-39, 2.0**40, 2.0**58)), st.integers(0)
)
def test_inputs_are_quantised_as_the_definition_says(rows: int, inputs: int, kind: str, size: float, seed: int) -> None:
    x = floats(kind, (rows, inputs), seed % 2**32)
    x = x * (size if kind == "normal" else 1.0)
    numbers, scales, sound = coded.quantise_inputs(x)
    for row in range(rows):
        padded = [*x[row].tolist(), *[0.0] * (-inputs % 32)]
        blocks = [quantised_block(padded[at : at + 32]) for at in range(0, len(padded), 32)]
        assert bool(sound[row]) == all(ok for _, _, ok in blocks)
        if sound[row]:
            assert numbers[row].tolist() == [whole for whole, _, _ in blocks]
            assert scales[row].tolist() == [scale for _, scale, _ in blocks]


def test_the_largest_input_of_a_block_is_127_and_no_other_is_beyond() -> None:
    x = floats("normal", (50, 160), 1) * 2.0 ** torch.arange(-30, 20)[:, None]
    numbers, scales, sound = coded.quantise_inputs(x)
    assert sound.all()
    assert (numbers.abs().amax(-1) == 127).all()
    back = (numbers * scales[..., None].double()).view(50, 160)
    wrong = ((back - x.double()).view(50, 5, 32).abs() / scales[..., None]).max()
    assert 0.49 < float(wrong) <= 0.5 + 127 * 3 * UNIT  # rounded to whole numbers, after 127 / top and a product


def test_signs_and_powers_of_two_change_nothing() -> None:
    x = floats("normal", (20, 64), 1)
    numbers, scales, _ = coded.quantise_inputs(x)
    for by in (-1.0, 2.0**-20, -(2.0**50)):
        again, others, _ = coded.quantise_inputs(x * by)
        assert torch.equal(again, numbers * (1 if by > 0 else -1))
        assert same(others, scales * abs(by))


def test_halves_are_rounded_to_even_numbers() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 125.5]])
    numbers, scales, _ = coded.quantise_inputs(x)
    assert numbers[0, 0, :9].tolist() == [127, 0, 2, 2, 0, -2, -2, 126, 126]
    assert numbers[0, 0, 9:].count_nonzero() == 0
    assert scales.tolist() == [[1.0]]


def test_127_is_divided_by_the_largest_in_one_step() -> None:
    # as a reciprocal times 127 it would be 50.484474, and the half of the largest -64
    x = torch.tensor([[2.515625, -1.2578125]])
    assert float(np.float32(127) / np.float32(2.515625)) == 50.48447036743164
    assert coded.quantise_inputs(x)[0][0, 0, :2].tolist() == [127, -63]
    bf16 = floats("normal", (2000, 32), 1).bfloat16().float()  # where ties are not rare
    numbers, _, _ = coded.quantise_inputs(bf16)
    assert numbers[:, 0].tolist() == [quantised_block(row)[0] for row in bf16.tolist()]


@pytest.mark.parametrize(
    ("value", "used", "sound"),
    [
        (2.0**-40, True, True),
        (2.0**-40 * (1 - UNIT), False, True),
        (2.0**-140, False, True),
        (0.0, False, True),
        (-0.0, False, True),
        (2.0**60, True, True),
        (-(2.0**60), True, True),
        (2.0**60 * (1 + 2 * UNIT), False, False),
        (torch.inf, False, False),
        (-torch.inf, False, False),
        (torch.nan, False, False),
    ],
)
def test_where_numbers_begin_and_end(value: float, used: bool, sound: bool) -> None:
    x = torch.zeros(2, 70)
    x[0, 40] = value
    x[1] = 1.0
    numbers, scales, good = coded.quantise_inputs(x)
    assert good.tolist() == [sound, True]
    if sound:
        assert numbers[0].count_nonzero() == int(used)
        assert numbers[0, 1, 8] == (127 if value > 0 else -127) * used
        assert scales[0].tolist() == [1.0, float(np.float32(abs(value)) / np.float32(127)) if used else 1.0, 1.0]
    w = weight(format_of("int4"), 16, 70, 0)
    got = coded.linear_int8(x, w)
    assert got[0].isnan().all() == (not sound)
    assert same(got[1:], coded.linear_int8(x[1:], w))


# -- against float64 --------------------------------------------------------------------------------------------------


@formats
@pytest.mark.parametrize("shape", [(1, 1), (17, 33), (20, 130), (40, 300)], ids=str)
def test_int8_inputs_give_the_sum_of_what_they_stand_for(format: Format, shape: tuple[int, int]) -> None:
    w, x = weight(format, *shape, seed=1), floats("normal", (9, shape[1]), 2)
    numbers, scales, _ = coded.quantise_inputs(x)
    stand_for = (numbers.double() * scales.double()[..., None]).flatten(1)[:, : shape[1]]
    values = exact_values(w)
    got, exact = coded.linear_int8(x, w).double(), stand_for @ values.T
    # Whole numbers are exact. A block's sum is rounded with each fused step after it: one for each block, and at most
    # four for a zero point, for a scale, and for the sum of inputs; of it, |code| + |zero point| is what may be lost
    steps = scales.shape[1] + 4
    if format.has_zeros:
        by_output = w.scales.double().transpose(1, 2).flatten(0, 1)[: shape[0]]
        scale, zero = (part.repeat_interleave(format.group, 1)[:, : shape[1]] for part in by_output.unbind(-1))
        size = (codes_of(w).double() + zero.abs()) * scale
    else:
        size = values.abs()
    bound = stand_for.abs() @ size.T * steps * UNIT / (1 - steps * UNIT)
    assert ((got - exact).abs() <= bound).all()
    assert float(bound.max()) < 2e-4 * float(exact.abs().max())  # or it would allow anything
    if shape[1] > 100:
        assert bool(((got - exact).abs() > 0).any())
    # and what rounding the inputs does: at most half a step of each
    lost = scales.double().repeat_interleave(32, 1)[:, : shape[1]] * (0.5 + 127 * 3 * UNIT)
    assert ((got - x.double() @ values.T).abs() <= lost @ values.abs().T + bound).all()


@pytest.mark.parametrize("shape", [(1, 1), (17, 33), (20, 130), (40, 300)], ids=str)
def test_fp32_inputs_give_the_sum_of_what_they_are(shape: tuple[int, int]) -> None:
    w, x = weight(format_of("mxfp4"), *shape, seed=1), floats("normal", (9, shape[1]), 2)
    values = exact_values(w)
    got, exact = coded.linear_fp32(x, w).double(), x.double() @ values.T
    steps = 32 + -(-shape[1] // 32)  # fused: of a block, then of blocks
    bound = x.double().abs() @ values.abs().T * steps * UNIT / (1 - steps * UNIT)
    assert ((got - exact).abs() <= bound).all()
    assert shape[1] < 100 or bool(((got - exact).abs() > 0).any())


@formats
def test_a_bias_is_added_at_the_end(format: Format) -> None:
    w, x, bias = weight(format, 20, 70, 1), floats("normal", (5, 70), 2), floats("normal", (20,), 3)
    assert same(coded.linear_int8(x, w, bias), coded.linear_int8(x, w) + bias)
    if format.name == "mxfp4":
        assert same(coded.linear_fp32(x, w, bias), coded.linear_fp32(x, w) + bias)


@formats
def test_codes_that_pad_a_weight_count_for_nothing(format: Format) -> None:
    x, one, other = floats("normal", (3, 33), 2), weight(format, 17, 33, 1), weight(format, 17, 33, 1)
    for at in range(other.codes[:, 1].numel()):  # the block of input 32, and of 31 that are none
        codes = other.codes[:, 1].flatten()
        codes[at] = codes[at] ^ 85
        before, other.codes[:, 1] = other.codes[:, 1].clone(), codes.view_as(other.codes[:, 1])
        if not torch.equal(codes_of(other), codes_of(one)):
            other.codes[:, 1] = before
    assert float((one.codes[:, 1] != other.codes[:, 1]).float().mean()) > 0.4
    assert same(coded.linear_int8(x, one), coded.linear_int8(x, other))
    if format.name == "mxfp4":
        assert same(coded.linear_fp32(x, one), coded.linear_fp32(x, other))
