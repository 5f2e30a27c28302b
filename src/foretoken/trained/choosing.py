"""A decoder that can choose some tokens of the vocabulary alone: those that its output layer has rows for.

With a vocabulary of 128,256 tokens, the output layer is most of what a step of a small drafter reads. Nearly all of a
text is made of far fewer tokens. The drafter still reads any token: it shares the target's embedding.

Source: drafting with a part of the vocabulary is FR-Spec's (2502.14856).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from foretoken import kernels
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.outputs import Scored
from foretoken.decoder.rows import Rows
from foretoken.decoder.weights import Weights
from foretoken.trained.config import VOCABULARY
from foretoken.trained.files import Trained
from foretoken.trained.stepwise import StepwiseDecoder


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


class ChoosingDecoder(StepwiseDecoder):
    """trained: the drafter as it was read. The others are `Decoder`'s. Logits that come with a pass are those of all
    tokens, -inf where it cannot choose; those that `head` gives are of its own rows."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        trained: Trained,
        *,
        threads: int | None = None,
        arithmetic: str = "auto",
    ) -> None:
        super().__init__(config, weights, threads=threads, arithmetic=arithmetic)
        self._choices = Choices(trained, config.valid_vocab_size)

    def tokens_at(self, places: Sequence[int]) -> list[int]:
        """The tokens whose logits lie at some places of a row of its own."""
        found: list[int] = self._choices.tokens[list(places)].tolist()
        return found

    def over_all(self, logits: torch.Tensor) -> torch.Tensor:
        """As `Choices.over_all`."""
        return self._choices.over_all(logits)

    def _score(self, rows: Rows) -> Callable[[torch.Tensor], Scored]:
        return lambda hidden: self._scored(self.head(hidden, rows))

    def _scored(self, logits: torch.Tensor) -> Scored:
        return self._choices.scored(logits)
