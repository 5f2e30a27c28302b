"""What the linear layers of a model read on some texts: for GPTQ, layer by layer.

A layer is asked for when the layers before it have been quantised: the texts have then run through their low-bit
values, so a layer also makes up for what went wrong before it (Frantar et al. 2022, GPTQ, section 4). Weights are read
as they are needed, one layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.linear import Linear
from foretoken.decoder.memory import Memory
from foretoken.decoder.rope import RopeTable
from foretoken.decoder.rows import Rows
from foretoken.decoder.shapes import EMBEDDING, HEAD, OUTPUT, expected_shapes, linear_shapes
from foretoken.decoder.torch_pass import TorchPass
from foretoken.decoder.weights import LINEARS, LayerWeights, assemble
from foretoken.errors import CheckpointError, InputError
from foretoken.formats import gptq
from foretoken.formats.values import dequantise
from foretoken.formats.weight import QuantisedWeight
from foretoken.kernels import rowwise

_ROWS = 1024  # that run together
_FLOAT = 4  # bytes

_READS = {"key": "query", "value": "query", "up": "gate"}  # linear layers that read the same as another one


def memory_of(config: DecoderConfig, tokens: int, itemsize: int, cast: int) -> int:
    """The most bytes of memory that a calibration takes, and a cast with its factors. tokens: of all texts. itemsize:
    of a number of the model's weights. cast: the bytes that a cast takes besides."""
    c = config
    width, queries, inner = c.hidden_size, c.num_heads * c.head_dim, max(map(c.intermediate_of, range(c.num_layers)))
    products = 2 * width**2 + queries**2 + inner**2  # of what four linear layers read
    largest = max(width, queries, inner) ** 2
    states = 2 * tokens * width  # in front of a layer and behind it
    together = _ROWS * (2 * inner + 6 * width + 2 * queries)
    layer = itemsize * width * (2 * (queries + c.num_kv_heads * c.head_dim) + 3 * inner)
    return layer + _FLOAT * (products + states + together) + max(3 * _FLOAT * largest, _FLOAT * largest + cast)


