"""A decoder's passes on a GPU.

A pass over a few rows is hundreds of small kernels, and starting them from Python takes longer than they run. So a pass
in which nothing comes in from elsewhere is recorded when it has run once, and then repeated as a whole: a CUDA graph.
It is recorded for a number of rows, of texts and of positions; what it needs to know of its rows it reads from a place
that stays the same. The kernels are the same, recorded or not, and so are the bits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from foretoken import kernels
from foretoken.decoder.cache import Cache
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.homes.parts import PARTS, acquired, stretches
from foretoken.decoder.linear import Linear
from foretoken.decoder.outputs import Scored, step_by_step
from foretoken.decoder.recordings import Recordings
from foretoken.decoder.rope import RopeTable, rotate
from foretoken.decoder.rows import Rows, kind_of
from foretoken.decoder.weights import LayerWeights, Weights
from foretoken.errors import ContractError
from foretoken.formats.weight import QuantisedWeight
from foretoken.kernels import gpu
from foretoken.kernels.gpu import CHUNK, SEGMENT, Heads, RowsOnDevice

_RECORDED = (1, 8, 16, 64)  # rows for which passes are recorded: what there is less of is filled up
_TEXTS = (1, 4, 16, 64)  # the same of texts
_PATHS = 64  # slots of a path of each of them, on average
_POSITIONS = 4096  # for which cosines and sines are computed at first
_STRETCHES = 4  # of a prefix: those of a cache, and of views on it

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class GpuPass:
    """Runs layers and the output layer of one decoder on a GPU. Rows are independent of each other. Low-bit weights
    stay low-bit."""

    name = gpu.NAME

    def __init__(self, config: DecoderConfig, weights: Weights, rope: RopeTable) -> None:
        self._config, self._weights, self._rope = config, weights, rope
        self._device = weights.embedding.device
        self._arithmetic = gpu.Arithmetic()
        coded = [linear.weight for linear in weights.linears if isinstance(linear.weight, QuantisedWeight)]
        self._packed = {id(weight): gpu.pack(weight, self._device) for weight in coded}
        c = config
        self._shapes = [Heads(c.num_heads, c.num_kv_heads, c.head_dim, window) for window in c.windows]
        self._turns = rope.upto(min(c.context_length, _POSITIONS))
        self._recordings = Recordings(self._device)
        self._records = self._device.type == "cuda" and not any(weights.homes)
        self._alone = threading.RLock()  # passes of several threads take turns
        self._process = os.getpid()

    @property
    def cache_dtype(self) -> torch.dtype:
        """The type that keys and values are rounded to."""
        return self._weights.embedding.dtype

    def embed(self, tokens: list[int]) -> torch.Tensor:
        """float32 [N, hidden]."""
        return self._embedded(torch.tensor(tokens, device=self._device))

    def layers(
        self, hidden: torch.Tensor, rows: Rows, lo: int, hi: int, entering: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Layers lo to hi (not included) over hidden states, float32 [N, hidden], which are not changed. entering: as
        `Decoder.layers` has it."""
        with self._turn():
            hidden = self._through(hidden, self._placed(rows, range(lo, hi)).on(self._device), lo, hi, entering)
        rows.tag(range(lo, hi))
        return hidden

    def forward(self, rows: Rows) -> torch.Tensor:
        """Embedding and all layers: float32 [N, hidden]."""
        layers = range(self._config.num_layers)
        with self._turn():
            placed = self._placed(rows, layers)
            hidden = self._repeated(placed)
            if hidden is None:
                hidden = self._whole(placed.on(self._device))
        rows.tag(layers)
        return hidden

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final norm and output layer: float32 [N, valid_vocab_size], with the precision of the weights."""
        with self._turn():
            logits = self._multiply(self._normed(hidden, self._weights.norm), self._weights.head)
        return logits[:, : self._config.valid_vocab_size]

    def output(self, normed: torch.Tensor) -> torch.Tensor:
        """The output layer alone, with rows of padding: float32 [N, rows of the layer]."""
        with self._turn():
            return self._multiply(normed, self._weights.head)

    def norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """The final norm: float32 [N, hidden]."""
        with self._turn():
            return self._normed(hidden, self._weights.norm)

    def keys_and_values(
        self, layer: int, hidden: torch.Tensor, positions: list[int], *, entering: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values that a layer would write: float32 [N, kv_heads, head_dim] each."""
        w, shape = self._weights.layers[layer], (len(positions), self._config.num_kv_heads, self._config.head_dim)
        with self._turn():
            x = hidden if entering else self._normed(hidden, w.input_norm)
            keys = self._multiply(x, w.key).view(shape)
            keys = keys if w.key_norm is None else self._normed(keys, w.key_norm)
            return rotate(keys, *self._rope(positions)), self._multiply(x, w.value).view(shape)

    def run(self, rows: Rows) -> tuple[torch.Tensor, Scored]:
        """A whole pass. Returns hidden states, and logits of all rows, in the CPU's memory."""
        hidden = self.forward(rows)
        logits = self.head(hidden).cpu()
        return hidden, Scored(logits, lambda row: kernels.argmax(logits[row]))

    def chain(self, cache: Cache, token: int, rows: Rows) -> list[int]:
        """Greedy tokens after `token`, one for each row. rows: a chain. A NaN ends it early."""
        return step_by_step(self.run, token, rows)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Within it, this thread has the GPU's arithmetic for itself."""
        with self._alone, gpu.on(self._device):
            yield
            self._arithmetic.forget()

    def _placed(self, rows: Rows, layers: range) -> _Placed:
        if os.getpid() != self._process:
            raise ContractError(
                f"the model was loaded on {self._device} before this process was forked, and a GPU cannot be used "
                "after a fork; load it in the new process, and begin that with 'spawn'"
            )
        rows.expect_fit(kind_of(self._config, self.cache_dtype), self._device, layers)
        if not rows.sees_ancestors:
            raise ContractError("on a GPU each row sees its ancestors and itself; run other rows on the CPU")
        placed = _Placed.of(rows)
        if placed.last >= len(self._turns[0]):
            self._turns = self._rope.upto(max(placed.last + 1, 2 * len(self._turns[0])))
            self._recordings.drop()  # they read the shorter table
        return placed

    def _repeated(self, placed: _Placed) -> torch.Tensor | None:
        """The pass, filled up to a number of rows, texts and positions for which it can be recorded. None if it cannot
        be."""
        most = next((count for count in _RECORDED if count >= placed.count), None)
        if not self._records or most is None or len(placed.paths) > most * _PATHS:
            return None
        filled = placed.filled(most)
        chunks = 1 << (placed.last // CHUNK).bit_length()  # a power of two that suffices

        def rows() -> RowsOnDevice:
            return filled.on(self._device, chunks * CHUNK - 1)

        found = self._recordings.get((most, filled.texts, chunks, placed.aligned), rows, self._recorded)
        hidden = self._whole(rows()) if found is None else found.repeat(filled.numbers)
        return hidden[: placed.count]

    def _recorded(self, rows: RowsOnDevice) -> torch.Tensor:
        """A whole pass, while it is recorded: nothing of it is known from before, or for afterwards."""
        self._arithmetic.forget()
        hidden = self._whole(rows)
        self._arithmetic.forget()
        return hidden

    def _whole(self, rows: RowsOnDevice) -> torch.Tensor:
        return self._through(self._embedded(rows.numbers[: rows.count]), rows, 0, self._config.num_layers)

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._weights.embedding[tokens].float()

    def _through(
        self, hidden: torch.Tensor, rows: RowsOnDevice, lo: int, hi: int, entering: torch.Tensor | None = None
    ) -> torch.Tensor:
        for parts, home in stretches(self._weights.homes, lo, hi):
            with acquired(home):
                for part in parts:
                    index, which = divmod(part, len(PARTS))
                    w = self._weights.layers[index]
                    if which == 0:
                        enters = self._normed(hidden, w.input_norm) if entering is None else entering
                        hidden, entering = hidden + self._attention(index, w, enters, rows), None
                    elif which == 1:
                        normed = self._normed(hidden, w.post_norm)
                        gate = self._multiply(normed, w.gate)
                    elif which == 2:
                        inner = self._arithmetic.silu_mul(gate, self._multiply(normed, w.up))
                    else:
                        hidden = hidden + self._multiply(inner, w.down)
        return hidden

    def _attention(self, index: int, w: LayerWeights, x: torch.Tensor, rows: RowsOnDevice) -> torch.Tensor:
        shape = self._shapes[index]
        query, key, value = (self._multiply(x, linear) for linear in (w.query, w.key, w.value))
        if w.query_norm is not None and w.key_norm is not None:
            query, key = (
                self._normed(each.view(-1, shape.width), norm).view_as(each)
                for each, norm in ((query, w.query_norm), (key, w.key_norm))
            )
        query = self._arithmetic.place((query, key, value), rows, self._turns, index, shape)
        return self._multiply(self._arithmetic.attention(query, rows, index, shape), w.output)

    def _multiply(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        weight = self._packed.get(id(linear.weight), linear.weight)
        assert not isinstance(weight, QuantisedWeight)
        return self._arithmetic.linear(x, weight, linear.bias)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._arithmetic.rms_norm(x, weight, self._config.norm_eps)


@dataclass
class _Placed:
    """The rows of a pass, as numbers that are to be copied to a GPU: see `RowsOnDevice`. by_row: [5, N]. memory: what
    the addresses are of."""

    by_row: Numbers
    table: Numbers
    paths: Numbers
    last: int
    dtype: torch.dtype
    head_bytes: int
    memory: Sequence[object]

    @classmethod
    def of(cls, rows: Rows) -> _Placed:
        by_row = np.full((5, len(rows)), -1, dtype=np.int64)
        by_row[0], by_row[1] = rows.tokens, rows.positions
        table: list[int] = []
        paths: list[int] = []
        memory: list[object] = []
        for number, segment in enumerate(rows.segments):
            by_row[2, segment.span], by_row[3, segment.span] = number, segment.slots
            row = segment.cache.row_bytes
            own, prefix, held = segment.cache.addresses()
            memory += held
            if len(prefix) > _STRETCHES:
                raise ContractError(f"a view on {len(prefix) - 1} caches; on a GPU at most {_STRETCHES - 1} are read")
            keys, values, stride, first = own
            table += (segment.cache.length, keys - first * stride, values - first * stride, stride)
            spans = [(stop, *_begin(start, place, row)) for start, stop, *place in prefix] or [(0, 0, 0, 0)]
            for at in range(_STRETCHES):
                table += spans[min(at, len(spans) - 1)]
        for at, path in enumerate(rows.paths):
            if path:
                by_row[4, at] = len(paths)
                paths += path
        cache = rows.segments[0].cache
        return cls(
            by_row,
            np.array(table, dtype=np.int64),
            np.array(paths, dtype=np.int64),
            max(rows.positions),
            cache.dtype,
            cache.head_bytes,
            memory,
        )

    @property
    def count(self) -> int:
        """Rows."""
        return len(self.by_row[0])

    @property
    def texts(self) -> int:
        """Sequences."""
        return len(self.table) // SEGMENT

    @property
    def aligned(self) -> bool:
        """Whether all addresses are multiples of 16."""
        addresses = self.table.reshape(-1, 4)[:, 1:]  # the first of four is a number of positions
        return not (addresses % 16).any() and not self.head_bytes % 16

    @property
    def numbers(self) -> torch.Tensor:
        """All of them, one behind the other."""
        return torch.from_numpy(np.concatenate([self.by_row.ravel(), self.table, self.paths]))

    def filled(self, count: int) -> _Placed:
        """The same rows among so many, whose others are not there; with room for as many texts and slots of paths as a
        recording has."""
        rows = np.full((5, count), -1, dtype=np.int64)
        rows[0], rows[2] = 0, 0
        rows[:, : self.count] = self.by_row
        texts = next(most for most in _TEXTS if most >= self.texts)
        table = np.zeros(texts * SEGMENT, dtype=np.int64)
        table[: len(self.table)] = self.table
        paths = np.zeros(count * _PATHS, dtype=np.int64)
        paths[: len(self.paths)] = self.paths
        return replace(self, by_row=rows, table=table, paths=paths)

    def on(self, device: torch.device, last: int | None = None) -> RowsOnDevice:
        """On a device. last: a position that none is beyond, if not the last of them."""
        table = 5 * self.count
        return RowsOnDevice(
            self.numbers.to(device),
            self.count,
            table,
            table + len(self.table),
            self.last if last is None else last,
            self.aligned,
            self.dtype,
        )


def _begin(start: int, place: Sequence[int], row_bytes: int) -> tuple[int, int, int]:
    """Where position 0 would have its key and its value in layer 0, and the bytes from one layer to the next."""
    keys, values, stride, first = place
    return keys - first * stride - start * row_bytes, values - first * stride - start * row_bytes, stride
