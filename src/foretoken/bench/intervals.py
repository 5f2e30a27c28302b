"""How sure a median is: an interval by bootstrap (Efron 1979), the percentile form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretoken.errors import ContractError

RESAMPLES = 4000


def median_interval(values: Sequence[float], *, seed: int = 0, confidence: float = 0.95) -> tuple[float, float]:
    """The interval in which the median of such values lies with a `confidence`: the middle part of the medians of
    resamples, as many values each, drawn with replacement. The same values and seed give the same interval.

    Of one value it is that value: nothing is known of how far another would be. Raises ContractError without any.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) == 0 or not np.isfinite(numbers).all():
        raise ContractError(f"an interval of {list(values)!r:.80}; expected finite numbers, one or more")
    drawn = np.random.default_rng(seed).integers(len(numbers), size=(RESAMPLES, len(numbers)))
    medians = np.median(numbers[drawn], axis=1)
    low, high = np.quantile(medians, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
