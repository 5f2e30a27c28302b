"""A decoder's passes in PyTorch, if it can run neither natively nor on a GPU with our kernels."""

from __future__ import annotations

import os

import torch

from foretoken import kernels
from foretoken.decoder.cache import Cache
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.homes.parts import PARTS, acquired, stretches
from foretoken.decoder.linear import Linear
from foretoken.decoder.low_bit import dequantised
from foretoken.decoder.outputs import Scored, step_by_step
from foretoken.decoder.rope import RopeTable, rotate
from foretoken.decoder.rows import Rows, Segment
from foretoken.decoder.weights import LayerWeights, Weights
from foretoken.errors import ContractError
from foretoken.kernels import forked, rowwise


class TorchPass:
    """Runs layers and the output layer of one decoder in PyTorch. Rows are independent of each other unless
    `batched`."""

    name = "pytorch"

    def __init__(
        self, config: DecoderConfig, weights: Weights, rope: RopeTable, threads: int, *, batched: bool = False
    ) -> None:
        away = [linear for part, home in enumerate(weights.homes) if home for linear in weights.linears_of(part)]
        if not all(isinstance(linear.weight, torch.Tensor) for linear in away):
            raise ContractError(
                "in PyTorch low-bit weights become bf16 at once, so layers of them cannot come in while a pass runs; "
                "install the native module"
            )
        self._config = config
        self._weights = dequantised(weights, threads=threads)  # here low-bit weights save no memory
        self._rope = rope
        self._threads = threads
        self._process = os.getpid()
        self._linear = rowwise.linear_batched if batched else rowwise.linear

    @property
    def cache_dtype(self) -> torch.dtype:
        """The type that keys and values are rounded to."""
        return self._weights.embedding.dtype

    def embed(self, tokens: list[int]) -> torch.Tensor:
        """float32 [N, hidden]."""
        self._expect_threads()
        return self._weights.embedding[torch.tensor(tokens, device=self._weights.embedding.device)].float()

    def layers(
        self, hidden: torch.Tensor, rows: Rows, lo: int, hi: int, entering: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Layers lo to hi (not included) over hidden states, float32 [N, hidden], which are not changed. entering: as
        `Decoder.layers` has it."""
        self._expect_threads()
        rows.expect_placed()
        cos, sin = self._rope(rows.positions)
        with rowwise.pinned_threads(self._threads):
            for parts, home in stretches(self._weights.homes, lo, hi):
                with acquired(home):
                    for part in parts:
                        index, which = divmod(part, len(PARTS))
                        if which == 0:
                            own = self._weights.layers[index].input_norm
                            enters = self._normed(hidden, own) if entering is None else entering
                            hidden, entering = hidden + self._attention(index, enters, rows, cos, sin), None
                        elif which == 1:
                            normed, gate = self._gate(index, hidden)
                        elif which == 2:
                            inner = rowwise.silu_mul(gate, self._multiply(normed, self._weights.layers[index].up))
                        else:
                            hidden = hidden + self._multiply(inner, self._weights.layers[index].down)
        return hidden

    def forward(self, rows: Rows) -> torch.Tensor:
        """Embedding and all layers: float32 [N, hidden]."""
        return self.layers(self.embed(rows.tokens), rows, 0, self._config.num_layers)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final norm and output layer: float32 [N, valid_vocab_size], with the precision of the weights."""
        self._expect_threads()
        with rowwise.pinned_threads(self._threads):
            normed = rowwise.rms_norm(hidden, self._weights.norm, self._config.norm_eps)
            head = self._weights.head
            return self._multiply(normed, head)[:, : self._config.valid_vocab_size]

    def output(self, normed: torch.Tensor) -> torch.Tensor:
        """The output layer alone, with rows of padding: float32 [N, rows of the layer]."""
        with rowwise.pinned_threads(self._threads):
            return self._multiply(normed, self._weights.head)

    def norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """The final norm: float32 [N, hidden]."""
        with rowwise.pinned_threads(self._threads):
            return rowwise.rms_norm(hidden, self._weights.norm, self._config.norm_eps)

    def keys_and_values(
        self, layer: int, hidden: torch.Tensor, positions: list[int], *, entering: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values that a layer would write: float32 [N, kv_heads, head_dim] each."""
        self._expect_threads()
        w = self._weights.layers[layer]
        with rowwise.pinned_threads(self._threads):
            x = hidden if entering else self._normed(hidden, w.input_norm)
            return self._rotated(x, w.key, w.key_norm, *self._rope(positions)), self._by_heads(x, w.value)

    def run(self, rows: Rows) -> tuple[torch.Tensor, Scored]:
        """A whole pass. Returns hidden states, and logits of all rows. A row's choice is computed when it is asked
        for."""
        hidden = self.forward(rows)
        logits = self.head(hidden)
        return hidden, Scored(logits, lambda row: kernels.argmax(logits[row]))

    def chain(self, cache: Cache, token: int, rows: Rows) -> list[int]:
        """Greedy tokens after `token`, one for each row. rows: a chain. A NaN ends it early."""
        return step_by_step(self.run, token, rows)

    def _expect_threads(self) -> None:
        """Raise ContractError in a forked child, where PyTorch would wait for ever for threads of its parent."""
        if os.getpid() == self._process and not (forked.lost() and self._threads > 1):
            return
        device, threads = self._weights.embedding.device, max(self._threads, torch.get_num_threads())
        if device.type != "cpu":
            raise ContractError(
                f"the model was loaded on {device} before this process was forked, and a GPU cannot be used after a "
                "fork; load it in the new process, and begin that with 'spawn'"
            )
        if threads > 1:
            raise ContractError(
                f"this process was forked from another, and PyTorch would wait for {threads} threads that only that "
                "one has; begin it with 'spawn', or load the model in it with threads=1"
            )

    def _attention(self, index: int, x: torch.Tensor, rows: Rows, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        w = self._weights.layers[index]
        return self._multiply(self._attend(index, w, x, rows, cos, sin), w.output)

    def _gate(self, index: int, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs of the gate and up projections, and what the gate projection gives."""
        w = self._weights.layers[index]
        normed = self._normed(hidden, w.post_norm)
        return normed, self._multiply(normed, w.gate)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rowwise.rms_norm(x, weight, self._config.norm_eps)

    def _multiply(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        return self._linear(x, linear.values, linear.bias)

    def _attend(
        self, index: int, w: LayerWeights, x: torch.Tensor, rows: Rows, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        query = self._rotated(x, w.query, w.query_norm, cos, sin)
        key, value = self._rotated(x, w.key, w.key_norm, cos, sin), self._by_heads(x, w.value)
        out = torch.empty_like(query)
        for segment in rows.segments:
            segment.cache.write(index, segment.slots, key[segment.span], value[segment.span], rows.writer)
            self._attend_segment(index, query, out, rows, segment)
        return out.flatten(1)

    def _by_heads(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        return self._multiply(x, linear).view(len(x), -1, self._config.head_dim)

    def _rotated(
        self, x: torch.Tensor, linear: Linear, norm: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        heads = self._by_heads(x, linear)
        return rotate(heads if norm is None else rowwise.rms_norm(heads, norm, self._config.norm_eps), cos, sin)

    def _attend_segment(self, index: int, query: torch.Tensor, out: torch.Tensor, rows: Rows, segment: Segment) -> None:
        """Attention of one sequence's rows, row by row, each over exactly the keys that it sees."""
        window = self._config.windows[index]
        keys, values = (tensor.float() for tensor in segment.cache.read(index))
        for row in range(segment.span.start, segment.span.stop):
            seen = rows.sees[row] + 1
            first = 0 if window is None else max(0, seen - window)
            if rows.paths[row]:
                length = segment.cache.length
                pick = torch.tensor(rows.paths[row], device=keys.device) + length
                among = pick[max(0, first - length) :]
                k = torch.cat((keys[first:length], keys[among]))
                v = torch.cat((values[first:length], values[among]))
            elif first:
                k, v = keys[first:seen].clone(), values[first:seen].clone()  # aligned in memory as a joined one is
            else:
                k, v = keys[:seen], values[:seen]
            out[row] = rowwise.attention(query[row], k, v)
