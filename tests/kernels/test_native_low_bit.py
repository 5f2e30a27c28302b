"""Native linear layers with low-bit weights, with every instruction set, against their definition: by their bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foretoken.errors import ContractError
from foretoken.formats import Format, format_of
from foretoken.formats.quantiser import quantise
from foretoken.formats.values import codes_of, dequantise
from foretoken.formats.weight import QuantisedWeight
from foretoken.kernels import coded, native
from tests.isas import HERE
from tests.kernels.low_bit import IDS, SCALES, WAYS, defined, weight
from tests.kernels.numbers import KINDS, floats, placed, same
from tests.tiny import needs_native

pytestmark = needs_native
ways = pytest.mark.parametrize(("format", "inputs"), WAYS, ids=IDS)
SHAPES = ((1, 1), (16, 32), (17, 33), (33, 31), (47, 100), (20, 130), (5, 300))  # outputs, inputs
ROWS = (1, 2, 3, 8, 9, 16, 17, 33)


def expect_same(
    x: torch.Tensor, w: QuantisedWeight, bias: torch.Tensor | None, inputs: str, threads: tuple[int, ...] = (1, 2)
) -> torch.Tensor:
    """Every instruction set gives the definition's bits, which are returned."""
    expected = defined(x, w, bias, inputs)
    for isa in HERE:
        for count in threads:
            got = native.linear(x, w, bias, isa, count, inputs=inputs)
            assert same(got, expected), f"{isa}, {w.format.label}: {int((got != expected).sum())} of {got.numel()}"
    return expected


# -- every number of rows, shape, scale -------------------------------------------------------------------------------


@ways
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_low_bit_layer_is_its_definition_in_any_number_of_rows(
    format: Format, inputs: str, shape: tuple[int, int]
) -> None:
    w, bias = weight(format, *shape, seed=1), floats("normal", shape[:1], 2)
    x = floats("normal", (max(ROWS), shape[1]), 3)
    expected = defined(x, w, None, inputs)
    biased = defined(x, w, bias, inputs)
    for isa in HERE:
        for threads in (1, 2):
            for count in ROWS:  # from the first row on, and from one in the middle on
                for rows in (slice(0, count), slice(33 - count, 33)):
                    got = native.linear(x[rows], w, None, isa, threads, inputs=inputs)
                    assert same(got, expected[rows]), (isa, threads, rows)
            assert same(native.linear(x, w, bias, isa, threads, inputs=inputs), biased), (isa, threads)
    assert expected.abs().sum() > 0


@pytest.mark.parametrize("format", [way[0] for way in WAYS if way[1] == "int8"], ids=lambda format: format.label)
@pytest.mark.parametrize("isa", HERE)
def test_the_fastest_inputs_are_bf16_for_many_rows_of_mxfp4_on_tiles(isa: str, format: Format) -> None:
    w, x = weight(format, 49, 100, seed=1), floats("normal", (17, 100), 2)
    for rows in (1, 3, 4, 17):
        expected = "bf16" if isa in ("amx", "amx-emulated") and format.name == "mxfp4" and rows >= 4 else "int8"
        got = native.linear(x[:rows], w, None, isa, inputs="fastest")
        assert same(got, defined(x[:rows], w, None, expected)), (rows, expected)


@ways
@pytest.mark.parametrize("isa", HERE)
def test_a_row_does_not_depend_on_others_or_on_its_place(format: Format, inputs: str, isa: str) -> None:
    w, x = weight(format, 50, 161, seed=4), floats("normal", (101, 161), 5)  # more than AMX's tiles hold at a time
    x[7] = floats("special", (161,), 6)
    x[33] *= 1e-30
    alone = torch.cat([native.linear(row[None].contiguous(), w, None, isa, inputs=inputs) for row in x])
    order = torch.randperm(101, generator=torch.Generator().manual_seed(0))
    for threads in (1, 3):
        assert same(native.linear(x, w, None, isa, threads, inputs=inputs), alone)
        assert same(native.linear(x[order], w, None, isa, threads, inputs=inputs), alone[order])
    assert same(alone, defined(x, w, None, inputs))


@ways
def test_many_rows_of_many_inputs(format: Format, inputs: str) -> None:
    # more rows and inputs than AMX multiplies at a time
    w, x = weight(format, 35, 2120, seed=7), floats("normal", (512, 2120), 8)
    expected = defined(x, w, None, inputs)
    for isa in HERE:
        for rows in (49, 112, 512):
            assert same(native.linear(x[:rows], w, None, isa, threads=2, inputs=inputs), expected[:rows]), (isa, rows)


@ways
def test_many_outputs_are_shared_out_among_threads(format: Format, inputs: str) -> None:
    expect_same(
        floats("normal", (2, 70), 0), weight(format, 1000, 70, 1), floats("normal", (1000,), 2), inputs, (1, 2, 3)
    )


