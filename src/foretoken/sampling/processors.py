"""Penalties and bias: edits of single logits, by what a sequence holds so far.

A token's logit is edited by that token's own counts alone, in float32, so the result depends on nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from foretoken.kernels.choosing import Floats
from foretoken.types import SamplingParams


class History:
    """How often each token stands in the output, and which stand in the prompt."""

    def __init__(self, prompt: Iterable[int]) -> None:
        self._prompt = np.unique(np.fromiter(prompt, dtype=np.int64))
        self._output: Counter[int] = Counter()

    def add(self, token: int) -> None:
        """One more token of the output."""
        self._output[token] += 1

    def remove(self, token: int) -> None:
        """One token less."""
        self._output[token] -= 1
        if not self._output[token]:
            del self._output[token]

    def edit(self, logits: Floats, params: SamplingParams) -> None:
        """Penalties, then bias, in place. Tokens that the row of logits does not have are left out."""
        size = len(logits)
        output = np.fromiter((t for t in self._output if t < size), dtype=np.int64)
        if params.repetition_penalty != 1.0:
            seen = np.union1d(self._prompt[self._prompt < size], output)
            penalty, at = np.float32(params.repetition_penalty), logits[seen]
            logits[seen] = np.where(at > 0, at / penalty, at * penalty)
        if params.frequency_penalty != 0.0:
            counts = np.array([self._output[int(t)] for t in output], dtype=np.float32)
            logits[output] -= counts * np.float32(params.frequency_penalty)
        if params.presence_penalty != 0.0:
            logits[output] -= np.float32(params.presence_penalty)
        for token, bias in params.logit_bias:
            if token < size:
                logits[token] += np.float32(bias)
