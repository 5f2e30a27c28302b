"""GPTQ against its definition: after each weight, those that are left are the best that they could be."""

from __future__ import annotations

import pytest
import torch

from foretoken.errors import ContractError, SettingError
from foretoken.formats import FORMATS, Format, format_of, gptq
from foretoken.formats.quantiser import quantise
from foretoken.formats.values import dequantise
from foretoken.formats.weight import expect_valid
from tests.formats.layout import GROUPED, weights

FORMATS_WITH_GROUPS = [FORMATS["mxfp4"], *GROUPED]


def rows(inputs: int, count: int = 600, seed: int = 3) -> torch.Tensor:
    """Rows that a layer reads, float32 [count, inputs]: a few directions have most of them, as in a trained model."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(inputs, inputs, generator=generator) * torch.logspace(0, -2, inputs)
    return torch.randn(count, inputs, generator=generator) @ mixed.T


def moments(x: torch.Tensor) -> torch.Tensor:
    return x.T @ x / len(x)


def error(w: torch.Tensor, v: torch.Tensor, x: torch.Tensor) -> float:
    """The mean square of what a layer's outputs are off."""
    return float((x.double() @ (w.double() - v.double()).T).square().mean())


@pytest.mark.parametrize("format", FORMATS_WITH_GROUPS, ids=lambda f: f.label)
@pytest.mark.parametrize("inputs", [256, 104, 33])
def test_outputs_err_less_than_with_direct_rounding(format: Format, inputs: int) -> None:
    w, x = weights(48, inputs), rows(inputs)
    direct = quantise(w, format, name="w")
    found = quantise(w, format, name="w", quantiser="gptq", factor=gptq.factor(moments(x)))
    expect_valid(found, "w")
    assert error(w, dequantise(found), x) < 0.75 * error(w, dequantise(direct), x)


@pytest.mark.parametrize("name", ["mxfp4", "int4-g32", "int3-g32"])
def test_after_each_weight_the_others_are_the_best_that_are_left(name: str) -> None:
    """The same with least squares instead of a factor, in float64: each weight is rounded to the nearest value of its
    group, and then those that follow are solved for, with all before them fixed."""
    format, inputs = format_of(name), 64
    w, x = weights(16, inputs).double(), rows(inputs)
    h = moments(x).double()
    h += gptq.DAMPING * h.diagonal().mean() * torch.eye(inputs)
    found = dequantise(quantise(w.float(), format, name="w", quantiser="gptq", factor=gptq.factor(moments(x)))).double()
    left, same = w.clone(), 0
    for at in range(inputs):
        if at % format.group == 0:  # the group gets its scale from its weights as they are now
            _, code = gptq._coder(left[:, at : at + format.group].float(), format)
        nearest = code(left[:, at].float())[1].double()
        same += int((nearest == found[:, at]).sum())
        left[:, at] = found[:, at]  # where two values are equally near, go on with the same
        fixed = (w - left)[:, : at + 1]
        # the derivative by the weights that follow is 0: h[after, after] d = -h[after, before] fixed
        after = slice(at + 1, inputs)
        if at + 1 < inputs:
            left[:, after] = w[:, after] + torch.linalg.solve(h[after, after], h[after, : at + 1] @ fixed.T).T
    assert same >= 0.99 * found.numel()


def test_inputs_that_do_not_depend_on_each_other_are_rounded_alone() -> None:
    w = weights(32, 128)
    factor = gptq.factor(torch.diag(torch.rand(128, generator=torch.Generator().manual_seed(1)) + 0.1))
    for name in ("int4", "int3", "int2"):
        found = quantise(w, FORMATS[name], name="w", quantiser="gptq", factor=factor)
        direct = quantise(w, FORMATS[name], name="w")
        assert torch.equal(found.codes, direct.codes)
        assert torch.equal(found.scales, direct.scales)


def test_a_power_of_two_that_cuts_off_the_largest_is_doubled_if_that_errs_less() -> None:
    """7.9 is 6 at the cast's scale of 1, and 8 at a scale of 2."""
    w = torch.zeros(16, 32)
    w[:, 0] = 7.9
    found = quantise(w, FORMATS["mxfp4"], name="w", quantiser="gptq", factor=torch.eye(32))
    assert (dequantise(quantise(w, FORMATS["mxfp4"], name="w"))[:, 0] == 6).all()
    assert (dequantise(found)[:, 0] == 8).all()


def test_inputs_that_were_never_seen_do_no_harm() -> None:
    x = rows(64)
    x[:, 5:40] = 0
    w = weights(16, 64)
    found = quantise(w, FORMATS["int4"], name="w", quantiser="gptq", factor=gptq.factor(moments(x)))
    expect_valid(found, "w")
    assert (dequantise(found).float() - w).abs().max() < 1.5 * w.abs().max()
    assert torch.equal(gptq.factor(torch.zeros(32, 32)), torch.eye(32))


def test_fewer_texts_than_inputs_are_enough() -> None:
    x = rows(256, count=3)
    assert gptq.factor(moments(x)).isfinite().all()


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_no_bit_of_a_small_weight(threads: int) -> None:
    w, factor = weights(100, 96), gptq.factor(moments(rows(96)))
    one, other = (
        quantise(w, FORMATS["mxfp4"], name="w", quantiser="gptq", factor=factor, threads=count)
        for count in (2, threads)
    )
    assert torch.equal(one.codes, other.codes)
    assert torch.equal(one.scales, other.scales)


def test_what_does_not_fit_is_refused() -> None:
    w = torch.ones(16, 32)
    with pytest.raises(SettingError, match=r"^gptq chooses a scale for each group, and int8 has no groups; quantise"):
        quantise(w, FORMATS["int8"], name="w", quantiser="gptq", factor=torch.eye(32))
    with pytest.raises(ContractError, match=r"^gptq came with no factor for w; expected one \[inputs, inputs\]"):
        quantise(w, FORMATS["int4"], name="w", quantiser="gptq")
    with pytest.raises(ContractError, match=r"^direct came with a factor \[32, 32\] for w"):
        quantise(w, FORMATS["int4"], name="w", factor=torch.eye(32))
    with pytest.raises(ContractError, match=r"^the 8 inputs have moments that no text gives"):
        gptq.factor(torch.full((8, 8), torch.nan))
