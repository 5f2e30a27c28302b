"""Native linear layers, with every instruction set, against the reference: by their bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foretoken.errors import ContractError
from foretoken.kernels import native, reference
from tests.isas import HERE
from tests.kernels.numbers import DTYPES, KINDS, floats, numbers, placed, same
from tests.kernels.test_reference import CASES, at
from tests.tiny import needs_native

pytestmark = needs_native
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SIZES = (1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 100)


def expect_same(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, threads: int = 1) -> torch.Tensor:
    """Every instruction set gives the reference's bits, which are returned."""
    expected = reference.linear(x, weight, bias)
    for isa in HERE:
        got = native.linear(x, weight, bias, isa, threads)
        assert same(got, expected), f"{isa}: {int((got != expected).sum())} of {got.numel()} differ"
    return expected


@dtypes
@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(
    rows=st.integers(0, 40),
    inputs=st.sampled_from(SIZES),
    outputs=st.sampled_from((0, *SIZES)),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS), st.none() | st.sampled_from(KINDS)),
    # where rows, weights and bias begin, in bytes behind a multiple of 64
    offsets=st.tuples(*[st.sampled_from((0, 0, 2, 4, 8, 34, 62))] * 3),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
@example(40, 100, 100, ("normal", "normal", "normal"), (4, 2, 8), 3, 0)
@example(33, 33, 33, ("edge", "edge", None), (4, 8, 0), 2, 1)
@example(17, 31, 17, ("wide", "wide", "wide"), (0, 2, 0), 1, 2)
@example(7, 64, 16, ("huge", "normal", "special"), (0, 0, 0), 1, 3)
@example(0, 16, 16, ("normal", "normal", None), (0, 0, 0), 1, 4)
@example(3, 16, 0, ("normal", "normal", "normal"), (0, 0, 0), 1, 5)
@example(5, 64, 33, ("special", "special", None), (0, 0, 0), 1, 6)
@example(5, 64, 33, ("ties", "ties", "ties"), (0, 0, 0), 1, 7)
def test_a_linear_layer_is_the_reference_s(
    dtype: torch.dtype,
    rows: int,
    inputs: int,
    outputs: int,
    kinds: tuple[str, str, str | None],
    offsets: tuple[int, int, int],
    threads: int,
    seed: int,
) -> None:
    x = placed(floats(kinds[0], (rows, inputs), seed), offsets[0])
    weight = placed(numbers(kinds[1], (outputs, inputs), dtype, seed + 1), offsets[1])
    bias = None if kinds[2] is None else placed(floats(kinds[2], (outputs,), seed + 2), offsets[2])
    expect_same(x, weight, bias, threads)


@dtypes
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_rows_and_inputs_is_the_reference_s(dtype: torch.dtype, kind: str) -> None:
    # rows, one after the other, fill every kind of block of rows, and the last inputs every kind of rest
    for size in range(1, 41):
        x, weight = floats(kind, (size, size), size), numbers(kind, (19, size), dtype, size + 1)
        expect_same(x, weight, None)


@dtypes
def test_many_rows_are_the_reference_s(dtype: torch.dtype) -> None:
    # enough numbers for rows to be packed by several threads, and more rows than are multiplied at a time
    for rows, inputs in ((101, 200), (258, 70)):
        x, weight = floats("normal", (rows, inputs), 0), numbers("normal", (17, inputs), dtype, 1)
        for threads in (1, 3):
            expect_same(x, weight, floats("normal", (17,), 2), threads)


# rows that fill groups of 16, that do not, and that are more than are packed or multiplied at a time
MANY = (48, 49, 96, 97, 112, 113, 129, 256, 257, 300, 512, 530)


@pytest.mark.parametrize("kind", ["normal", "wide"])
def test_many_rows_of_many_inputs_are_the_reference_s(kind: str) -> None:
    # more inputs than AMX multiplies at a time: sums wait in memory meanwhile
    for inputs, outputs in ((2120, 35), (4128, 16), (64, 50), (2048, 33), (1100, 530)):
        x, weight = floats(kind, (max(MANY), inputs), 0), numbers(kind, (outputs, inputs), torch.bfloat16, 1)
        bias = floats(kind, (outputs,), 2)
        expected = reference.linear(x, weight, bias)
        for isa in HERE:
            for rows in MANY:
                got = native.linear(x[:rows], weight, bias, isa, threads=2)
                assert same(got, expected[:rows]), (isa, inputs, rows)


