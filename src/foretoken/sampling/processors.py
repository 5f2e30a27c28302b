"""Penalties and bias: edits of single logits, by the tokens of a sequence so far.

A token's logit is edited by that token's own counts alone, in float32, so the result depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from foretoken.kernels.choosing import Floats
from foretoken.protocol.types import SamplingParams


class History:
    """How often each token occurs in the output, and which tokens occur in the prompt.

    The distinct tokens stand in arrays, without order, those of the prompt first. Adding or removing a token changes
    one place, and no edit goes through the whole text.
    """

    def __init__(self, prompt: Iterable[int]) -> None:
        self._tokens = np.unique(np.fromiter(prompt, dtype=np.int64))
        self._prompt = self._used = len(self._tokens)
        self._counts = np.zeros(self._used, dtype=np.int64)
        self._place = {token: place for place, token in enumerate(self._tokens.tolist())}

    def add(self, token: int) -> None:
        """Add a token of the output."""
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = self._used
            if place == len(self._tokens):
                more = np.zeros(place + 64, dtype=np.int64)
                self._tokens = np.concatenate((self._tokens, more))
                self._counts = np.concatenate((self._counts, more))
            self._tokens[place] = token
            self._used += 1
        self._counts[place] += 1

    def remove(self, token: int) -> None:
        """Remove a token of the output."""
        place = self._place[token]
        self._counts[place] -= 1
        if place < self._prompt or self._counts[place]:
            return
        self._used -= 1
        last = int(self._tokens[self._used])  # it moves to the free place
        self._tokens[place], self._counts[place], self._counts[self._used] = last, self._counts[self._used], 0
        self._place[last] = place
        del self._place[token]

    def edit(self, logits: Floats, params: SamplingParams) -> None:
        """Apply penalties, then bias, in place. logits: float32 [V]. Tokens beyond the row of logits are left out."""
        size = len(logits)
        seen, counts = self._tokens[: self._used], self._counts[: self._used]
        if len(seen) and seen.max() >= size:
            seen, counts = seen[seen < size], counts[seen < size]
        if params.repetition_penalty != 1.0:
            penalty, at = np.float32(params.repetition_penalty), logits[seen]
            logits[seen] = np.where(at > 0, at / penalty, at * penalty)
        said = counts > 0
        output, counts = seen[said], counts[said]
        if params.frequency_penalty != 0.0:
            logits[output] -= counts.astype(np.float32) * np.float32(params.frequency_penalty)
        if params.presence_penalty != 0.0:
            logits[output] -= np.float32(params.presence_penalty)
        for token, bias in params.logit_bias:
            if token < size:
                logits[token] += np.float32(bias)
