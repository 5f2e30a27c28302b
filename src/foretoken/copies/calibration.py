"""What the linear layers of a model read on some texts: for GPTQ, layer by layer.

A layer is asked for when the layers before it have been quantised: the texts have then run through their low-bit
values, so a layer also makes up for what went wrong before it (Frantar et al. 2022, GPTQ, section 4). Weights are read
as they are needed, one layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.linear import Linear
from foretoken.decoder.memory import Memory
from foretoken.decoder.rope import RopeTable
from foretoken.decoder.rows import Rows
from foretoken.decoder.shapes import EMBEDDING, HEAD, expected_shapes
from foretoken.decoder.torch_pass import TorchPass
from foretoken.decoder.weights import LayerWeights, assemble
from foretoken.errors import InputError
from foretoken.formats import gptq
from foretoken.formats.values import dequantise
from foretoken.formats.weight import QuantisedWeight

_ROWS = 1024  # that run together

# a layer's linear layers, by the ends of their names: the field of `LayerWeights`, and the one that reads the same
_FIELDS = {
    "self_attn.q_proj": ("query", "query"),
    "self_attn.k_proj": ("key", "query"),
    "self_attn.v_proj": ("value", "query"),
    "self_attn.o_proj": ("output", "output"),
    "mlp.gate_proj": ("gate", "gate"),
    "mlp.up_proj": ("up", "gate"),
    "mlp.down_proj": ("down", "down"),
}


class Calibration:
    """The factors of a model's linear layers (`gptq.factor`). They are asked for in the order of `linear_shapes`.

    tensors: the model's, by name. texts: token ids, at least one in each. The states of all tokens are in memory, and
    the products of one layer's inputs. Raises InputError for token ids that the model does not have.
    """

    def __init__(
        self,
        config: DecoderConfig,
        tensors: Mapping[str, torch.Tensor],
        texts: Sequence[Sequence[int]],
        threads: int | None = None,
    ) -> None:
        for text in texts:
            if not text or not all(0 <= token < config.vocab_size for token in text):
                raise InputError(
                    f"a text to calibrate on is {list(text)!r:.60}; "
                    f"expected token ids from 0 to {config.vocab_size - 1}"
                )
        dtype = tensors[f"{EMBEDDING}.weight"].dtype
        weights = assemble({name: tensors[name].to(dtype) for name in expected_shapes(config)}, config)
        rope = RopeTable(config.rope, config.head_dim, weights.embedding.device)
        self._config = config
        self._pass = _Observed(config, weights, rope, threads or torch.get_num_threads(), batched=True)
        self._texts = _together(texts)
        self._states = [self._pass.embed([token for text in texts for token in text]) for texts in self._texts]
        self._count = sum(map(len, texts))
        self._layer: int | None = None
        self._moments: dict[str, torch.Tensor] = {}  # of the layer, by the field that reads: means of products
        self._made: dict[str, list[QuantisedWeight]] = {}  # of the layer, by field: slices of its rows
        self._factor: tuple[str, torch.Tensor] | None = None  # that was asked for last

    def factor(self, name: str) -> torch.Tensor:
        """The factor of a linear layer, by its name in a checkpoint: float32 [inputs, inputs]."""
        layer, _, reads = self._place(name)
        if layer != self._layer:
            self._go_to(layer)
        if self._factor is None or self._factor[0] != reads:
            self._factor = None  # its memory is needed
            self._factor = reads, gptq.factor(self._moments.pop(reads))
        return self._factor[1]

    def keep(self, name: str, made: QuantisedWeight) -> None:
        """Note what some rows of a linear layer became: the first ones, or those after the rows before."""
        self._made.setdefault(self._place(name)[1], []).append(made)

    def _place(self, name: str) -> tuple[int, str, str]:
        """The layer of a linear layer, its field there, and the field that reads the same."""
        if name == HEAD:
            return self._config.num_layers, HEAD, HEAD
        layer, end = name.removeprefix("model.layers.").split(".", 1)
        return int(layer), *_FIELDS[end]

    def _go_to(self, layer: int) -> None:
        self._factor = None
        if self._layer is not None:
            self._pass.become(
                self._layer, {f: torch.cat(list(map(dequantise, made))) for f, made in self._made.items()}
            )
            self._made = {}
            self._states = [self._run(self._layer, at) for at in range(len(self._texts))]
        self._layer = layer
        if layer == self._config.num_layers:
            for states in self._states:
                self._read(HEAD, self._pass.norm(states))
            return
        weights = self._pass.layer(layer)
        fields = {id(getattr(weights, field)): field for _, field in _FIELDS.values()}

        def read(linear: Linear, rows: torch.Tensor) -> None:
            if id(linear) in fields:
                self._read(fields[id(linear)], rows)

        self._pass.read = read
        for at in range(len(self._texts)):
            self._run(layer, at)
        self._pass.read = None

    def _read(self, field: str, rows: torch.Tensor) -> None:
        """Add the products of rows [N, inputs] that a layer read to their mean."""
        if field not in self._moments:
            self._moments[field] = torch.zeros(rows.shape[1], rows.shape[1])
        self._moments[field].addmm_(rows.T, rows, alpha=1 / self._count)

    def _run(self, layer: int, at: int) -> torch.Tensor:
        """The states behind a layer, of the texts that run together."""
        c = self._config
        memory = Memory.empty(1, c.num_kv_heads, c.head_dim, self._pass.cache_dtype, torch.device("cpu"))
        parts = [(Cache(range(layer, layer + 1), memory), text, range(-1, len(text) - 1)) for text in self._texts[at]]
        return self._pass.layers(self._states[at], Rows(parts), layer, layer + 1)


class _Observed(TorchPass):
    """Passes in PyTorch, whose linear layers hand over the rows that they read."""

    read: Callable[[Linear, torch.Tensor], None] | None = None

    def layer(self, index: int) -> LayerWeights:
        """The weights of a layer."""
        return self._weights.layers[index]

    def become(self, index: int, values: Mapping[str, torch.Tensor]) -> None:
        """Put other values into the linear layers of a layer, by field: [outputs, inputs]."""
        layers, its = list(self._weights.layers), self.layer(index)
        dtype = self._weights.embedding.dtype
        changed: dict[str, Any] = {f: replace(getattr(its, f), weight=value.to(dtype)) for f, value in values.items()}
        layers[index] = replace(its, **changed)
        self._weights = replace(self._weights, layers=tuple(layers))

    def _multiply(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        if self.read is not None:
            self.read(linear, x)
        return super()._multiply(x, linear)


def _together(texts: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """The texts, those together that run in one pass."""
    found: list[list[Sequence[int]]] = []
    rows = _ROWS
    for text in texts:
        if rows + len(text) > _ROWS:
            found.append([])
            rows = 0
        found[-1].append(text)
        rows += len(text)
    return found
