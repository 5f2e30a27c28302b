"""The tokens that a drafter can choose, if its output layer has rows for some of the vocabulary alone.

With a vocabulary of 128,256 tokens, the output layer is most of what a step of a small drafter reads. Nearly all of a
text is made of far fewer tokens. The drafter still reads any token: it shares the target's embedding.

Source: drafting with a part of the vocabulary is FR-Spec's (2502.14856).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from foretoken import kernels
from foretoken.decoder.outputs import Scored
from foretoken.trained.config import VOCABULARY
from foretoken.trained.files import Trained


class Choices:
    """The tokens that the rows of an output layer stand for. trained: the drafter as it was read. count: of its rows,
    how many stand for tokens that may be chosen."""

    def __init__(self, trained: Trained, count: int) -> None:
        listed = trained.tensors.get(VOCABULARY)
        self.tokens = np.arange(count) if listed is None else listed.long().numpy()[:count]
        self._are_all = listed is None

    def over_all(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits of the layer's rows, float32 [..., rows], as logits of all tokens up to the last that can be
        chosen: -inf for the others."""
        if self._are_all:
            return logits
        found = np.full((*logits.shape[:-1], int(self.tokens[-1]) + 1), -np.inf, dtype=np.float32)
        found[..., self.tokens] = logits.numpy()
        return torch.from_numpy(found)

    def scored(self, logits: torch.Tensor) -> Scored:
        """What logits of the layer's rows, float32 [N, rows], stand for."""
        logits = logits.cpu()
        return Scored(self.over_all(logits), self.choice(logits))

    def choice(self, logits: torch.Tensor) -> Callable[[int], int | None]:
        """The token with the largest logit of a row of the pass. logits: of the layer's rows."""

        def choice(row: int) -> int | None:
            place = kernels.argmax(logits[row])
            return None if place is None else int(self.tokens[place])

        return choice
