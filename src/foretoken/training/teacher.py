"""The target as a teacher: what it computes of windows of text, as a drafter would see it in use, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rope import RopeTable
from foretoken.decoder.rows import Rows
from foretoken.formats.values import dequantise
from foretoken.formats.weight import QuantisedWeight
from foretoken.kernels import native
from foretoken.trained.network import Tables
from foretoken.trained.observer import observations


class Lesson(NamedTuple):
    """What the target computes of B windows of T tokens. embedded: float32 [B, T, hidden]. observed: float32 [B, T,
    layers, 2 * kv_heads * head_dim]. normed: the output of the last layer after the final norm, float32 [B, T,
    hidden]."""

    embedded: torch.Tensor
    observed: torch.Tensor
    normed: torch.Tensor


class Teacher:
    """A target that is only asked. norm, head: as the drafter's loss needs them, float32 [hidden] and bf16 [V, hidden];
    they are not trained. observed: the layers whose keys and values the drafter sees."""

    def __init__(self, target: Decoder, observed: Sequence[int]) -> None:
        self._target, self._observed = target, observed
        config, weights = target.config, target.weights
        self.eps = config.norm_eps
        self.norm = weights.norm.float()
        self.head = _plain(target)[: config.valid_vocab_size].to(torch.bfloat16)
        self._rope = RopeTable(config.rope, config.head_dim, torch.device("cpu"))

    def tables(self, length: int) -> Tables:
        """Cosines and sines of the first positions."""
        return self._rope(list(range(length)))

    def teach(self, tokens: torch.Tensor) -> Lesson:
        """One pass over the windows. tokens: int [B, T]."""
        caches = [self._target.new_cache() for _ in tokens]
        length = tokens.shape[1]
        rows = Rows(
            (cache, window, range(-1, length - 1)) for cache, window in zip(caches, tokens.tolist(), strict=True)
        )
        hidden = self._target.forward(rows)
        shape = (*tokens.shape, -1)
        return Lesson(
            self._target.embed(rows.tokens).view(shape),
            torch.stack([observations(cache, 0, length, self._observed) for cache in caches]),
            self._target.norm(hidden).view(shape),
        )


def _plain(target: Decoder) -> torch.Tensor:
    """The output layer: float32 [V, hidden]. Where it lies in an instruction set's own layout, it is asked for each
    column."""
    linear, width = target.weights.head, target.config.hidden_size
    if isinstance(linear.weight, QuantisedWeight):
        return dequantise(linear.weight).float()
    if linear.layout == "rows":
        return linear.weight.float()
    isa = target.arithmetic.removeprefix("native ")
    columns = native.linear(torch.eye(width), linear.weight, None, isa, target.threads, repacked=True)
    return columns.T.contiguous()
