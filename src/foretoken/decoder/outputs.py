"""What a pass gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Outputs:
    """One row a token of the pass. hidden: float32 [N, hidden], before the final norm; logits: float32 [N, vocabulary].

    `choice(row)` is the token with the largest logit, the lowest id on a tie; None if a logit is NaN.
    """

    hidden: torch.Tensor
    logits: torch.Tensor
    choice: Callable[[int], int | None]
