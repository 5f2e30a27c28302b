"""The target as a teacher: what it computes of windows of text.

On the CPU the native engine is asked, so a drafter learns from what it will see in use, bit for bit. On a GPU the
target's layers run as PyTorch modules over all windows at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from foretoken.api.checkpoint import weights_of
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.linear import Linear
from foretoken.decoder.rope import RopeTable
from foretoken.decoder.rows import Rows
from foretoken.decoder.weights import LINEARS, Weights
from foretoken.errors import InputError
from foretoken.formats.values import dequantise
from foretoken.settings.load import LoadSettings
from foretoken.trained.network import KeysValues, Layer, Tables
from foretoken.trained.observer import observations
from foretoken.training.precision import fastest, mixed

_NAMES = dict(zip(LINEARS, ("q", "k", "v", "o", "gate", "up", "down"), strict=True))


class Wanted(NamedTuple):
    """What a drafter sees of the target. observed: layers whose keys and values are seen together. taps: layers whose
    input is seen; the number of layers stands for what the last one puts out. cached: layers whose keys and values the
    drafter's own layers attend to."""

    observed: Sequence[int] = ()
    taps: Sequence[int] = ()
    cached: Sequence[int] = ()


class Lesson(NamedTuple):
    """What the target computes of B windows of T tokens, as far as it is wanted. embedded: float32 [B, T, hidden].
    normed: the output of the last layer after the final norm, float32 [B, T, hidden]. observed: float32 [B, T, layers,
    2 * kv_heads * head_dim]. taps, cached: by layer; a tap is float32 [B, T, hidden]."""

    embedded: torch.Tensor
    normed: torch.Tensor
    observed: torch.Tensor
    taps: dict[int, torch.Tensor]
    cached: dict[int, KeysValues]


class Teacher(ABC):
    """A target that is only asked. norm, head: as the drafter's loss needs them, float32 [hidden], and [V, hidden] in
    the type that is multiplied fastest; they are not trained. device: where windows are, and where the drafter is
    trained."""

    def __init__(self, config: DecoderConfig, weights: Weights, wanted: Wanted, device: torch.device) -> None:
        self.config, self.wanted, self.device = config, wanted, device
        self.eps = config.norm_eps
        self.norm = weights.norm.float().to(device)
        self.head = _values(weights.head)[: config.valid_vocab_size].to(device, fastest(device))
        self._weights = weights
        self._rope = RopeTable(config.rope, config.head_dim, torch.device("cpu"))
        self._tables: dict[int, Tables] = {}

    def tables(self, length: int) -> Tables:
        """Cosines and sines of the first positions."""
        if length not in self._tables:
            cos, sin = self._rope(list(range(length)))
            self._tables[length] = cos.to(self.device), sin.to(self.device)
        return self._tables[length]

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The embeddings of tokens, int [...]: float32 [..., hidden]."""
        return self._weights.embedding[tokens.to(self._weights.embedding.device)].float().to(self.device)

    def normed(self, states: torch.Tensor) -> torch.Tensor:
        """The target's final norm of some states: float32."""
        states = states.float()
        return states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.eps) * self.norm

    def layers(self, which: Sequence[int]) -> list[Layer]:
        """Layers of the target as modules, for drafters that end with them."""
        found = layers_of(self.config, self._weights, which, self.device)
        return [layer.to(fastest(self.device)) for layer in found]

    @abstractmethod
    def teach(self, tokens: torch.Tensor) -> Lesson:
        """One pass over the windows. tokens: int [B, T]."""


class EngineTeacher(Teacher):
    """The engine that decodes. weights: the target's, in rows."""

    def __init__(self, target: Decoder, weights: Weights, wanted: Wanted) -> None:
        super().__init__(target.config, weights, wanted, torch.device("cpu"))
        self._target = target

    def teach(self, tokens: torch.Tensor) -> Lesson:
        """As in use, bit for bit."""
        caches = [self._target.new_cache() for _ in tokens]
        length, end = tokens.shape[1], self.config.num_layers
        rows = Rows(
            (cache, window, range(-1, length - 1)) for cache, window in zip(caches, tokens.tolist(), strict=True)
        )
        shape = (*tokens.shape, -1)
        embedded = hidden = self._target.embed(rows)
        taps = {}
        for lo, hi in zip((0, *self.wanted.taps), (*self.wanted.taps, end), strict=True):
            hidden = self._target.layers(hidden, rows, lo, hi)
            if hi in self.wanted.taps:
                taps[hi] = hidden.view(shape)
        seen = [observations(cache, 0, length, self.wanted.observed) for cache in caches if self.wanted.observed]
        cached = {}
        for layer in self.wanted.cached:
            pairs = zip(*(cache.read(layer) for cache in caches), strict=True)
            keys, values = (torch.stack([each.transpose(0, 1) for each in those]) for those in pairs)
            cached[layer] = keys, values
        return Lesson(
            embedded.view(shape),
            self._target.norm(hidden).view(shape),
            torch.stack(seen) if seen else torch.empty(0),
            taps,
            cached,
        )


