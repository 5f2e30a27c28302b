"""The part of a trained drafter that runs beside the model, and makes features of its keys and values.

A drafter knows its observer as a `Sight`, wherever that runs. What travels to the drafter is the mean over the observed
layers, which is as wide as a layer's keys and values. The drafter projects it to a vector as wide as its own states.

`network.Observer` is the same in PyTorch, for training. Here the native kernels multiply, if they are there: PyTorch
would wake threads of its own, which then spin on the cores that the next pass wants, and a forked process does not have
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import joined
from foretoken.formats.table import Format
from foretoken.kernels import native
from foretoken.protocol.telemetry import Cost
from foretoken.trained.config import MixtureConfig
from foretoken.trained.network import Observer
from foretoken.trained.parts import Parts

FEATURE = "observed"
LAST = ("keys", "values")  # of the target's last layers, by layer
_AT_ONCE = 256  # tokens: of a long prompt, all at once would take much memory

_Floats = npt.NDArray[np.float32]


class Sight:
    """What a drafter needs to make use of an observer. name: of the extractor that observes. projection: its last
    matrix, and the bias. device: where the drafter runs. format: to cast the matrix to, as `Parts` has it."""

    def __init__(
        self,
        name: str,
        config: MixtureConfig,
        projection: Mapping[str, torch.Tensor],
        device: torch.device,
        threads: int,
        format: Format | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self._threads = threads
        self._isa = native.isa() if device.type == "cpu" and native.module() is not None else None
        self._parts = self._in_format(projection, format)

    def _in_format(self, tensors: Mapping[str, torch.Tensor], format: Format | None) -> Parts:
        return Parts(tensors, self._isa, self._threads, format, torch.bfloat16 if self._isa else torch.float32)

    @property
    def layout(self) -> tuple[tuple[str, int, int], ...]:
        """What is seen of each token: for each feature its name, how many groups of numbers it has, and how many
        numbers a group has."""
        its = self.config
        ends = (f"{name}.{layer}" for layer in its.ends for name in LAST)
        return ((FEATURE, 1, its.observed), *((name, its.target_kv_heads, its.head_dim) for name in ends))

    def projected(self, seen: torch.Tensor) -> torch.Tensor:
        """The vectors of some positions, float32 [N, hidden]. seen: the feature `observed` of these positions."""
        return self._parts.multiplied(seen, "projection")


class ObservingLayers(Sight):
    """An extractor (`decoder.views.Extractor`). observer: with the weights that were trained, float32. name: one that
    no other observer has. target: the model beside which it runs. format: to cast its matrices to, as `Parts` has
    it."""

    def __init__(
        self, observer: Observer, config: MixtureConfig, name: str, target: Decoder, format: Format | None = None
    ) -> None:
        tensors = observer.state_dict()
        super().__init__(name, config, tensors, observer.projection.weight.device, target.threads, format)
        self._eps = observer.layer.input_layernorm.eps
        # only PyTorch multiplies with it
        self._observer = observer.eval().requires_grad_(requires_grad=False) if self._isa is None else None
        self._item_bytes = target.weights.embedding.element_size()  # of keys and values
        self._tables = tuple(table.cpu().numpy()[:, None] for table in observer.tables)

    def __call__(self, cache: Cache, start: int, stop: int) -> Mapping[str, torch.Tensor]:
        """What is seen of some committed positions: float32 [stop - start, 2 * kv_heads * head_dim]. If the drafter
        ends with the target's last layers, also their keys and values, [stop - start, kv_heads, head_dim] each."""
        found = []
        for at in range(start, stop, _AT_ONCE):
            observed = observations(cache, at, min(stop, at + _AT_ONCE), self.config.layers)
            found.append(self._observe(observed) if self._observer is None else self._observer.seen(observed).detach())
        features = {FEATURE: joined(found) if found else torch.empty((0, self.config.observed))}
        for layer in self.config.ends:
            for name, tensor in zip(LAST, cache.read(layer), strict=True):
                features[f"{name}.{layer}"] = joined([tensor[start:stop]])
        return features

    def cost(self, tokens: int) -> Cost:
        """What it costs to observe so many tokens at once, and to project what is seen."""
        c = self.config
        numbers = self._parts.numbers
        of_layers = sum(count for name, count in numbers.items() if name.startswith("layer."))
        products = len(c.layers) * of_layers + numbers["projection.weight"]
        attention = 2 * len(c.layers) ** 2 * c.observed
        batches = -(-tokens // _AT_ONCE)
        keys = tokens * len(c.layers) * c.observed * self._item_bytes
        return Cost(2 * tokens * (products + attention), batches * self._parts.nbytes, keys)

    def _observe(self, observed: torch.Tensor) -> torch.Tensor:
        """As `Observer.seen`: layer self-attention, feed-forward, mean over layers."""
        tokens, layers, width = observed.shape
        states = observed.reshape(-1, width)
        normed = self._norm(states, "input_layernorm")
        query, key, value = (self._parts.multiplied(normed, f"layer.self_attn.{name}_proj") for name in "qkv")
        attended = self._attend(query, key, value, tokens, layers)
        _add(states, self._parts.multiplied(torch.from_numpy(attended), "layer.self_attn.o_proj"))
        normed = self._norm(states, "post_attention_layernorm")
        gate, up = (self._parts.multiplied(normed, f"layer.mlp.{name}_proj") for name in ("gate", "up"))
        inner = native.silu_mul(gate.flatten(), up.flatten(), self._isa or "").view(gate.shape)
        _add(states, self._parts.multiplied(inner, "layer.mlp.down_proj"))
        return torch.from_numpy(states.numpy().reshape(tokens, layers, width).mean(1))

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tokens: int, layers: int) -> _Floats:
        """Attention over the layers of each token: float32 [tokens * layers, width]."""
        c = self.config
        size = c.observed // c.observer_heads

        def heads(x: torch.Tensor, *, turned: bool = True) -> _Floats:
            count = x.shape[1] // size
            rows = x.view(-1, size)
            if turned:
                return _turned(rows.numpy().reshape(tokens, layers, count, size), *self._tables).transpose(0, 2, 1, 3)
            return rows.numpy().reshape(tokens, layers, count, size).transpose(0, 2, 1, 3)

        shared = c.observer_heads // c.observer_kv_heads
        q, k, v = heads(query), heads(key), heads(value, turned=False)
        q = q.reshape(tokens, c.observer_kv_heads, shared * layers, size)
        scores = np.matmul(q, k.transpose(0, 1, 3, 2)) * np.float32(size**-0.5)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.matmul(scores / scores.sum(-1, keepdims=True), v)
        out = out.reshape(tokens, c.observer_heads, layers, size).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(out).reshape(tokens * layers, -1)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self._parts.normed(x, f"layer.{name}", self._eps)