@ways
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_and_scales_of_all_sizes_give_the_definition_s_bits(
    format: Format, inputs: str, scales: str, kind: str
) -> None:
    for seed in range(3):
        x = floats(kind, (9, 133), seed)
        expect_same(x, weight(format, 21, 133, seed, scales), floats(kind, (21,), seed + 1), inputs, (1,))


@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(
    way=st.sampled_from(WAYS),
    rows=st.integers(1, 40),
    shape=st.tuples(st.integers(1, 70), st.integers(1, 300)),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(SCALES), st.none() | st.sampled_from(KINDS)),
    # where rows, codes, scales and biases begin, in bytes behind a multiple of 64
    offsets=st.tuples(*[st.sampled_from((0, 0, 1, 4, 8, 34, 63))] * 4),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
@example(WAYS[-1], 40, (70, 300), ("special", "wide", "huge"), (4, 1, 1, 8), 3, 1)
def test_a_low_bit_layer_is_its_definition(
    way: tuple[Format, str],
    rows: int,
    shape: tuple[int, int],
    kinds: tuple[str, str, str | None],
    offsets: tuple[int, int, int, int],
    threads: int,
    seed: int,
) -> None:
    format, inputs = way
    x = placed(floats(kinds[0], (rows, shape[1]), seed), offsets[0])
    w = weight(format, *shape, seed, kinds[1], offsets[1:3])
    bias = None if kinds[2] is None else placed(floats(kinds[2], shape[:1], seed + 1), offsets[3])
    expect_same(x, w, bias, inputs, (threads,))


@ways
def test_no_rows_come_to_nothing(format: Format, inputs: str) -> None:
    for isa in HERE:
        got = native.linear(torch.empty(0, 33), weight(format, 17, 33, 0), torch.zeros(17), isa, 2, inputs=inputs)
        assert got.shape == (0, 17)


# -- what is hard -----------------------------------------------------------------------------------------------------


def special_rows(inputs: int) -> dict[str, torch.Tensor]:
    """Rows that hold a number where arithmetic is hard, here and there or everywhere."""
    one = floats("normal", (inputs,), 7)

    def with_at(place: int, value: float) -> torch.Tensor:
        row = one.clone()
        row[place] = value
        return row

    rows = {"usual": one, "zeros": torch.zeros(inputs), "negative zeros": -torch.zeros(inputs)}
    for place in (0, 31, inputs - 1):
        for value in (torch.nan, torch.inf, -torch.inf, 2.0**60, 2.0**61, -(2.0**60), -(2.0**100), 2.0**127):
            rows[f"{value} at {place}"] = with_at(place, value)
    for size in (2.0**-39, 2.0**-40, 2.0**-41, 2.0**-100, 2.0**-126, 2.0**-140, 2.0**59, 2.0**60, 2.0**100):
        rows[f"times {size}"] = one * size
        rows[f"all {size}"] = torch.full((inputs,), size)
    below = torch.tensor(2.0**-40).nextafter(torch.tensor(0.0))
    above = torch.tensor(2.0**60).nextafter(torch.tensor(torch.inf))
    rows["just below 2**-40"] = torch.full((inputs,), float(below))
    rows["just above 2**60"] = torch.full((inputs,), float(above))
    rows["a block of subnormal numbers"] = torch.cat((one[:32], torch.full((32,), 2.0**-130), one[64:]))
    rows["halfway"] = (torch.arange(inputs) % 255 - 127 + 0.5) / 127  # between two whole numbers, times 127
    rows["halfway"][::32] = 1
    return rows


@ways
@pytest.mark.parametrize("scales", SCALES)
def test_rows_that_are_hard_are_the_definition_s_and_touch_no_other(format: Format, inputs: str, scales: str) -> None:
    rows = special_rows(100)
    x, w = torch.stack(list(rows.values())), weight(format, 19, 100, 3, scales)
    expected = expect_same(x, w, None, inputs)
    usual = defined(rows["usual"][None], w, None, inputs)
    assert scales != "usual" or usual.isfinite().all()
    for name, row in zip(rows, expected, strict=True):
        if name.startswith("nan"):
            assert row.isnan().all(), name
        if inputs == "int8":  # what is beyond 2**60 is no number
            assert bool(row.isnan().all()) == (not bool((rows[name].abs() <= 2.0**60).all())), name
    for place in range(len(x)):  # beside each of them, the usual row
        both = torch.stack((x[place], x[0], x[place]))
        for isa in HERE:
            got = native.linear(both, w, None, isa, inputs=inputs)
            assert same(got[1:2], usual), (isa, list(rows)[place])
            assert same(got[0], expected[place])
            assert same(got[2], expected[place])


@ways
def test_weights_that_are_all_zero_give_the_bias(format: Format, inputs: str) -> None:
    made = quantise(torch.zeros(20, 70), format, name="zeros")
    assert int(dequantise(made).count_nonzero()) == 0
    bias = floats("normal", (20,), 1)
    x = floats("normal", (5, 70), 2)
    assert same(expect_same(x, made, bias, inputs), bias.expand(5, 20).contiguous())
    assert int(expect_same(x, made, None, inputs).count_nonzero()) == 0