@dtypes
def test_many_outputs_are_the_reference_s(dtype: torch.dtype) -> None:
    # blocks of outputs for several threads to take
    x, weight = floats("normal", (2, 33), 0), numbers("normal", (1000, 33), dtype, 1)
    for threads in (1, 2, 3):
        expect_same(x, weight, floats("normal", (1000,), 2), threads)


@pytest.mark.parametrize("isa", HERE)
def test_a_layer_without_inputs_gives_zeros(isa: str) -> None:
    got = native.linear(torch.zeros(5, 0), torch.zeros(20, 0, dtype=torch.bfloat16), None, isa)
    assert same(got, torch.zeros(5, 20))


@pytest.mark.parametrize("isa", HERE)
def test_weights_in_a_level_s_own_layout_give_the_same(isa: str) -> None:
    weight = numbers("wide", (48, 96), torch.bfloat16, 0)
    if not native.repacks(isa):
        assert not native.can_repack(weight, isa)
        with pytest.raises(ContractError, match=rf"\[48, 96\] has no layout of its own for {isa}; expected"):
            native.repack(weight, isa)
        return
    for outputs, inputs in ((16, 32), (48, 96), (80, 160), (128, 64), (112, 4160), (288, 32)):
        for kind in KINDS:
            weight = placed(numbers(kind, (outputs, inputs), torch.bfloat16, 1), 34)
            own, bias = placed(weight, 0), floats(kind, (outputs,), 2)
            native.repack(own, isa, threads=2)
            assert not same(own, weight)
            for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 33, 40, 50):
                x = floats(kind, (rows, inputs), 3)
                expected = reference.linear(x, weight, bias)
                for threads in (1, 3):
                    assert same(native.linear(x, own, bias, isa, threads, repacked=True), expected), (kind, rows)


@pytest.mark.parametrize("isa", [isa for isa in HERE if native.repacks(isa)])
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 4160), (544, 96), (560, 1088)])
def test_many_rows_meet_weights_in_a_level_s_own_layout(isa: str, outputs: int, inputs: int) -> None:
    x, weight = floats("wide", (max(MANY), inputs), 1), numbers("wide", (outputs, inputs), torch.bfloat16, 2)
    expected, own = reference.linear(x, weight, None), placed(weight, 0)
    native.repack(own, isa)
    for rows in MANY:
        assert same(native.linear(x[:rows], own, None, isa, threads=2, repacked=True), expected[:rows]), rows


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize(
    ("shape", "dtype", "offset"),
    [
        ((47, 96), torch.bfloat16, 0),
        ((48, 95), torch.bfloat16, 0),
        ((48, 96), torch.bfloat16, 8),
        ((48, 96), torch.float16, 0),
        ((48, 96), torch.float32, 0),
    ],
    ids=str,
)
def test_weights_that_have_no_layout_of_their_own_are_refused(
    isa: str, shape: tuple[int, int], dtype: torch.dtype, offset: int
) -> None:
    weight = placed(numbers("normal", shape, dtype, 0), offset)
    before = weight.clone()
    assert not native.can_repack(weight, isa)
    message = (
        "expected bf16 from a multiple of 64 bytes on, outputs a multiple of 16 and inputs of 32, and instructions that"
    )
    with pytest.raises(ContractError, match=message):
        native.repack(weight, isa)
    with pytest.raises(ContractError, match=message):
        native.linear(torch.zeros(1, shape[1]), weight, None, isa, repacked=True)
    assert same(weight, before)


@dtypes
def test_results_that_are_small_or_large_are_there_to_be_compared(dtype: torch.dtype) -> None:
    # or the tests above would compare zeros with zeros
    def result(x_kind: str, weight_kind: str) -> torch.Tensor:
        return expect_same(floats(x_kind, (20, 33), 0), numbers(weight_kind, (20, 33), dtype, 1), None)

    huge = result("huge", "normal")
    assert int(huge.isinf().sum() + huge.isnan().sum()) > 0
    assert int(result("wide", "normal").isfinite().sum()) > 0
    assert bool(result("special", "special").isnan().any())
    if dtype != torch.float16:
        edge = result("edge", "edge").abs()
        assert float((edge < 2.0**-120).float().mean()) > 0.1
        assert int((edge > 0).sum()) > 100
        assert int(((edge > 0) & (edge < 2.0**-126)).sum()) == 0