class BatchedTeacher(Teacher):
    """The target's layers as PyTorch modules. weights: the target's, in rows."""

    def __init__(self, config: DecoderConfig, weights: Weights, wanted: Wanted, device: torch.device) -> None:
        super().__init__(config, weights, wanted, device)
        self._embedding = weights.embedding.to(device)
        self._layers = super().layers(range(config.num_layers))

    def layers(self, which: Sequence[int]) -> list[Layer]:
        """Those that the teacher runs itself."""
        return [self._layers[layer] for layer in which]

    @torch.no_grad()
    def teach(self, tokens: torch.Tensor) -> Lesson:
        """All windows at once."""
        tokens = tokens.to(self.device)
        length = tokens.shape[1]
        at = torch.arange(length, device=self.device)
        mask, tables = (at <= at[:, None])[None, None], self.tables(length)
        embedded = hidden = self._embedding[tokens].float()
        taps: dict[int, torch.Tensor] = {}
        observed, cached = [], {}
        with mixed(self.device):
            for number, layer in enumerate(self._layers):
                if number in self.wanted.taps:
                    taps[number] = hidden
                hidden, pair = layer(hidden, tables, mask)
                if number in self.wanted.observed:
                    both = torch.cat([each.transpose(1, 2).to(torch.bfloat16) for each in pair], dim=-1)
                    observed.append(both.flatten(2))
                if number in self.wanted.cached:
                    cached[number] = pair
        if len(self._layers) in self.wanted.taps:
            taps[len(self._layers)] = hidden
        seen = torch.stack(observed, dim=2).float() if observed else torch.empty(0)
        return Lesson(embedded, self.normed(hidden), seen, taps, cached)


def rows_of(folder: Path, config: DecoderConfig) -> Weights:
    """The target's weights in rows, read from their files as they are needed."""
    return weights_of(folder, config, replace(LoadSettings(), weights="mapped"))


def _values(linear: Linear) -> torch.Tensor:
    """A weight; one in a low-bit format as bf16."""
    return linear.weight if isinstance(linear.weight, torch.Tensor) else dequantise(linear.weight)


def layers_of(config: DecoderConfig, weights: Weights, which: Sequence[int], device: torch.device) -> list[Layer]:
    """Layers of the target as modules that are not trained. Raises InputError for layers that see only a window."""
    if any(config.windows[layer] is not None for layer in which):
        raise InputError(
            "the model's layers see only a window of the text, and a drafter cannot be trained with such layers; leave "
            "--tli out, and train on the CPU"
        )
    made = []
    for number in which:
        c, its = config, weights.layers[number]
        with torch.device("meta"):  # no weights are drawn, which would take minutes for a large model
            layer = Layer(
                c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.intermediate_of(number), c.norm_eps, like=c
            )
        state = {
            "input_layernorm.weight": its.input_norm.float(),
            "post_attention_layernorm.weight": its.post_norm.float(),
        }
        for name, short in _NAMES.items():
            linear = getattr(its, name)
            place = f"{'self_attn' if short in 'qkvo' else 'mlp'}.{short}_proj"
            state[f"{place}.weight"] = _values(linear)
            if linear.bias is not None:
                state[f"{place}.bias"] = linear.bias
        for short, norm in (("q", its.query_norm), ("k", its.key_norm)):
            if norm is not None:
                state[f"self_attn.{short}_norm.weight"] = norm.float()
        layer.load_state_dict(state, assign=True)
        made.append(layer.to(device).eval().requires_grad_(requires_grad=False))
    return made