@ways
def test_every_code_means_what_the_format_says(format: Format, inputs: str) -> None:
    # row k has a single input, which picks one code of each output
    made = weight(format, 256, 32, 5)
    assert len(set(codes_of(made).flatten().tolist())) == (255 if format.bits == 8 else 1 << format.bits)
    expected = expect_same(torch.eye(32), made, None, inputs)
    if inputs != "int8":
        assert same(expected, dequantise(made).float().T.contiguous() + 0.0)


@pytest.mark.parametrize("inputs", ["bf16", "int8", "fp32"])
@pytest.mark.parametrize("byte", [67, 127, 187])
def test_the_ends_of_mxfp4_s_scales(inputs: str, byte: int) -> None:
    made = weight(format_of("mxfp4"), 64, 64, 5)
    made = replace(made, scales=torch.full_like(made.scales, byte))
    for size in (1.0, 2.0**-60, 2.0**-39, 2.0**57):
        got = expect_same(floats("normal", (3, 64), 1) * size, made, None, inputs)
        assert got.isfinite().all()
        assert got.abs().max() > 0 or (inputs == "int8" and size < 2.0**-40)
    twice = expect_same(torch.eye(64), made, None, "bf16").abs()
    assert float(twice.max()) == 6 * 2.0 ** (byte - 127)
    assert float(twice[twice > 0].min()) == 0.5 * 2.0 ** (byte - 127)


def test_what_is_compared_is_not_nothing() -> None:
    # or the tests above would compare zeros with zeros, or NaN with NaN
    for format, inputs in WAYS:
        for scales in SCALES:
            w = weight(format, 21, 133, 0, scales)
            normal = defined(floats("normal", (9, 133), 0), w, None, inputs)
            assert float(normal.isfinite().float().mean()) > 0.5
            assert int((normal != 0).sum()) > 100
            assert len(normal.unique()) > 50
        huge = defined(floats("huge", (9, 133), 0), weight(format, 21, 133, 0), None, inputs)
        assert int(huge.isfinite().sum()) < huge.numel()


def test_the_order_of_a_sum_shows() -> None:
    # or equality with the definition would say nothing about orders
    for format, inputs in WAYS:
        w = weight(format, 40, 256, 1, "usual")
        x = floats("normal", (40, 256), 2)
        exact = (x.double() @ dequantise(w).double().T).float()
        assert not same(defined(x, w, None, inputs), exact)
    mxfp4 = weight(format_of("mxfp4"), 40, 256, 1)
    x = floats("normal", (40, 256), 2).bfloat16().float()
    assert not same(coded.linear_fp32(x, mxfp4), defined(x, mxfp4, None, "bf16"))


# -- refusals ---------------------------------------------------------------------------------------------------------


def refusal(x: torch.Tensor, w: QuantisedWeight, bias: torch.Tensor | None = None, inputs: str = "bf16") -> str:
    with pytest.raises(ContractError) as error:
        native.linear(x, w, bias, "generic", inputs=inputs)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("format", "inputs"), WAYS, ids=IDS)
def test_inputs_and_biases_that_do_not_fit_are_refused(format: Format, inputs: str) -> None:
    w = weight(format, 17, 33, 0)
    for size in (31, 32, 34, 64):
        assert refusal(torch.zeros(2, size), w, inputs=inputs) == (
            f"x has {size} inputs and the weight 33; expected as many"
        )
    assert refusal(torch.zeros(2, 33), w, torch.zeros(32), inputs) == (
        "the bias has 32 numbers for 17 outputs; expected as many"
    )
    assert refusal(torch.zeros(2, 33).half(), w, inputs=inputs).startswith("x is float16 [2, 33] on cpu; expected")
    assert refusal(torch.zeros(33, 2).T, w, inputs=inputs).startswith("x has strides (1, 2); expected contiguous")


def test_inputs_that_a_format_does_not_take_are_refused() -> None:
    for format, _ in WAYS:
        wrong = ["fp16", "", "BF16", "int4"] + ["fp32"] * (format.name != "mxfp4")
        for inputs in wrong:
            assert refusal(torch.zeros(1, 33), weight(format, 17, 33, 0), inputs=inputs) == (
                f"{format.name} with inputs {inputs!r}; expected bf16, int8 or fastest, or with mxfp4 fp32"
            )


def test_codes_and_scales_with_gaps_are_refused() -> None:
    whole = weight(format_of("int4"), 32, 64, 0)
    gaps = torch.zeros(*whole.codes.shape[:2], 2 * whole.codes.shape[2], dtype=torch.uint8)[..., ::2]
    for w in (
        replace(whole, codes=gaps),
        replace(whole, scales=whole.scales.transpose(0, 1)[:, :1].expand_as(whole.scales)),
        replace(whole, codes=whole.codes.to("meta")),
    ):
        assert "has gaps, or is not on the CPU; copy it there" in refusal(torch.zeros(1, 64), w)
