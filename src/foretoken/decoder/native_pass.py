"""A decoder's passes in C++: one call for each pass, from a plan that is made once.

The plan holds the addresses of the weights (mapped from the file, or copied), so it must not outlive them. `NativePass`
holds both.

This module uses PyTorch's memory, but none of its arithmetic. PyTorch divides large operations among threads. A forked
child does not have these threads, and would wait for ever. The native threads are made anew in a child.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.coded_prefix import CodePlaces, coded_layers
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.homes.parts import PARTS, acquired, stretches
from foretoken.decoder.linear import Linear
from foretoken.decoder.outputs import Scored, step_by_step
from foretoken.decoder.rope import RopeTable
from foretoken.decoder.rows import Rows, kind_of
from foretoken.decoder.weights import Weights
from foretoken.errors import ContractError
from foretoken.kernels import native

PIECE = 320  # rows of a pass that run together where weights come in part by part: more than a draft has


def why_not(weights: Weights) -> str | None:
    """Why a decoder with these weights cannot run natively; None if it can."""
    if native.module() is None:
        return f"the native module is {native.explain()}"
    if weights.embedding.device.type != "cpu":
        return "its weights are not in the memory of the CPU"
    strange = [n for n, tensor in weights.tensors.items() if str(tensor.dtype) not in native.FORMATS]
    if strange:
        return f"{strange[0]} is {weights.tensors[strange[0]].dtype}"
    for layer in weights.layers:  # layers with common inputs must want these packed alike
        for together in ((layer.query, layer.key, layer.value), (layer.gate, layer.up)):
            kinds = {f"{linear.format} with inputs {linear.inputs}" for linear in together}
            if len(kinds) > 1:
                return f"linear layers side by side are {' and '.join(sorted(kinds))}; give a dtype to convert them"
    loose = [name for name, tensor in weights.tensors.items() if not tensor.is_contiguous()]
    if loose:
        return f"{loose[0]} is not contiguous"
    return None


class _Piece(NamedTuple):
    """Rows of a pass that run together. before: how many rows of the pass are before them. rows, hidden, scores: as the
    plan takes them; the last two are addresses."""

    before: int
    rows: tuple[Any, ...]
    hidden: int
    scores: tuple[int, int]


class _Coder(NamedTuple):
    """Puts old keys and values of some layers into int8."""

    layers: range
    code: CodePlaces

    def blocks_of(self, cache: Cache) -> tuple[torch.Tensor, ...]:
        """The blocks that rows on a view read in int8; of another cache none."""
        return cache.coded(self.layers, self.code) if cache.whole_blocks else ()


class NativePass:
    """Runs layers and the output layer of one decoder natively."""

    name = "native"

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        rope: RopeTable,
        threads: int,
        isa: str,
        *,
        codes_places: bool = False,
    ) -> None:
        """codes_places: whether rows on views read whole blocks of old keys and values in int8."""
        self.isa = isa
        code = partial(native.code_places, isa=isa, threads=threads)
        self._coder = _Coder(coded_layers(config.windows), code) if codes_places else None
        self._threads = threads
        self._config = config
        self._weights = weights
        self._rope = rope
        self._kept: list[torch.Tensor] = []  # keeps alive what the plan reads by address
        module = native.module()
        assert module is not None
        c = config
        formats = [native.FORMATS[str(d)] for d in (weights.embedding.dtype, self.cache_dtype)]
        shape = [c.hidden_size, c.intermediate_size, c.num_heads, c.num_kv_heads, c.head_dim, c.valid_vocab_size]
        self._plan = module.Plan(
            [*shape, *formats],
            c.norm_eps,
            [self._layer(at, window) for at, window in enumerate(c.windows)],
            weights.embedding.data_ptr(),
            self._floats(weights.norm),
            self._linear(weights.head),
            native.isa_number(isa),
            threads,
        )
        self._process, self._one_pass = os.getpid(), threading.Lock()
        self._kept.clear()  # norms and biases are copied; weights live in `weights`

    @property
    def cache_dtype(self) -> torch.dtype:
        """The type that keys and values are rounded to."""
        return self._weights.embedding.dtype

    def embed(self, tokens: list[int]) -> torch.Tensor:
        """float32 [N, hidden]."""
        table = self._weights.embedding
        as_bits = table.view(torch.int32 if table.dtype == torch.float32 else torch.int16)  # numpy knows no bf16
        rows = torch.from_numpy(as_bits.numpy()[tokens]).view(table.dtype)
        return native.widen(rows.flatten(), self.isa).view(rows.shape)

    def layers(
        self, hidden: torch.Tensor, rows: Rows, lo: int, hi: int, entering: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Layers lo to hi (not included) over hidden states, float32 [N, hidden], which are not changed. entering: as
        `Decoder.layers` has it."""
        out = torch.empty(hidden.shape)
        np.copyto(out.numpy(), hidden.detach().float().numpy())
        self._run(rows, range(lo, hi), out, embed=False, entering=entering)
        return out

    def forward(self, rows: Rows) -> torch.Tensor:
        """Embedding and all layers: float32 [N, hidden]."""
        hidden = torch.empty((len(rows), self._config.hidden_size))
        self._run(rows, range(self._config.num_layers), hidden)
        return hidden

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final norm and output layer: float32 [N, valid_vocab_size]."""
        hidden = hidden.detach().float().contiguous()  # mostly without a copy
        logits = torch.empty((len(hidden), self._config.valid_vocab_size))
        if len(hidden):
            self._plan.head(len(hidden), hidden.data_ptr(), logits.data_ptr(), 0)
        return logits

    def output(self, normed: torch.Tensor) -> torch.Tensor:
        """The output layer alone, with rows of padding: float32 [N, rows of the layer]."""
        return self._multiplied(normed.contiguous(), self._weights.head)

    def norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """The final norm: float32 [N, hidden]."""
        return self._normed(hidden.contiguous(), self._weights.norm)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return native.rms_norm(x, weight.float().contiguous(), self._config.norm_eps, self.isa)

    def _multiplied(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        bias = None if linear.bias is None else linear.bias.float().contiguous()
        repacked = linear.layout != "rows"
        return native.linear(x, linear.weight, bias, self.isa, self._threads, repacked=repacked, inputs=linear.inputs)

    def keys_and_values(
        self, layer: int, hidden: torch.Tensor, positions: list[int], *, entering: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values that a layer would write, as the cache stores them: [N, kv_heads, head_dim] each."""
        w, c = self._weights.layers[layer], self._config
        x = hidden.detach().float().contiguous()
        x = x if entering else self._normed(x, w.input_norm)
        key, value = (self._multiplied(x, linear).view(-1, c.head_dim) for linear in (w.key, w.value))
        if w.key_norm is not None:
            key = self._normed(key, w.key_norm)
        pages = [table.numpy() for table in self._rope(positions)]
        cos, sin = (torch.from_numpy(np.repeat(page, c.num_kv_heads, axis=0)) for page in pages)
        shape = (len(positions), c.num_kv_heads, c.head_dim)
        found = (native.rotate(key, cos, sin, self.isa), value)
        keys, values = (native.round_to(each.flatten(), self.cache_dtype, self.isa).view(shape) for each in found)
        return keys, values

    def run(self, rows: Rows) -> tuple[torch.Tensor, Scored]:
        """A whole pass in one call, the choice of every row included. Returns hidden states, and logits of all rows."""
        hidden = torch.empty((len(rows), self._config.hidden_size))
        logits = torch.empty((len(rows), self._config.valid_vocab_size))
        best = torch.empty(len(rows), dtype=torch.int64)
        self._run(rows, range(self._config.num_layers), hidden, scores=(logits, best))
        choices = best.tolist()
        return hidden, Scored(logits, lambda row: None if choices[row] < 0 else choices[row])

    def chain(self, cache: Cache, token: int, rows: Rows) -> list[int]:
        """Greedy tokens after `token`, one for each row. rows: a chain. A NaN ends it early."""
        if any(self._weights.homes):
            return step_by_step(self.run, token, rows)
        (segment,) = rows.segments
        layers = range(self._config.num_layers)
        self._expect_fit(rows, layers)
        with _placed(rows, self._coder) as places:
            tokens: list[int] = self._plan.chain(
                token, rows.positions, *self._rope.addresses(rows.positions), places, rows.paths
            )
        ran = min(len(rows), len(tokens) + 1)  # the last row written is the row of a NaN, if one came
        cache.tag(layers, segment.slots[:ran], rows.writer)
        return tokens

    def code_places(self, cache: Cache) -> None:
        """See `Decoder.code_places`."""
        if self._coder is not None:
            self._coder.blocks_of(cache)

    def slow_down(self, thread: int, microseconds: int) -> None:
        """For tests: make one thread wait before each piece of work."""
        self._plan.slow_down(thread, microseconds)

    def _run(
        self,
        rows: Rows,
        layers: range,
        hidden: torch.Tensor,
        *,
        embed: bool = True,
        scores: tuple[torch.Tensor, torch.Tensor] | None = None,
        entering: torch.Tensor | None = None,
    ) -> None:
        """Run layers over hidden states, which are overwritten. embed: the pass begins with the rows' embeddings.
        scores: where to write logits and choices after the last layer. entering: float32, contiguous."""
        self._expect_fit(rows, layers)
        if (entering is not None or not rows.sees_ancestors) and any(self._weights.homes):
            raise ContractError(
                "layers whose weights come in part by part run hidden states of rows that see no others"
            )
        with _placed(rows, self._coder) as places, self._alone():
            pieces = list(self._pieces(rows, places, hidden, scores))
            for stretch, home in stretches(self._weights.homes, layers.start, layers.stop):
                first, ends = stretch.start == len(PARTS) * layers.start, stretch.stop == len(PARTS) * layers.stop
                with acquired(home):
                    for piece in pieces:
                        self._plan.run(
                            *piece.rows,
                            embed and first,
                            stretch.start,
                            stretch.stop,
                            piece.hidden,
                            *(piece.scores if ends else (0, 0)),
                            piece.before,
                            len(rows),
                            0 if entering is None else entering.data_ptr(),
                        )
        rows.tag(layers)

    def _pieces(
        self,
        rows: Rows,
        places: list[list[int]],
        hidden: torch.Tensor,
        scores: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> Iterator[_Piece]:
        """The rows of a pass, in pieces that run one after the other within each part. So a part is read once for all
        of them, and most of the memory of a pass is that of a piece. With all weights in memory there is one piece."""
        count = -(-len(rows) // PIECE) if any(self._weights.homes) else 1
        for at in range(count):
            start, stop = at * len(rows) // count, (at + 1) * len(rows) // count
            positions = rows.positions[start:stop]
            segments = [
                [max(first, start) - start, min(end, stop) - start, length, slot + max(0, start - first), *others]
                for first, end, length, slot, *others in places
                if first < stop and end > start
            ]
            its = (rows.tokens[start:stop], rows.sees[start:stop], *self._rope.addresses(positions), segments)
            of = [0, 0] if scores is None else [tensor[start:stop].data_ptr() for tensor in scores]
            yield _Piece(start, (*its, rows.paths[start:stop]), hidden[start:stop].data_ptr(), (of[0], of[1]))

    def _alone(self) -> AbstractContextManager[object]:
        """If a pass is made of several calls, no other thread's pass comes between them: the plan keeps what one part
        of a layer gives to the next, and two passes would take each other's layers from the buffer."""
        if not any(self._weights.homes):
            return nullcontext()
        if self._process != os.getpid():  # another thread may have held the lock when this process was forked
            self._process, self._one_pass = os.getpid(), threading.Lock()
        return self._one_pass

    def _expect_fit(self, rows: Rows, layers: range) -> None:
        """Raise ContractError for memory whose layout native code does not expect: it writes by address."""
        rows.expect_fit(kind_of(self._config, self.cache_dtype), torch.device("cpu"), layers)

    def _layer(self, at: int, window: int | None) -> list[int]:
        w = self._weights.layers[at]
        norms = [self._floats(norm) for norm in (w.input_norm, w.post_norm, w.query_norm, w.key_norm)]
        linears = (w.query, w.key, w.value, w.output, w.gate, w.up, w.down)
        return [*norms, window or 0, *(number for linear in linears for number in self._linear(linear))]

    def _linear(self, linear: Linear) -> list[int]:
        repacked = linear.layout != "rows"
        if repacked and linear.layout != self.isa:
            raise ContractError(f"a weight was laid out for {linear.layout}, and {self.isa} is to run; load it anew")
        return native.numbers(linear.weight, self._floats(linear.bias), repacked=repacked, inputs=linear.inputs)

    def _floats(self, tensor: torch.Tensor | None) -> int:
        if tensor is None:
            return 0
        self._kept.append(tensor.float().contiguous())
        return self._kept[-1].data_ptr()


@contextmanager
def _placed(rows: Rows, coder: _Coder | None) -> Iterator[list[list[int]]]:
    """The addresses of each segment's keys and values, in the form that the plan reads.

    While a pass runs by address, other Python threads run, too. A cache to which the pass writes must not move its
    memory. Memory under a view is only read. It is kept alive here, so the cache that owned it may move on.
    """
    caches = [segment.cache for segment in rows.segments]
    for cache in caches:
        cache.writers += 1
    try:
        places = [cache.addresses() for cache in caches]
        coded = [() if coder is None else coder.blocks_of(cache) for cache in caches]
        first = 0 if coder is None else coder.layers.start
        yield [
            [
                *(s.span.start, s.span.stop, s.cache.length, s.slots.start, *place.own),
                *(len(blocks), blocks[0].stride(0) if blocks else 0, first, len(blocks[0]) if blocks else 0),
                *(block.data_ptr() for block in blocks),
                *itertools.chain(*place.prefix),
            ]
            for s, place, blocks in zip(rows.segments, places, coded, strict=True)
        ]
    finally:
        for cache in caches:
            cache.writers -= 1
