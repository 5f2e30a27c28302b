"""The cost of a decoder's calls: operations and bytes, counted from shapes, positions and layers, not measured.

Only products are counted: linear layers, and in attention queries with keys and weights with values. Norms, rotations,
the softmax, SwiGLU's gate and the choice of a token are not counted: they go over a row or its scores once, but a
linear layer goes over a row once for each of its outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch

from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.linear import Linear
from foretoken.decoder.rows import Rows
from foretoken.decoder.weights import LINEARS, LayerWeights, Weights
from foretoken.formats.table import PLACES
from foretoken.formats.weight import bytes_of_places
from foretoken.protocol.telemetry import Cost


class CostModel:
    """The cost of each call of one decoder: a pure function of the call's arguments.

    Low-bit weights count with the bytes of their format, also in PyTorch, where they were made bf16 beforehand. Keys
    and values that are read in int8 count with its bytes; that they are put into int8, once, does not count. The
    output layer counts as a whole, with the rows of padding beyond `valid_vocab_size`.
    """

    def __init__(self, config: DecoderConfig, weights: Weights, *, codes_places: bool = False) -> None:
        """codes_places: whether rows on views read whole blocks of old keys and values in int8."""
        itemsize = weights.embedding.element_size()  # also that of keys and values
        self._windows = config.windows
        self._embedding_row = config.hidden_size * itemsize
        self._per_key = 4 * config.num_heads * config.head_dim  # operations: two products of a row with a key's width
        self._key_bytes = 2 * config.num_kv_heads * config.head_dim * itemsize  # of a key and its value in a layer
        # so many bytes fewer are read of a block of positions that is read in int8
        whole = PLACES * self._key_bytes - bytes_of_places(config.num_kv_heads, config.head_dim)
        self._saved = whole if codes_places else 0
        # sums over all layers below an index
        self._numbers = [0, *accumulate(map(_layer_numbers, weights.layers))]
        self._bytes = [0, *accumulate(map(_layer_bytes, weights.layers))]
        self._head_numbers = _numbers(weights.head)
        self._head_bytes = _bytes(weights.head) + weights.norm.nbytes
        self._counted: dict[tuple[int, int], list[tuple[int | None, int]]] = {}

    def embed(self, count: int) -> Cost:
        """The embeddings of `count` tokens: a row of the table for each."""
        return Cost(weight_bytes=count * self._embedding_row)

    def head(self, count: int) -> Cost:
        """Final norm and output layer over `count` rows. With no rows nothing is read."""
        return Cost(2 * count * self._head_numbers, self._head_bytes) if count else Cost()

    def layers(self, rows: Rows, lo: int, hi: int) -> Cost:
        """Layers lo to hi (not included) over rows, each of which sees the keys up to `Rows.sees`."""
        prefixes = ((s.cache.length, min(rows.positions[s.span]), s.cache.whole_blocks) for s in rows.segments)
        return self._layers(rows.sees, prefixes, lo, hi, reads=1)

    def forward(self, rows: Rows) -> Cost:
        """A whole pass without the output layer."""
        return self.embed(len(rows)) + self.layers(rows, 0, len(self._windows))

    def steps(self, rows: Rows, count: int) -> Cost:
        """Whole passes over the first `count` rows of one sequence, one by one: embedding, all layers, output layer."""
        (segment,) = rows.segments
        positions = rows.positions[:count]
        blocks = segment.cache.whole_blocks
        prefixes = ((segment.cache.length, position, blocks) for position in positions)
        layers = self._layers(positions, prefixes, 0, len(self._windows), reads=count)
        head = Cost(2 * count * self._head_numbers, count * self._head_bytes)
        return self.embed(count) + layers + head

    def _layers(
        self, positions: Sequence[int], prefixes: Iterable[tuple[int, int, int]], lo: int, hi: int, *, reads: int
    ) -> Cost:
        """prefixes: the length of each, the lowest position that reads it, and how many whole blocks a view sees of the
        cache at the bottom. reads: how often weights are read."""
        read = list(prefixes)
        seen = keys = coded = 0  # keys that rows are multiplied with; keys that are read or written; blocks in int8
        for window, layers in self._windows_of(lo, hi):
            if window is None:
                seen += layers * (sum(positions) + len(positions))
                keys += layers * (sum(length for length, _, _ in read) + len(positions))
                coded += layers * sum(blocks for _, _, blocks in read)
            else:
                seen += layers * sum(min(position + 1, window) for position in positions)
                prefix = sum(max(0, length - max(0, lowest + 1 - window)) for length, lowest, _ in read)
                keys += layers * (prefix + len(positions))
        flops = 2 * len(positions) * (self._numbers[hi] - self._numbers[lo]) + self._per_key * seen
        cache = keys * self._key_bytes - coded * self._saved
        return Cost(flops, reads * (self._bytes[hi] - self._bytes[lo]), cache)

    def _windows_of(self, lo: int, hi: int) -> list[tuple[int | None, int]]:
        """Each window in a range of layers, and how many layers have it. Kept, since each pass asks for the same
        ranges."""
        if (lo, hi) not in self._counted:
            self._counted[lo, hi] = list(Counter(self._windows[lo:hi]).items())
        return self._counted[lo, hi]


def _layer_numbers(layer: LayerWeights) -> int:
    return sum(_numbers(getattr(layer, name)) for name in LINEARS)


def _layer_bytes(layer: LayerWeights) -> int:
    norms = (layer.input_norm, layer.post_norm, layer.query_norm, layer.key_norm)
    return sum(_bytes(getattr(layer, name)) for name in LINEARS) + sum(map(_tensor_bytes, norms))


def _numbers(linear: Linear) -> int:
    outputs, inputs = linear.weight.shape
    return int(outputs * inputs)


def _bytes(linear: Linear) -> int:
    return linear.nbytes + _tensor_bytes(linear.bias)


def _tensor_bytes(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.nbytes
