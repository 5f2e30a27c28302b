"""A published Mixture of Attentions, as its authors' code computes it.

Its second layer attends to the observer's vectors alone (cross-attention): neither to the tokens behind them nor to its
own row. All layers of the model are observed. The model's final norm is left out: what the second layer puts out goes
to the model's output layer as it is.

Two layouts are read: that of the authors' training, whose config.json is that of the model, and that of their vLLM,
which names sizes. Both have the same tensors, whose shapes say all.

Source: Zimmer et al. 2025, "Mixture of Attentions for speculative decoding", and the code that its authors published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from foretoken.decoder.config import MOA_SPEC, DecoderConfig, parse_config
from foretoken.errors import CheckpointError, ModelError, UnsupportedModelError, quoted
from foretoken.trained.config import LAYERS, MixtureConfig
from foretoken.trained.published import PADDING, OfOthers
from foretoken.trained.published_files import expect_floats, read, shapes_in

_CALLED = {"self_attention": "layers.0", "cross_attention": "layers.1", "layer_self_attention": "observer.layer"}
_PROJECTION = "Ekv2E"
_CALLED[_PROJECTION] = "observer.projection"
_OF_PROJECTION = ("weight", "bias")
_OF_LAYER = (
    *(f"self_attn.{which}_proj.weight" for which in "qkvo"),
    *(f"mlp.{which}_proj.weight" for which in ("gate", "up", "down")),
    *(f"{which}_layernorm.weight" for which in ("input", "post_attention")),
)
_SPARE = ("embed_tokens.weight", "lm_head.weight")  # the model's, once more
_AGAIN = "use another drafter of this model"


@dataclass(frozen=True, kw_only=True)
class PublishedMixture(OfOthers, MixtureConfig):
    """Sizes of a published Mixture of Attentions. It does not say for which model it was trained, but for sizes; the
    number of the model's layers is not among them, so it names none until a target is known.

    own: its two layers, as a decoder's.
    """

    own: DecoderConfig

    methods = (MOA_SPEC,)

    def intermediate_of(self, layer: int) -> int:
        """The two may differ."""
        return self.own.intermediate_of(layer)

    @property
    def observer_theta(self) -> float:
        """The base of the angles of layers' numbers: that of positions."""
        return self.own.rope.theta

    def decoder(self, target: DecoderConfig) -> DecoderConfig:
        """Its layers, with the embedding and the output layer of the target, and texts as long as the target's."""
        return replace(
            self.own,
            vocab_size=target.vocab_size,
            valid_vocab_size=target.valid_vocab_size,
            context_length=target.context_length,
            tied=target.tied,
            dtype=target.dtype,
        )

    def of_target(self, target: DecoderConfig) -> Self:
        """The same, which observes all layers of a target."""
        return replace(self, target_layers=target.num_layers, layers=tuple(range(target.num_layers)))

    def expect_suits(self, target: DecoderConfig, where: str) -> None:
        """Raise CheckpointError for a target of other sizes."""
        sizes = {
            "hidden_size": (self.hidden_size, target.hidden_size),
            "number of heads": (self.num_heads, target.num_heads),
            "head_dim": (self.head_dim, target.head_dim),
            "number of key heads": (self.target_kv_heads, target.num_kv_heads),
        }
        for name, (ours, theirs) in sizes.items():
            if ours != theirs:
                raise CheckpointError(
                    f"{where} was trained for a model whose {name} is {ours}, and this one's is {theirs}; name a "
                    "drafter of this model"
                )
        if abs(self.own.vocab_size - target.vocab_size) > target.vocab_size // PADDING:
            raise CheckpointError(
                f"{where} was trained for a model whose vocab_size is {self.own.vocab_size}, and this one's is "
                f"{target.vocab_size}; name a drafter of this model"
            )


