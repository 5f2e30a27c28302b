"""The place of each number of a small model in a large shape: the function stays, and the cost is the shape's.

Whatever is added is silent: channels that are zero in the residual stream, heads and neurons whose output is not read,
layers that add nothing, rows of the vocabulary that are never chosen. docs/rehearsals.md explains why the function
stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import torch

from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.shapes import HEAD
from foretoken.errors import InputError, UnsupportedModelError
from foretoken.rehearsal.shapes import SHAPED, Shape

# in a map, instead of a row or column of the small tensor
SILENT = -1  # zeros, in every tensor but a norm
NOISE = -2  # random numbers, which are computed but add nothing to the output

PLACEMENTS = ("spread", "first")
_EMBEDDING = "model.embed_tokens"


@dataclass(frozen=True)
class Placed:
    """A tensor of the rehearsal. Row i is row `rows[i]` of `source`, times `scale`, or SILENT or NOISE. Its column j is
    column `columns[j]` of that row, or SILENT. Silent numbers are `silence`. A vector has no columns."""

    source: str | None
    rows: torch.Tensor
    columns: torch.Tensor | None = None
    scale: float = 1.0
    silence: float = 0.0


@dataclass(frozen=True)
class Fit:
    """A small model in a shape. padding_token: the token whose row is copied to all added rows of the vocabulary."""

    small: DecoderConfig
    shape: Shape
    tied: bool
    padding_token: int
    placement: str = "spread"

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """The shape's layers that hold the small model's layers, in order."""
        few, many = self.small.num_layers, self.shape.num_layers
        return tuple(i * many // few if self.placement == "spread" else i for i in range(few))

    def placed(self, name: str) -> Placed:
        """The contents of a tensor of the rehearsal, by the tensor's name in the checkpoint."""
        base, _, kind = name.rpartition(".")
        if base in (_EMBEDDING, HEAD):
            stored = _EMBEDDING if base == HEAD and self.small.tied else base
            return Placed(f"{stored}.weight", self._tokens, self._channels)
        if not base.startswith("model.layers."):
            return self._norm(name)
        layer, part = base.removeprefix("model.layers.").split(".", 1)
        real = int(layer) in self.layers
        source = f"model.layers.{self.layers.index(int(layer))}.{part}.{kind}" if real else None
        what = part.rpartition(".")[2]
        if what.endswith("layernorm"):
            return self._norm(source)
        rows, columns = self._linears[what]
        scale = self._query_scale if what == "q_proj" else 1.0
        if kind == "bias":
            there = source is not None and self._has_bias(what)
            rows = rows.where(rows >= 0, SILENT) if there else _like(rows, SILENT)
            return Placed(source if there else None, rows, scale=scale)
        if source is None:
            rows = _like(rows, SILENT if what in ("o_proj", "down_proj") else NOISE)
        return Placed(source, rows, columns, scale)

    def like(self, name: str) -> str:
        """The small tensor whose spread a tensor's random numbers get."""
        return f"model.layers.0.{name.removeprefix('model.layers.').split('.', 1)[1]}"

    @property
    def norm_eps(self) -> float:
        """The mean of squares over more channels is smaller by the square of `_norm`'s scale, and so is epsilon."""
        return self.small.norm_eps * self.small.hidden_size / self.shape.hidden_size

    def _norm(self, source: str | None) -> Placed:
        """A norm over more channels, many of them zero, gives larger numbers. Scaled weights make up for that."""
        scale = sqrt(self.small.hidden_size / self.shape.hidden_size)
        rows = self._channels if source else _like(self._channels, SILENT)
        return Placed(source, rows, scale=scale, silence=scale)

    @property
    def _stretch(self) -> int:
        return self.shape.head_dim // self.small.head_dim

    @property
    def _query_scale(self) -> float:
        """Makes up for attention's division by the root of the head size."""
        return sqrt(self._stretch)

    def _has_bias(self, what: str) -> bool:
        if what in ("q_proj", "k_proj", "v_proj"):
            return self.small.qkv_bias
        return self.small.output_bias if what == "o_proj" else self.small.mlp_bias

    @cached_property
    def _channels(self) -> torch.Tensor:
        return _counted(self.small.hidden_size, self.shape.hidden_size)

    @cached_property
    def _tokens(self) -> torch.Tensor:
        return _counted(self.small.vocab_size, self.shape.vocab_size, self.padding_token)

    @cached_property
    def _linears(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """The rows and columns of a layer's matrices."""
        queries, keys = self._heads
        neurons = _counted(self.small.intermediate_size, self.shape.intermediate_size, NOISE)
        into, out = self._channels, self._channels
        return {
            "q_proj": (self._turned(queries, SILENT), into),
            # what observes keys and values is not to be disturbed by those that the small model lacks
            "k_proj": (_silenced(self._turned(keys, SILENT)), into),
            "v_proj": (_silenced(self._straight(keys)), into),
            "o_proj": (out, _silenced(self._straight(queries))),
            "gate_proj": (neurons, into),
            "up_proj": (neurons, into),
            "down_proj": (out, _silenced(neurons)),
        }

    @cached_property
    def _heads(self) -> tuple[list[int | None], list[int | None]]:
        """For each query head and each key/value head of the shape, the small model's head in its place, or None."""
        few, many = self.small.num_heads // self.small.num_kv_heads, self.shape.num_heads // self.shape.num_kv_heads
        queries: list[int | None] = [None] * self.shape.num_heads
        keys: list[int | None] = [None] * self.shape.num_kv_heads
        copies = key_copies(self.small, self.shape)
        for key in range(self.small.num_kv_heads):
            for copy in range(copies):
                keys[key * copies + copy] = key
            for query in range(few):
                place = key * copies + query // many
                queries[place * many + query % many] = key * few + query
        return queries, keys

    @cached_property
    def observed(self) -> torch.Tensor:
        """For each number that an observer sees of one of the layers that hold the small model's (for each key/value
        head its key, then its value), the small model's number in its place, or SILENT."""
        small, large = self.small.head_dim, self.shape.head_dim
        both = []
        for part, name in enumerate(("k_proj", "v_proj")):
            rows, _ = self._linears[name]
            place = (rows // small * 2 + part) * small + rows % small  # where a head's key is followed by its value
            both.append(place.where(rows >= 0, SILENT).view(-1, 1, large))
        return torch.cat(both, dim=1).view(-1)

    def _turned(self, heads: list[int | None], missing: int) -> torch.Tensor:
        """Rows of queries or keys. Dimension j of a small head turns like dimension j * `_stretch` of a larger head."""
        small, large = self.small.head_dim, self.shape.head_dim
        rows = torch.full((len(heads), large), NOISE)
        for at, head in enumerate(heads):
            if head is not None:
                rows[at] = missing
                rows[at, :: self._stretch] = torch.arange(head * small, (head + 1) * small)
        return rows.view(-1)

    def _straight(self, heads: list[int | None]) -> torch.Tensor:
        """Rows of values, which are not rotated."""
        small, large = self.small.head_dim, self.shape.head_dim
        rows = torch.full((len(heads), large), NOISE)
        for at, head in enumerate(heads):
            if head is not None:
                rows[at, :small] = torch.arange(head * small, (head + 1) * small)
        return rows.view(-1)


def _counted(few: int, many: int, rest: int = SILENT) -> torch.Tensor:
    return torch.cat((torch.arange(few), torch.full((many - few,), rest)))


def _like(rows: torch.Tensor, value: int) -> torch.Tensor:
    return torch.full_like(rows, value)


def _silenced(rows: torch.Tensor) -> torch.Tensor:
    """The same rows, but SILENT where they are random."""
    return rows.where(rows >= 0, SILENT)


def key_copies(small: DecoderConfig, shape: Shape) -> int:
    """The number of copies of a key/value head: several if it has more query heads than such a head of the shape."""
    few, many = small.num_heads // small.num_kv_heads, shape.num_heads // shape.num_kv_heads
    return -(-few // many)


def expect_kind(small: DecoderConfig, shape: Shape, name: str) -> None:
    """Raise UnsupportedModelError for a model whose function the shape's family cannot have."""
    if small.model_type not in SHAPED:
        raise UnsupportedModelError(
            f"{name} is of the family {small.model_type}; a rehearsal can be made of {' and '.join(SHAPED)}"
        )
    if small.low_bit is not None:
        raise UnsupportedModelError(
            f"{name} is in a low-bit format, {small.low_bit.label}; rehearse the model that it was made of, and "
            "quantise the rehearsal"
        )
    if any(small.windows):
        raise UnsupportedModelError(f"{name} has sliding windows; a rehearsal can be made of models without")
    if shape.model_type == "qwen2" and (small.output_bias or small.mlp_bias):
        raise UnsupportedModelError(f"{name} has biases that qwen2 has not, the family of {shape.name}; name another")
    if shape.head_dim > small.head_dim and small.rope.type in ("dynamic", "yarn"):
        raise UnsupportedModelError(
            f"{name} has {small.rope.type} positions, which depend on the head's size, and {shape.name} has heads of "
            f"{shape.head_dim} instead of {small.head_dim}; name a shape with heads of {small.head_dim}"
        )


def has_room(small: DecoderConfig, shape: Shape) -> bool:
    """Whether a model fits into a shape."""
    try:
        expect_room(small, shape, "")
    except InputError:
        return False
    return True


def expect_room(small: DecoderConfig, shape: Shape, name: str) -> None:
    """Raise InputError for a shape that has no room for a model. The error names all sizes that are too small."""
    sizes = {
        "layers": (small.num_layers, shape.num_layers),
        "hidden channels": (small.hidden_size, shape.hidden_size),
        "intermediate": (small.intermediate_size, shape.intermediate_size),
        "rows of vocabulary": (small.vocab_size, shape.vocab_size),
    }
    reasons = [f"{few} {what}, the shape has {many}" for what, (few, many) in sizes.items() if few > many]
    if shape.head_dim % small.head_dim:
        reasons.append(f"heads of {small.head_dim}, those of the shape are {shape.head_dim}, no multiple")
    copies = key_copies(small, shape)
    if small.num_kv_heads * copies > shape.num_kv_heads:
        as_many = f", each {copies} times for its queries" if copies > 1 else ""
        reasons.append(f"{small.num_kv_heads} key/value heads{as_many}, the shape has {shape.num_kv_heads}")
    if reasons:
        raise InputError(f"{name} does not fit into {shape.name}: it has {'; '.join(reasons)}. Name a larger shape")
