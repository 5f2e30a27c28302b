"""What a pass gives, and how its rows are copied: by numpy, where they lie in the CPU's memory.

PyTorch would share the copying out to its threads, which then spin on the cores that the next pass wants, and which a
forked child does not have: it would wait for them for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Outputs:
    """One row a token of the pass. hidden: float32 [N, hidden], before the final norm; logits: float32 [N, vocabulary].

    `choice(row)` is the token with the largest logit, the lowest id on a tie; None if a logit is NaN.
    """

    hidden: torch.Tensor
    logits: torch.Tensor
    choice: Callable[[int], int | None]


def picked(tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Some rows of a float32 tensor, in memory of their own."""
    if tensor.device.type != "cpu":
        return tensor[list(rows)]
    return torch.from_numpy(tensor.numpy()[list(rows)])


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The rows of some float32 tensors, one after the other, in memory of their own."""
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return torch.cat(list(tensors))
    return torch.from_numpy(np.concatenate([tensor.numpy() for tensor in tensors]))
