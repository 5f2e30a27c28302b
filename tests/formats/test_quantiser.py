"""What holds for every format: shapes, layout, padding, refusals, and that nothing but the weight counts."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from foretoken.errors import CheckpointError, ContractError, SettingError
from foretoken.formats import FORMATS, Format
from foretoken.formats.quantiser import quantise
from foretoken.formats.values import codes_of, dequantise
from foretoken.formats.weight import QuantisedWeight, expect_valid, parts
from tests.formats.layout import ALL, DTYPES, GROUPED, codes_in, weights

WAYS = [(format, "direct") for format in ALL] + [(format, "hqq") for format in GROUPED]
ways = pytest.mark.parametrize(("format", "way"), WAYS, ids=[f"{f.label}-{way}" for f, way in WAYS])
formats = pytest.mark.parametrize("format", ALL, ids=lambda f: f.label)


def same(a: QuantisedWeight, b: QuantisedWeight) -> bool:
    return (a.format, a.shape) == (b.format, b.shape) and all(
        torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in ((a.codes, b.codes), (a.scales, b.scales))
    )


@pytest.mark.parametrize("shape", [(1, 1), (16, 32), (17, 33), (15, 31), (40, 100), (3, 129), (33, 256)])
@ways
def test_a_weight_lies_as_the_document_says(format: Format, way: Any, shape: tuple[int, int]) -> None:
    outputs, inputs = shape
    q = quantise(weights(*shape), format, name="w", quantiser=way)
    expect_valid(q, "w")
    assert q.nbytes == q.codes.nbytes + q.scales.nbytes
    codes = codes_in(q.codes, format.bits)
    assert codes.shape == (-(-outputs // 16) * 16, -(-inputs // 32) * 32)
    mine = codes_of(q)
    assert torch.equal(codes[:outputs, :inputs], mine.view(torch.uint8).long())
    assert codes[outputs:].count_nonzero() == codes[:, inputs:].count_nonzero() == 0, "padding has code 0"

    values = dequantise(q)
    assert (values.dtype, tuple(values.shape)) == (torch.bfloat16, shape)
    half = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    for o, k in {(0, 0), (outputs - 1, inputs - 1), (outputs // 2, inputs // 3), (0, inputs - 1), (outputs - 1, 0)}:
        tile, lane = divmod(o, 16)
        code = int(mine[o, k])
        if format.name == "mxfp4":
            value = (half + [-x for x in half])[code] * 2.0 ** (int(q.scales[tile, k // 32, lane]) - 127)
        elif format.name == "int8":
            value = torch.tensor(float(code)) * q.scales[o]
        else:
            scale, zero = q.scales[tile, k // format.group, lane].float()
            value = (code - zero) * scale
        assert values[o, k] == torch.as_tensor(value).bfloat16()


@formats
def test_outputs_that_only_fill_a_tile_are_zero(format: Format) -> None:
    q = quantise(weights(17, 40), format, name="w")
    if format.name == "mxfp4":
        assert (q.scales[1, :, 1:] == 127).all()
    else:
        filling = q.scales[17:] if format.name == "int8" else q.scales[1, :, 1:]
        assert (filling.view(torch.int16) == 0).all()
    whole = dequantise(replace(q, shape=(32, 64)))
    assert (whole[17:].view(torch.int16) == 0).all()


@formats
def test_the_parts_of_a_weight_are_known_beforehand(format: Format) -> None:
    for shape in ((1, 1), (16, 32), (17, 33), (100, 300)):
        q = quantise(torch.ones(shape), format, name="w")
        for name, part in parts(format, *shape).items():
            tensor = getattr(q, name)
            assert (tuple(tensor.shape), tensor.dtype, tensor.is_contiguous()) == (part.shape, part.dtype, True)


def test_the_parts_of_a_weight_counted_by_hand() -> None:
    expected = {
        "mxfp4": "uint8 [3, 4, 256], uint8 [3, 4, 16]",
        "int8": "uint8 [3, 4, 512], float32 [48]",
        "int4-g32": "uint8 [3, 4, 256], bfloat16 [3, 4, 16, 2]",
        "int4-g64": "uint8 [3, 4, 256], bfloat16 [3, 2, 16, 2]",
        "int4-g128": "uint8 [3, 4, 256], bfloat16 [3, 1, 16, 2]",
        "int3-g64": "uint8 [3, 4, 192], bfloat16 [3, 2, 16, 2]",
        "int2-g64": "uint8 [3, 4, 128], bfloat16 [3, 2, 16, 2]",
    }
    for format in ALL:
        if format.label in expected:
            assert ", ".join(str(part) for part in parts(format, 40, 97).values()) == expected[format.label]
    with pytest.raises(ContractError, match=r"^a weight of 0 outputs and 5 inputs; expected at least one of each$"):
        parts(FORMATS["int8"], 0, 5)


@ways
def test_nothing_but_its_own_numbers_counts_for_an_output(format: Format, way: Any, monkeypatch: Any) -> None:
    """Neither threads, torch's or the quantiser's, nor how many tiles are cast together, nor the other outputs."""
    w = weights(200, 160)
    one = quantise(w, format, name="w", quantiser=way, threads=1)
    values = dequantise(one, threads=1)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            for own in (None, 2, 5):
                for together in (1, 16 * 160 * 3):
                    monkeypatch.setattr("foretoken.formats.quantiser._TOGETHER", together)
                    assert same(one, quantise(w, format, name="w", quantiser=way, threads=own))
                    monkeypatch.setattr("foretoken.formats.values._TOGETHER", together)
                    assert torch.equal(values, dequantise(one, threads=own))
            with ThreadPoolExecutor(1) as another:
                assert another.submit(torch.get_num_threads).result() == torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    part = quantise(w[32:64], format, name="w", quantiser=way)
    assert torch.equal(part.codes, one.codes[2:4])
    where = slice(32, 64) if format.name == "int8" else slice(2, 4)
    assert torch.equal(part.scales, one.scales[where])


@ways
def test_where_the_numbers_lie_does_not_count(format: Format, way: Any) -> None:
    w = weights(96, 96)
    kept = w.clone()
    one = quantise(w, format, name="w", quantiser=way)
    assert torch.equal(w, kept), "the weight is only read"
    assert same(one, quantise(w.T.contiguous().T, format, name="w", quantiser=way))
    assert same(one, quantise(torch.nn.functional.pad(w, (3, 5))[:, 3:-5], format, name="w", quantiser=way))
    assert same(one, quantise(torch.nn.Parameter(w), format, name="w", quantiser=way))


@formats
def test_each_type_is_quantised_from_its_own_numbers(format: Format) -> None:
    """Widening is exact, so it changes nothing; going through bf16 first would."""
    w = weights(32, 256)
    w[:, 0] = 0.5  # so that scales do not differ by what narrowing does to the largest
    for dtype in DTYPES:
        assert same(quantise(w.to(dtype), format, name="w"), quantise(w.to(dtype).float(), format, name="w"))
    assert not same(quantise(w, format, name="w"), quantise(w.bfloat16(), format, name="w"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("place", [(0, 0), (37, 70), (20, 33)])
@pytest.mark.parametrize(
    ("bad", "count"), [([torch.nan], "1 NaN and 0 infinite"), ([torch.inf, -torch.inf], "0 NaN and 2 infinite")]
)
@formats
def test_what_is_no_number_is_refused(
    format: Format, bad: list[float], count: str, place: tuple[int, int], dtype: torch.dtype, monkeypatch: Any
) -> None:
    monkeypatch.setattr("foretoken.formats.quantiser._TOGETHER", 1)  # the count is of all slices
    w = weights(38, 71).to(dtype)
    w[place] = bad[0]
    w[19, 5] = bad[-1]
    count = count.replace("1 NaN", "2 NaN")
    with pytest.raises(CheckpointError) as error:
        quantise(w, format, name="layers.3.mlp.up_proj.weight")
    assert str(error.value) == (
        f"layers.3.mlp.up_proj.weight holds {count} numbers among 2698, which no low-bit format can stand for; the "
        "checkpoint is damaged: download it again, or leave this weight as it is"
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@formats
def test_the_largest_numbers_of_a_type_are_numbers(format: Format, dtype: torch.dtype) -> None:
    w = torch.zeros(3, 64, dtype=dtype)
    w[0, 0], w[0, 1], w[1, 5] = torch.finfo(dtype).max, torch.finfo(dtype).min, torch.finfo(dtype).max
    q = quantise(w, format, name="w")
    expect_valid(q, "w")
    assert dequantise(q).isfinite().all()
    assert dequantise(q)[0, 0] > 0 > dequantise(q)[0, 1]


@pytest.mark.parametrize(
    ("weight", "what"),
    [
        (torch.ones(5), "float32 [5]"),
        (torch.ones(0, 5), "float32 [0, 5]"),
        (torch.ones(5, 0), "float32 [5, 0]"),
        (torch.ones(1, 2, 3), "float32 [1, 2, 3]"),
        (torch.ones(2, 3, dtype=torch.float64), "float64 [2, 3]"),
        (torch.ones(2, 3, dtype=torch.int8), "int8 [2, 3]"),
    ],
)
def test_what_is_no_weight_is_refused(weight: torch.Tensor, what: str) -> None:
    with pytest.raises(ContractError) as error:
        quantise(weight, FORMATS["int4"], name="w")
    assert str(error.value) == (
        f"w is {what}; expected float16, bfloat16 or float32 [outputs, inputs], neither of them 0"
    )


def test_an_unknown_quantiser_is_refused() -> None:
    with pytest.raises(SettingError) as error:
        quantise(torch.ones(1, 1), FORMATS["int4"], name="w", quantiser="hqqq")  # type: ignore[arg-type]
    assert str(error.value) == "the quantiser 'hqqq' is not known; did you mean 'hqq'? (known: direct, gptq, hqq)"


BAD: list[tuple[str, tuple[int, ...], float, str]] = [
    ("mxfp4", (1, 0, 3), 66, "1 scales outside 2**-60 .. 2**60 (bytes 67 .. 187)"),
    ("mxfp4", (1, 0, 3), 188, "1 scales outside 2**-60 .. 2**60 (bytes 67 .. 187)"),
    ("mxfp4", (0, 1, 15), 255, "1 scales outside 2**-60 .. 2**60 (bytes 67 .. 187)"),
    *(
        ("int8", (20,), bad, "1 scales that are no finite number, negative, below 2**-100, or too large for bf16")
        for bad in (torch.nan, torch.inf, -torch.inf, -1.0, 2.0**-101, 1e-40, 2.0**122)
    ),
    *(
        ("int3", (1, 0, 3, part), bad, "1 groups with a scale that is no finite number, negative, or below 2**-100, ")
        for part, bads in (
            (0, (torch.nan, torch.inf, -torch.inf, -1.0, 2.0**-101, 1e-40, 2.0**127)),
            (1, (torch.nan, torch.inf, -torch.inf, 2.0**-21, -(2.0**-21), 1e-40)),
        )
        for bad in bads
    ),
]


@pytest.mark.parametrize(("name", "place", "bad", "what"), BAD)
def test_bad_scales_are_refused(name: str, place: tuple[int, ...], bad: float, what: str) -> None:
    q = quantise(weights(32, 64), FORMATS[name], name="w")
    expect_valid(q, "w")
    q.scales[place] = bad
    with pytest.raises(CheckpointError) as error:
        expect_valid(q, "model.norm")
    assert str(error.value).startswith(f"model.norm ({q.format.label}) has {what}")
    assert str(error.value).endswith("; quantise the weights again")


@pytest.mark.parametrize("byte", [67, 187])
def test_scales_at_the_ends_are_taken(byte: int) -> None:
    q = quantise(weights(32, 64), FORMATS["mxfp4"], name="w")
    q.scales[...] = byte
    expect_valid(q, "w")
    assert float(dequantise(q).abs().max()) in {x * 2.0 ** (byte - 127) for x in (4, 6)}


def test_an_int8_code_of_minus_128_may_be_read_if_its_value_is_finite() -> None:
    q = quantise(weights(32, 64), FORMATS["int8"], name="w")
    assert int(codes_of(q).amin()) >= -127, "none is written"
    q.codes[0, 1, 77] = 128
    expect_valid(q, "w")
    row, column = (int(i) for i in (codes_of(q) == -128).nonzero()[0])
    assert dequantise(q)[row, column] == (-128 * q.scales[row]).bfloat16()
    largest = float(torch.finfo(torch.bfloat16).max)
    q.scales[0] = largest / 128
    expect_valid(q, "w")
    q.scales[0] = largest / 127
    with pytest.raises(CheckpointError, match=r"^w \(int8\) has 1 scales that are no finite number, .* too large for"):
        expect_valid(q, "w")


def test_a_value_that_bf16_does_not_have_is_refused() -> None:
    """A scale and a zero point that are numbers, and of which one end is too large."""
    q = quantise(weights(16, 64), FORMATS["int4"], name="w")
    q.scales[0, 0, 5] = torch.tensor([2.0**120, -250.0], dtype=torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"or with values too large for bf16; quantise the weights again$"):
        expect_valid(q, "w")
    q.scales[0, 0, 5] = torch.tensor([2.0**120, -200.0], dtype=torch.bfloat16)
    expect_valid(q, "w")


def test_tensors_of_another_shape_or_type_are_refused() -> None:
    q = quantise(weights(32, 64), FORMATS["int4"], name="w")
    with pytest.raises(CheckpointError) as error:
        expect_valid(replace(q, shape=(33, 64)), "lm_head")
    assert str(error.value) == (
        "the codes of lm_head are uint8 [2, 2, 256]; int4-g64 of [33, 64] has uint8 [3, 2, 256]: the file is damaged, "
        "or of another format"
    )
    with pytest.raises(CheckpointError, match=re.escape("the scales of w are float32 [2, 1, 16, 2]; int4-g64 of")):
        expect_valid(replace(q, scales=q.scales.float()), "w")
    scattered = q.codes.transpose(0, 2).contiguous().transpose(0, 2)
    with pytest.raises(ContractError, match=r"^the codes of w do not lie in one piece; make them contiguous first$"):
        expect_valid(replace(q, codes=scattered), "w")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of memory is asked of Linux")
@pytest.mark.parametrize("name", ["mxfp4", "int4"])
def test_a_big_weight_is_cast_in_little_memory(name: str) -> None:
    """0.27 GB as float32 in one go; nowhere near it by slices, in which the result, 36 MB, is counted."""
    code = f"""
import resource, torch
from foretoken.formats import FORMATS
from foretoken.formats.quantiser import quantise
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
w = torch.zeros(8192, 8192, dtype=torch.bfloat16) + 0.5
quantise(w[:64], FORMATS[{name!r}], name="w")
before = peak()
quantise(w, FORMATS[{name!r}], name="w", threads=2)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert float(done.stdout) < 200
