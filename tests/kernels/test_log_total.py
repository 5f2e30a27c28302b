"""`log_total`: numpy's and the native module's against float64; the same bits with every instruction set."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foretoken import kernels
from foretoken.errors import ContractError
from foretoken.kernels import native, totals
from foretoken.kernels.choosing import Floats
from tests.isas import HERE
from tests.kernels.test_choosing import KINDS, row


def above_the_largest(logits: Floats, temperature: float) -> float:
    """By how much the logarithm of the sum lies above the largest logit's share in it: 0 to log V."""
    scaled = (logits.astype(np.float64) - float(logits.max())) / temperature
    return float(np.log(np.exp(scaled).sum()))


@pytest.mark.parametrize("temperature", [1.0, 0.2, 4.0])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_logarithm_of_the_sum_with_the_same_bits_everywhere(kind: str, temperature: float) -> None:
    for size in (1, 2, 15, 16, 17, 33, 1000, 4096, 128_256):
        logits = row(kind, size, 3 * size)
        few, first, last = logits.copy(), logits.copy(), logits.copy()
        few[size // 2 + 1 :: 3] = -np.inf
        first[: size // 2] = last[size // 2 + 1 :] = -np.inf
        for each in (few, first, last):
            top = float(each.max()) / temperature
            truth = pytest.approx(top + above_the_largest(each, temperature), rel=1e-6, abs=1e-3)
            assert totals.log_total(each, temperature) == truth
            assert kernels.log_total(each, temperature) == truth
            found = {native.log_total(each, temperature, isa) for isa in HERE}
            assert len(found) == (1 if HERE else 0), (size, found)


def test_it_is_close_where_that_can_be_seen() -> None:
    for logits in (row("normal", 128_256, 1), np.zeros(128_256, dtype=np.float32), row("peaked", 4096, 2)):
        excess = above_the_largest(logits, 0.5)
        for found in (totals.log_total(logits, 0.5), kernels.log_total(logits, 0.5)):
            assert found - float(logits.max()) / 0.5 == pytest.approx(excess, abs=1e-4)


@pytest.mark.parametrize("size", [3, 16, 40])
def test_what_has_no_sum_is_no_number(size: int) -> None:
    for wrong in (np.nan, np.inf):
        for place in (0, size - 1):
            logits = np.zeros(size, dtype=np.float32)
            logits[place] = wrong
            assert math.isnan(totals.log_total(logits))
            assert all(math.isnan(native.log_total(logits, 1.0, isa)) for isa in HERE)
    never = np.full(size, -np.inf, dtype=np.float32)
    assert math.isnan(totals.log_total(never))
    assert all(math.isnan(native.log_total(never, 1.0, isa)) for isa in HERE)


def test_it_takes_rows_with_gaps_and_refuses_what_is_no_row() -> None:
    numbers = np.arange(60, dtype=np.float32)
    within = np.frombuffer(b"\0" + numbers.tobytes(), dtype=np.float32, offset=1)
    expected = 56 + above_the_largest(numbers[::7], 1.0)
    assert kernels.log_total(numbers[::7]) == pytest.approx(expected, rel=1e-6)
    for wrong, temperature, message in (
        (np.zeros(3), 1.0, "log_total got float64 [3]; expected float32 [V], V > 0"),
        (np.zeros(0, dtype=np.float32), 1.0, "log_total got float32 [0]; expected float32 [V], V > 0"),
        (numbers[::7], 1.0, "logits has strides (28,)"),
        (within, 1.0, "begins within a number"),
        (numbers, 0.0, "log_total got temperature 0.0; expected 1e-30 or more"),
        (numbers, math.nan, "log_total got temperature nan; expected 1e-30 or more"),
    ):
        with pytest.raises(ContractError) as error:
            native.log_total(wrong, temperature, "generic")
        assert message in str(error.value)
