"""A decoder made of nothing but the reference's operations: what a native pass must equal, bit for bit.

It has no cache, no scratch and no views: each sequence is a list of committed keys and values, and a tree of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.linear import Linear
from foretoken.decoder.rope import RopeTable
from foretoken.decoder.weights import Weights
from foretoken.formats.values import dequantise
from foretoken.kernels import coded, reference

KeysValues = tuple[torch.Tensor, torch.Tensor]  # [positions or rows, kv_heads, head_dim], of the cache's type


@dataclass(frozen=True)
class Part:
    """Rows of one sequence: what is committed, by layer, and a tree of tokens after it (-1: after the prefix). coded:
    how many of the first blocks of what is committed are read in int8, in layers without a window."""

    committed: dict[int, KeysValues]
    tokens: Sequence[int]
    parents: Sequence[int]
    coded: int = 0

    @property
    def length(self) -> int:
        return len(next(iter(self.committed.values()))[0])

    @property
    def positions(self) -> list[int]:
        return [self.length + len(self.path(row)) - 1 for row in range(len(self.tokens))]

    def path(self, row: int) -> list[int]:
        """The rows from the end of the prefix down to and including `row`."""
        path: list[int] = []
        while row >= 0:
            path.insert(0, row)
            row = self.parents[row]
        return path


@dataclass(frozen=True)
class Result:
    """What the rows came to, part after part."""

    hidden: torch.Tensor
    logits: torch.Tensor
    stored: dict[int, KeysValues]

    def rows(self, rows: slice) -> Result:
        """Some of the rows."""
        stored = {layer: (keys[rows], values[rows]) for layer, (keys, values) in self.stored.items()}
        return Result(self.hidden[rows], self.logits[rows], stored)


class ReferenceDecoder:
    """The layers of a decoder, operation by operation."""

    def __init__(self, config: DecoderConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        self.rope = RopeTable(config.rope, config.head_dim, torch.device("cpu"))

    def nothing(self) -> dict[int, KeysValues]:
        """The committed keys and values of a sequence that has none."""
        c = self.config
        empty = torch.empty((0, c.num_kv_heads, c.head_dim), dtype=self.weights.embedding.dtype)
        return dict.fromkeys(range(c.num_layers), (empty, empty))

    def run(
        self, parts: Sequence[Part], lo: int = 0, hi: int | None = None, hidden: torch.Tensor | None = None
    ) -> Result:
        """Layers lo to hi over the rows' embeddings, or over `hidden`; then the output layer."""
        hi = self.config.num_layers if hi is None else hi
        if hidden is None:
            hidden = self.weights.embedding[torch.tensor([token for part in parts for token in part.tokens])].float()
        stored: dict[int, KeysValues] = {}
        for layer in range(lo, hi):
            hidden, stored[layer] = self._layer(layer, hidden, parts)
        normed = reference.rms_norm(hidden, self.weights.norm.float(), self.config.norm_eps)
        return Result(hidden, _linear(normed, self.weights.head)[:, : self.config.valid_vocab_size], stored)

    def _layer(self, index: int, hidden: torch.Tensor, parts: Sequence[Part]) -> tuple[torch.Tensor, KeysValues]:
        w, eps = self.weights.layers[index], self.config.norm_eps
        x = reference.rms_norm(hidden, w.input_norm.float(), eps)
        heads = (-1, self.config.head_dim)
        query, key, value = (_linear(x, part).unflatten(1, heads) for part in (w.query, w.key, w.value))
        if w.query_norm is not None and w.key_norm is not None:
            query = reference.rms_norm(query, w.query_norm.float(), eps)
            key = reference.rms_norm(key, w.key_norm.float(), eps)
        cos, sin = self.rope([position for part in parts for position in part.positions])
        query, key = (_rotated(part, cos, sin) for part in (query, key))
        keys, values = (_stored(rows, self.weights.embedding.dtype) for rows in (key, value))
        attended = self._attend(index, query, keys, values, parts)
        hidden = _added(hidden, _linear(attended, w.output))
        x = reference.rms_norm(hidden, w.post_norm.float(), eps)
        gate, up = _linear(x, w.gate), _linear(x, w.up)
        inner = reference.silu_mul(gate, up)
        return _added(hidden, _linear(inner, w.down)), (keys, values)

    def _attend(
        self, index: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, parts: Sequence[Part]
    ) -> torch.Tensor:
        window = self.config.windows[index]
        out, start = [], 0
        for part in parts:
            before_keys, before_values = part.committed[index]
            for row in range(len(part.tokens)):
                path = [start + ancestor for ancestor in part.path(row)]
                seen = part.length + len(path)
                first = 0 if window is None else max(0, seen - window)
                k, v = (torch.cat((before_keys, keys[path])), torch.cat((before_values, values[path])))
                if window is None:
                    out.append(coded.attention(query[start + row], k, v, part.coded))
                else:
                    out.append(reference.attention(query[start + row], k[first:], v[first:], first))
            start += len(part.tokens)
        return torch.stack(out).flatten(1)


def committed(cache: Cache) -> dict[int, KeysValues]:
    """What a cache holds, copied."""
    length = cache.length
    return {
        layer: (keys[:length].clone(), values[:length].clone())
        for layer in cache.layers
        for keys, values in [cache.read(layer)]
    }


def _linear(x: torch.Tensor, layer: Linear) -> torch.Tensor:
    weight, bias = layer.weight, None if layer.bias is None else layer.bias.float()
    if isinstance(weight, torch.Tensor):
        return reference.linear(x, weight, bias)
    if layer.inputs == "bf16":
        return reference.linear(x, dequantise(weight), bias)
    return {"int8": coded.linear_int8, "fp32": coded.linear_fp32}[layer.inputs](x, weight, bias)


def _rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """heads: [rows, heads, head_dim]."""
    count = heads.shape[1]
    turned = reference.rotate(heads.flatten(0, 1), cos.repeat_interleave(count, 0), sin.repeat_interleave(count, 0))
    return turned.view(heads.shape)


def _stored(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    with reference.flushed():
        return reference.round_to(rows, dtype)


def _added(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with reference.flushed():
        return a + b