def _turned(heads: _Floats, cos: _Floats, sin: _Floats) -> _Floats:
    """Heads, [tokens, layers, heads, size], rotated by the numbers of their layers."""
    one, other = np.split(heads, 2, axis=-1)
    return np.concatenate((one * cos - other * sin, other * cos + one * sin), axis=-1)


def _add(x: torch.Tensor, more: torch.Tensor) -> None:
    x.numpy()[...] += more.numpy()


def observations(cache: Cache, start: int, stop: int, of: Sequence[int]) -> torch.Tensor:
    """What an observer sees of some committed positions: float32 [stop - start, layers, 2 * kv_heads * head_dim]. For
    each head of a layer its key, as it lies in the cache (rotated), then its value. of: the observed layers."""
    layers = [[tensor[start:stop] for tensor in cache.read(layer)] for layer in of]
    dtype = layers[0][0].dtype
    if native.module() is None or cache.device.type != "cpu" or str(dtype) not in native.FORMATS:
        return torch.stack([torch.cat(both, dim=-1).flatten(1) for both in layers], dim=1).float()
    as_bits = torch.int32 if dtype == torch.float32 else torch.int16  # numpy knows no bf16
    bits = [np.concatenate([tensor.view(as_bits).numpy() for tensor in both], axis=-1) for both in layers]
    together = np.stack([each.reshape(stop - start, -1) for each in bits], axis=1)
    return native.widen(torch.from_numpy(together.reshape(-1)).view(dtype), native.isa()).view(together.shape)