def mixture_from(folder: Path, raw: Mapping[str, Any]) -> PublishedMixture:
    """The sizes of a published Mixture of Attentions in a folder. raw: its config.json. Raises CheckpointError for one
    that is damaged, and UnsupportedModelError for one that computes something else."""
    if raw.get("quantization_config"):
        raise UnsupportedModelError(f"{folder} is quantised, which is not supported; use the bf16 original")
    shapes = {ours: shape for name, shape in shapes_in(folder).items() if (ours := _ours(name, folder)) is not None}
    if not any(name.startswith("observer.") for name in shapes):
        raise UnsupportedModelError(
            f"{folder} has no attention over layers (layer_self_attention), without which no Mixture of Attentions is "
            f"supported; {_AGAIN}"
        )
    inner = [_first(shapes, f"layers.{at}.mlp.up_proj.weight", folder) for at in range(LAYERS)]
    keys = [_first(shapes, f"layers.{at}.self_attn.k_proj.weight", folder) for at in range(LAYERS)]
    if keys[0] != keys[1]:
        raise UnsupportedModelError(
            f"{folder} has layers with {keys[0]} and {keys[1]} numbers of keys; supported are layers that have as many "
            f"as each other: {_AGAIN}"
        )
    own = _layers(folder, raw, inner)
    observed = _first(shapes, "observer.layer.self_attn.q_proj.weight", folder)
    width = observed // own.num_heads  # of a head of the observer, which has as many as the model
    seen = _first(shapes, "observer.layer.self_attn.k_proj.weight", folder)
    kv_heads, observer_kv_heads = keys[0] // own.head_dim, seen // max(1, width)
    sound = (
        kv_heads > 0
        and observer_kv_heads > 0
        and not own.num_heads % kv_heads
        and not own.num_heads % observer_kv_heads
        and (kv_heads * own.head_dim, width * own.num_heads, observer_kv_heads * width) == (keys[0], observed, seen)
        and not observed % (2 * own.head_dim)
        and not width % 2
    )
    if not sound:
        raise CheckpointError(
            f"{folder}: the shapes of its tensors do not go with {own.num_heads} heads of {own.head_dim}, as "
            "config.json has them; fetch it again"
        )
    return PublishedMixture(
        method=MOA_SPEC,
        fingerprint="",
        target_layers=0,
        target_kv_heads=observed // (2 * own.head_dim),
        head_dim=own.head_dim,
        hidden_size=own.hidden_size,
        num_heads=own.num_heads,
        kv_heads=kv_heads,
        intermediate_size=max(inner),
        observer_heads=own.num_heads,
        observer_kv_heads=observer_kv_heads,
        observer_intermediate_size=_first(shapes, "observer.layer.mlp.up_proj.weight", folder),
        layers=(),
        own=replace(own, num_kv_heads=kv_heads),
    )


def mixture_tensors(folder: Path, expected: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """The tensors of a published Mixture of Attentions, by our names; those that are missing are left out. expected:
    their names and shapes. Raises UnsupportedModelError for numbers of another type."""
    stored = {f"model.{stored_name(name)}": name for name in expected}
    found = {stored[name]: tensor for name, tensor in read(folder, set(stored)).items()}
    for name, tensor in found.items():
        expect_floats(tensor, stored_name(name), folder)
    return found


def stored_name(name: str) -> str:
    """What the files call a tensor of ours."""
    theirs, ours = next((theirs, ours) for theirs, ours in _CALLED.items() if name.startswith(f"{ours}."))
    return f"{theirs}{name.removeprefix(ours)}"


def _ours(name: str, folder: Path) -> str | None:
    """Our name of a tensor; None for one that is not needed. Raises UnsupportedModelError for one that nothing here
    computes with, such as the biases of drafters for Qwen2."""
    its = name.removeprefix("model.")
    part, _, rest = its.partition(".")
    if part in _CALLED and rest in (_OF_PROJECTION if part == _PROJECTION else _OF_LAYER):
        return f"{_CALLED[part]}.{rest}"
    if its in _SPARE or rest.endswith("rotary_emb.inv_freq"):
        return None
    raise UnsupportedModelError(
        f"{folder} holds {quoted(its, 80)}, which a Mixture of Attentions for a model of the kind of Llama does not "
        f"have; {_AGAIN}"
    )


def _first(shapes: Mapping[str, tuple[int, ...]], name: str, folder: Path) -> int:
    """How many rows a matrix has."""
    shape = shapes.get(name)
    if shape is None or len(shape) != 2 or not shape[0]:
        came = "is missing" if shape is None else f"has shape {list(shape)}"
        raise CheckpointError(f"{folder}: {stored_name(name)} {came}, expected a matrix; fetch it again")
    return shape[0]


def _layers(folder: Path, raw: Mapping[str, Any], inner: list[int]) -> DecoderConfig:
    """Its two layers, but for the number of key heads."""
    sizes = {"num_hidden_layers": LAYERS, "intermediate_size": max(inner), "num_key_value_heads": None}
    try:
        own = parse_config({**raw, **sizes, "model_type": "llama"})
    except ModelError as error:
        raise type(error)(f"{folder}: {error}") from None
    if own.rope.type != "default":
        # in the authors' code the first layer turns by these positions, and the other parts by plain ones
        raise UnsupportedModelError(f"{folder} has positions of the type {own.rope.type}; supported: default")
    return replace(own, tied=False, intermediate_sizes=tuple(inner), qkv_bias=False, output_bias=False, mlp_bias=False)
