"""The decoder: a forward pass over rows, checked against transformers and exact for any number of rows.

`embed`, `layers` and `head` are separate because methods run ranges of layers: FractalLLM starts in the middle,
Mixture of Attentions runs the last few. Hidden states are float32 [N, hidden] between them.
"""

from __future__ import annotations

import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.rope import RopeTable, rotate
from foretoken.decoder.rows import Rows, Segment
from foretoken.decoder.weights import LayerWeights, Weights
from foretoken.errors import ContractError, NumericsError
from foretoken.kernels import rowwise


class Decoder:
    """A decoder-only transformer with its weights: a target, or a drafter's model. Holds no state of any sequence."""

    def __init__(self, config: DecoderConfig, weights: Weights, *, threads: int | None = None) -> None:
        self.config = config
        self.weights = weights
        self.threads = threads or torch.get_num_threads()
        self.device = weights.embedding.device
        self._rope = RopeTable(config.rope, config.head_dim, self.device)

    def new_cache(self, layers: range | None = None) -> Cache:
        """An empty cache of all layers or some, in the weights' type."""
        c = self.config
        layers = range(c.num_layers) if layers is None else layers
        return Cache(layers, c.num_kv_heads, c.head_dim, self.weights.embedding.dtype, self.device)

    def embed(self, tokens: list[int]) -> torch.Tensor:
        """The tokens' embeddings: float32 [N, hidden]."""
        if not all(0 <= token < self.config.vocab_size for token in tokens):
            raise ContractError(f"tokens {tokens!r:.60} are not all within 0 to {self.config.vocab_size - 1}")
        return self.weights.embedding[torch.tensor(tokens, device=self.device)].float()

    @torch.no_grad()  # not inference mode: drafters edit hidden states, and train on them
    def layers(self, hidden: torch.Tensor, rows: Rows, lo: int = 0, hi: int | None = None) -> torch.Tensor:
        """Run layers lo to hi (not included) over the rows, writing their keys and values to their slots."""
        hi = self.config.num_layers if hi is None else hi
        if not 0 <= lo <= hi <= self.config.num_layers or len(hidden) != len(rows):
            raise ContractError(
                f"layers {lo} to {hi} over {len(hidden)} hidden states; expected a range within 0 to "
                f"{self.config.num_layers}, and {len(rows)} hidden states"
            )
        cos, sin = self._rope(rows.positions)
        with rowwise.pinned_threads(self.threads):
            for index in range(lo, hi):
                hidden = self._layer(index, hidden, rows, cos, sin)
        return hidden

    @torch.no_grad()  # not inference mode: drafters edit hidden states, and train on them
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final norm and output layer: float32 logits [N, valid_vocab_size], of the weights' precision."""
        with rowwise.pinned_threads(self.threads):
            normed = rowwise.rms_norm(hidden, self.weights.norm, self.config.norm_eps)
            return self.weights.head(normed)[:, : self.config.valid_vocab_size]

    def forward(self, rows: Rows) -> torch.Tensor:
        """Hidden states of a whole pass, before the final norm: float32 [N, hidden]."""
        return self.layers(self.embed(rows.tokens), rows)

    def nan_error(self) -> NumericsError:
        """The error for a NaN among the logits, with its cause if the weights hold one."""
        bad = self.weights.first_not_finite()
        if bad is not None:
            return NumericsError(f"the model's logits hold NaN: {bad} are NaN or infinite; fetch the checkpoint again")
        dtype = str(self.weights.embedding.dtype).removeprefix("torch.")
        advice = "load it as float32" if dtype != "float32" else "the checkpoint is of no use as it is"
        return NumericsError(
            f"the model's logits hold NaN though its weights are finite: they overflow {dtype}; {advice}"
        )

    def _layer(
        self, index: int, hidden: torch.Tensor, rows: Rows, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        w, eps = self.weights.layers[index], self.config.norm_eps
        attended = self._attend(index, w, rowwise.rms_norm(hidden, w.input_norm, eps), rows, cos, sin)
        hidden = hidden + w.output(attended)
        normed = rowwise.rms_norm(hidden, w.post_norm, eps)
        return hidden + w.down(rowwise.silu_mul(w.gate(normed), w.up(normed)))

    def _attend(
        self, index: int, w: LayerWeights, x: torch.Tensor, rows: Rows, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        c = self.config
        query = w.query(x).view(len(x), c.num_heads, c.head_dim)
        key = w.key(x).view(len(x), c.num_kv_heads, c.head_dim)
        value = w.value(x).view(len(x), c.num_kv_heads, c.head_dim)
        if w.query_norm is not None and w.key_norm is not None:
            query = rowwise.rms_norm(query, w.query_norm, c.norm_eps)
            key = rowwise.rms_norm(key, w.key_norm, c.norm_eps)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        out = torch.empty_like(query)
        for segment in rows.segments:
            segment.cache.write(index, segment.slots, key[segment.span], value[segment.span], rows.writer)
            self._attend_segment(index, query, out, rows, segment)
        return out.flatten(1)

    def _attend_segment(self, index: int, query: torch.Tensor, out: torch.Tensor, rows: Rows, segment: Segment) -> None:
        """Attention of one sequence's rows, row by row, each over exactly the keys that it sees."""
        window = self.config.windows[index]
        keys, values = (tensor.float() for tensor in segment.cache.read(index))
        for row in range(segment.span.start, segment.span.stop):
            seen = rows.positions[row] + 1
            first = 0 if window is None else max(0, seen - window)
            pick = rows.picks[row]
            if pick is not None:
                length = segment.cache.length
                among = pick[max(0, first - length) :]
                k = torch.cat((keys[first:length], keys[among]))
                v = torch.cat((values[first:length], values[among]))
            elif first:
                k, v = keys[first:seen].clone(), values[first:seen].clone()  # aligned in memory as a joined one is
            else:
                k, v = keys[:seen], values[:seen]
            out[row] = rowwise.attention(query[row], k, v)