class Calibration:
    """The factors of a model's linear layers (`gptq.factor`). They are asked for in the order of `linear_shapes`.

    tensors: the model's, by name, mapped from its files. texts: token ids, at least one in each. In memory are the
    states of all tokens, one layer's weights, and the products of its inputs. While a factor is computed, three more
    float32 matrices of its size are: 3.3 GB with the products, with 14,336 inputs (`memory_of`). Raises InputError for
    token ids that the model does not have.
    """

    def __init__(
        self,
        config: DecoderConfig,
        tensors: Mapping[str, torch.Tensor],
        texts: Sequence[Sequence[int]],
        threads: int | None = None,
    ) -> None:
        for number, text in enumerate(texts, 1):
            bad = next((token for token in text if not 0 <= token < config.vocab_size), None)
            if bad is not None or not text:
                came = "nothing" if bad is None else f"the token {bad}"
                raise InputError(
                    f"text {number} to calibrate on has {came}; expected token ids from 0 to {config.vocab_size - 1}"
                )
        self._dtype = tensors[f"{EMBEDDING}.weight"].dtype  # of a loaded model's weights
        small = {name: tensors[name].to(self._dtype) for name in expected_shapes(config) if tensors[name].ndim == 1}
        weights = assemble({**tensors, **small}, config)
        rope = RopeTable(config.rope, config.head_dim, weights.embedding.device)
        self._config = config
        self._threads = threads or torch.get_num_threads()
        self._pass = _Observed(config, weights, rope, self._threads, batched=True)
        self._texts = _together(texts)
        self._states = [self._pass.embed([token for text in texts for token in text]) for texts in self._texts]
        self._count = sum(map(len, texts))
        linears = enumerate(linear_shapes(config, without=(OUTPUT,)))
        self._places = {name: (at // len(LINEARS), LINEARS[at % len(LINEARS)]) for at, name in linears}
        self._places[HEAD] = config.num_layers, HEAD  # by name: the layer, and the field there
        self._layer: int | None = None
        self._moments: dict[str, torch.Tensor] = {}  # of the layer, by the field that reads: means of products
        self._made: dict[str, list[QuantisedWeight]] = {}  # of the layer, by field: slices of its rows
        self._factor: tuple[str, torch.Tensor] | None = None  # that was asked for last

    def factor(self, name: str) -> torch.Tensor:
        """The factor of a linear layer, by its name in a checkpoint: float32 [inputs, inputs]. Raises CheckpointError
        if its inputs are no finite numbers."""
        layer, field = self._places[name]
        reads = _READS.get(field, field)
        with rowwise.pinned_threads(self._threads):
            if layer != self._layer:
                self._go_to(layer)
            if self._factor is None or self._factor[0] != reads:
                self._factor = None  # its memory is needed
                moments = self._moments.pop(reads)
                if not bool(moments.isfinite().all()):
                    raise CheckpointError(
                        f"on the texts to calibrate on, {name} reads numbers that are NaN or infinite; quantise the "
                        "model with 'direct', or calibrate on another text"
                    )
                self._factor = reads, gptq.factor(moments)
        return self._factor[1]

    def keep(self, name: str, made: QuantisedWeight) -> None:
        """Note what some rows of a linear layer became: the first ones, or those after the rows before."""
        if name != HEAD:  # nothing is read behind it
            self._made.setdefault(self._places[name][1], []).append(made)

    def _go_to(self, layer: int) -> None:
        self._factor = None
        if self._layer is not None:
            made = {
                field: torch.cat([dequantise(each, threads=self._threads) for each in parts])
                for field, parts in self._made.items()
            }
            with self._pass.layer_as(self._layer, self._usable(self._layer, made)):
                self._states = [self._run(self._layer, at) for at in range(len(self._texts))]
            self._made = {}
        self._layer = layer
        if layer == self._config.num_layers:
            for states in self._states:
                self._read(HEAD, self._pass.norm(states))
            return
        weights = self._usable(layer, {})
        fields = {id(getattr(weights, field)): field for field in LINEARS if field not in _READS}

        def read(linear: Linear, rows: torch.Tensor) -> None:
            if id(linear) in fields:
                self._read(fields[id(linear)], rows)

        with self._pass.layer_as(layer, weights, read):
            for at in range(len(self._texts)):
                self._run(layer, at)

    def _usable(self, layer: int, others: Mapping[str, torch.Tensor]) -> LayerWeights:
        """The weights of a layer, or others by field, in the type in which products are fast and do not overflow."""
        weights = self._pass.layer(layer)
        computed = torch.float32 if self._dtype == torch.float16 else self._dtype
        changed: dict[str, Any] = {}
        for field in LINEARS:
            linear: Linear = getattr(weights, field)
            weight = others.get(field, linear.values).to(self._dtype)
            changed[field] = replace(linear, weight=weight.to(computed))
        return replace(weights, **changed)

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
    """Passes in PyTorch through one layer, with weights that may be others than the model's."""

    _on_read: Callable[[Linear, torch.Tensor], None] | None = None

    def layer(self, index: int) -> LayerWeights:
        """The weights of a layer."""
        return self._weights.layers[index]

    @contextmanager
    def layer_as(
        self, index: int, weights: LayerWeights, on_read: Callable[[Linear, torch.Tensor], None] | None = None
    ) -> Iterator[None]:
        """Passes within have these weights in a layer. on_read: is told what each of its linear layers reads."""
        before, layers = self._weights, list(self._weights.layers)
        layers[index] = weights
        self._weights, self._on_read = replace(before, layers=tuple(layers)), on_read
        try:
            yield
        finally:
            self._weights, self._on_read = before, None

    def _multiply(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        if self._on_read is not None:
            self._on_read(linear, x)
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
