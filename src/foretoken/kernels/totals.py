"""The logarithm of a sum over the vocabulary, by which logits become probabilities. Scores of drafts and log
probabilities need it, and no choice of a token: so its last bits need not be the same everywhere."""

from __future__ import annotations

import numpy as np

from foretoken.kernels.choosing import Doubles, Floats


def log_total(logits: Floats | Doubles, temperature: float = 1.0) -> float:
    """The logarithm of the sum of exp(logit / temperature) over [V], V > 0; NaN if a logit is NaN or +inf, or all are
    -inf. temperature: above 0."""
    most = logits.max()
    with np.errstate(over="ignore", invalid="ignore"):
        shares = np.exp((logits - most) / logits.dtype.type(temperature))
        return float(most) / temperature + float(np.log(shares.sum()))