@dtypes
def test_subnormal_numbers_count_as_zero(dtype: torch.dtype) -> None:
    x = torch.tensor([[2.0**-127, 1.0], [2.0**-126, 1.0]])
    weight = torch.tensor([[2.0**15, 0.0], [0.5, 0.0], [0.0, 2.0**-127]]).to(dtype)
    assert expect_same(x, weight, None).tolist() == [[0.0, 0.0, 0.0], [2.0**-111, 0.0, 0.0]]
    bias = torch.tensor([2.0**-127, -(2.0**-127), 2.0**-126])
    assert expect_same(torch.zeros(2, 2), weight[1:2].repeat(3, 1), bias).tolist() == [[0, 0, 2.0**-126]] * 2


def test_what_would_be_rounded_up_to_the_smallest_normal_number_is_the_same_at_every_level() -> None:
    # whether it counts as subnormal is the processor's choice (AMD's says yes); all its instructions must make the same
    x = torch.tensor([[1 - 2.0**-24], [2 - 2.0**-23], [1 - 2.0**-23]])
    first, second, third = expect_same(x, torch.tensor([[2.0**-126]]), None).flatten().tolist()
    assert first in (0.0, 2.0**-126)
    assert (second, third) == (2.0**-125 - 2.0**-149, 0.0)
    # bf16: 2^-126 less a quarter of a unit, in two steps of one sum and as the sum of two
    for places in ((0, 2), (0, 1), (0, 32)):
        rows, weight = torch.zeros(1, 64), torch.zeros(1, 64)
        rows[0, places[0]], weight[0, places[0]] = 2.0**-63, 2.0**-63
        rows[0, places[1]], weight[0, places[1]] = 2.0**-75, -(2.0**-76)
        assert float(expect_same(rows, weight.bfloat16(), None)) in (0.0, 2.0**-126)


def test_a_subnormal_float16_weight_is_a_number() -> None:
    # in float32, which it is widened to, it is not subnormal
    weight = torch.tensor([[2.0**-24, -3 * 2.0**-24, 0.0]]).half()
    assert expect_same(torch.tensor([[1.0, 0.5, 0.0]]), weight, None).tolist() == [[-(2.0**-25)]]


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize(("order", "places", "expected"), CASES)
def test_the_order_of_a_sum_is_the_format_s(isa: str, order: str, places: dict[int, float], expected: float) -> None:
    weight, x = at(places)[None], torch.ones(3, 64)
    for dtype in (torch.bfloat16,) if order == "bf16" else (torch.float16, torch.float32):
        assert native.linear(x, weight.to(dtype), None, isa).tolist() == [[expected]] * 3


@dtypes
def test_a_row_does_not_depend_on_others_or_on_threads(dtype: torch.dtype) -> None:
    x, weight = floats("normal", (40, 100), 0), numbers("normal", (50, 100), dtype, 1)
    for isa in HERE:
        alone = torch.cat([native.linear(row[None], weight, None, isa) for row in x])
        for threads in (1, 2, 3):
            for count in (2, 15, 16, 17, 40):
                assert same(native.linear(x[:count], weight, None, isa, threads), alone[:count]), (isa, threads)


@dtypes
def test_what_lies_around_rows_and_weights_is_not_read(dtype: torch.dtype) -> None:
    for inputs in (1, 15, 33):
        around = torch.full((7, 3 * inputs), torch.nan)
        around[2:5, inputs : 2 * inputs] = floats("normal", (3, inputs), 0)
        x = around.flatten()[2 * 3 * inputs + inputs :][:inputs].view(1, inputs)
        weights = torch.full((300,), torch.nan, dtype=dtype)
        weights[100 : 100 + inputs] = numbers("normal", (inputs,), dtype, 1)
        weight = weights[100 : 100 + inputs].view(1, inputs)
        assert expect_same(x, weight, None).isfinite().all()
