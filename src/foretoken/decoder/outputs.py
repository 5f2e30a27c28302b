"""The outputs of a pass: hidden states of all rows, and logits and choices of the rows that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from foretoken.decoder.rows import Rows


class Scored(NamedTuple):
    """Logits of some rows, float32 [n, vocabulary]. `choice(row)` is the token with the largest logit of a row: the
    lowest id on a tie, None if a logit is NaN."""

    logits: torch.Tensor
    choice: Callable[[int], int | None]


def step_by_step(run: Callable[[Rows], tuple[torch.Tensor, Scored]], token: int, rows: Rows) -> list[int]:
    """Greedy tokens after `token`, by one pass of `run` for each row. rows: a chain. A NaN ends it early."""
    tokens: list[int] = []
    for row in range(len(rows)):
        choice = run(rows.part(row, row + 1, [token]))[1].choice(0)
        if choice is None:
            break
        token = choice
        tokens.append(token)
    return tokens


class Outputs:
    """One row for each token of the pass. hidden: float32 [N, hidden], before the final norm. taps: the input of some
    layers, by layer, float32 [N, hidden].

    Logits are computed only for rows that are asked for. A pass over hundreds of draft rows would otherwise compute and
    hold a row of 128,256 logits for each, although a walk looks at a few. `score` is the output layer. Computing one
    row reads all its weights, as computing many rows does. So `together` names the rows to compute with a row: those
    that a walk may ask for next.
    """

    def __init__(
        self,
        hidden: torch.Tensor,
        score: Callable[[torch.Tensor], Scored],
        together: Callable[[int], Sequence[int]],
        *,
        scored: Scored | None = None,
        taps: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        """scored: the logits of all rows, if they are known already."""
        self.hidden = hidden
        self.taps = {} if taps is None else taps
        self._score = score
        self._together = together
        self._scored = {} if scored is None else {row: (scored, row) for row in range(len(hidden))}

    def choice(self, row: int) -> int | None:
        """The token with the largest logit, the lowest id on a tie; None if a logit is NaN."""
        scored, at = self._at(row)
        return scored.choice(at)

    def logits(self, row: int) -> torch.Tensor:
        """A row's logits: float32 [vocabulary]. They are a window on a larger tensor: copy logits that are kept."""
        scored, at = self._at(row)
        return scored.logits[at]

    def prepare(self, rows: Sequence[int]) -> None:
        """Compute some rows at once, before they are asked for one by one."""
        new = [row for row in rows if row not in self._scored]
        if new:
            # all rows in order need not be gathered
            hidden = self.hidden if new == list(range(len(self.hidden))) else gathered(self.hidden, new)
            scored = self._score(hidden)
            self._scored.update((row, (scored, at)) for at, row in enumerate(new))

    def _at(self, row: int) -> tuple[Scored, int]:
        if row not in self._scored:
            self.prepare([row, *(other for other in self._together(row) if other != row)])
        return self._scored[row]


# numpy copies rows that lie in the CPU's memory, on one thread. PyTorch would divide the copying among its threads.
# These then spin on the cores that the next pass wants. A forked child does not have these threads, and would wait for
# ever.


def gathered(tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Some rows of a float32 tensor, in memory of their own."""
    if tensor.device.type != "cpu":
        return tensor[list(rows)]
    return torch.from_numpy(tensor.detach().numpy()[list(rows)])


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The rows of some tensors of one type, one after the other, in memory of their own."""
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return torch.cat(list(tensors))
    found = np.concatenate([tensor.detach().view(torch.uint8).numpy() for tensor in tensors])
    return torch.from_numpy(found).view(tensors[0].dtype)
