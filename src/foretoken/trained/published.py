"""Drafters of EAGLE-3 that others have trained, as they are published.

Two layouts are common: that of EAGLE's own code, which SGLang and SpecForge share, and that of the library speculators,
which vLLM made. The networks are the same, but for switches that config.json names. Unlike in the paper's text, the
first layer's attention reads two states side by side: the normed embedding of a token, and the normed state of the row
before. The drafter has an output layer and a final norm of its own. Its first row is that of a text's second token:
nothing comes before the first.

Source: Li et al. 2025, "EAGLE-3", and the code that its authors published with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from foretoken.decoder.config import DecoderConfig, parse_config
from foretoken.decoder.families import FAMILIES
from foretoken.decoder.shapes import linear_shapes
from foretoken.decoder.shards import weight_files
from foretoken.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError, quoted
from foretoken.trained.config import EAGLE3, VOCABULARY, TrainedConfig

OWN_HEAD, OWN_NORM, OWN_EMBEDDING = "head.weight", "norm.weight", "embedding.weight"
_HALF = "model.layers.0.self_attn."
_NOT_SERVED = ("use_mtp_layernorm", "parallel_drafting")  # switches that change what is computed


@dataclass(frozen=True)
class PublishedConfig(TrainedConfig):
    """Sizes of a published drafter. It does not say for which model it was trained, but for the width of its states.

    own: its layers, as a decoder's. sees: the layers of the target whose input is seen; empty: the usual ones. choices:
    how many tokens it can draft. are_all: these are the vocabulary. residual_normed: what a layer adds to is the normed
    state. norms: of what is seen of the target, before it is reduced: "", "all" (one norm for all of it) or "each" (one
    for each layer). hands_on_normed: a row's state is what the final norm makes of it. own_embedding: it was trained,
    too.
    """

    own: DecoderConfig
    sees: tuple[int, ...]
    choices: int
    are_all: bool
    residual_normed: bool
    norms: str
    hands_on_normed: bool
    own_embedding: bool

    methods = (EAGLE3,)
    seen = 3  # layers, if it does not say which

    @property
    def num_layers(self) -> int:
        """All are its own."""
        return self.own.num_layers

    @property
    def follows(self) -> bool:
        """Each row needs the state of the row before."""
        return True

    @property
    def reduced_from(self) -> int:
        """The layers of the target that are seen, by number."""
        return len(self.sees) or self.seen

    def decoder(self, target: DecoderConfig) -> DecoderConfig:
        """Its layers, with the embedding of the target. A text may be as long as the target's: nothing but its
        training had the length that its configuration names."""
        return replace(
            self.own,
            vocab_size=target.vocab_size,
            valid_vocab_size=min(self.choices, target.valid_vocab_size),
            context_length=target.context_length,
        )

    def linears(self, target: DecoderConfig) -> DecoderConfig:
        """As `decoder`, but as wide as its own output layer is."""
        return replace(self.decoder(target), vocab_size=self.choices)

    def of_target(self, target: DecoderConfig) -> PublishedConfig:
        """The same, with the layers named that it sees of a target."""
        count = target.num_layers
        return self if self.sees else replace(self, sees=(2, count // 2, count - 3))

    def expect_suits(self, target: DecoderConfig, where: str) -> None:
        """Raise CheckpointError for a target whose states have another width, or that lacks a layer that is seen."""
        if self.hidden_size != target.hidden_size:
            raise CheckpointError(
                f"{where} was trained for a model whose hidden_size is {self.hidden_size}, and this one's is "
                f"{target.hidden_size}; name a drafter of this model"
            )
        sees = self.of_target(target).sees
        if sees[-1] > target.num_layers or list(sees) != sorted({*sees}):
            raise CheckpointError(
                f"{where} sees the model before its layers {', '.join(map(str, sees))}, and this one has "
                f"{target.num_layers}; name a drafter of this model"
            )

    def expect_made_for(self, fingerprint: str, where: str) -> None:
        """Nothing tells: the files name no weights. A drafter of another model costs time, and changes no token."""

    @property
    def is_sound(self) -> bool:
        """Whether it can draft, and sees something."""
        return self.choices > 0 and self.reduced_from > 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of its tensors, as `tensors_of` gives them."""
        c, width, count = self.own, self.hidden_size, self.reduced_from
        found: dict[str, tuple[int, ...]] = {
            "reduction.weight": (width, count * width),
            OWN_HEAD: (self.choices, width),
            OWN_NORM: (width,),
        }
        if self.norms:
            each = {"all": [("seen", count * width)], "each": [(f"seen{at}", width) for at in range(count)]}
            found |= {f"{name}.weight": (size,) for name, size in each[self.norms]}
        found |= dict.fromkeys(("embedded_norm.weight", "seen_norm.weight"), (width,))
        if not self.are_all:
            found[VOCABULARY] = (self.choices,)
        if self.own_embedding:
            found[OWN_EMBEDDING] = (c.vocab_size, width)
        for name, shape in linear_shapes(c).items():
            place = name.removeprefix("model.")
            if place == name:
                continue  # the output layer
            found[f"{place}.weight"] = shape
            has_bias = c.mlp_bias if ".mlp." in name else c.output_bias if name.endswith("o_proj") else c.qkv_bias
            if has_bias:
                found[f"{place}.bias"] = shape[:1]
        for at in range(c.num_layers):
            norms = ("input_layernorm", "post_attention_layernorm")
            found |= {f"layers.{at}.{norm}.weight": (width,) for norm in norms}
            if c.qk_norm:
                found |= {f"layers.{at}.self_attn.{which}_norm.weight": (c.head_dim,) for which in "qk"}
        return found


def published_config(folder: Path, raw: Mapping[str, Any]) -> PublishedConfig:
    """The sizes of a published drafter in a folder. raw: its config.json. Raises CheckpointError for one that is
    damaged, and UnsupportedModelError for another kind."""
    kind = raw.get("speculators_model_type", "eagle3")
    more = raw.get("eagle_config") if isinstance(raw.get("eagle_config"), dict) else {}
    assert isinstance(more, dict)
    if kind != "eagle3":
        raise UnsupportedModelError(
            f"{folder} is a drafter of kind {quoted(kind, 40)}; of those that others have trained, eagle3 is supported"
        )

    def switch(name: str) -> bool:
        return bool(raw.get(name, more.get(name, False)))

    for name in _NOT_SERVED:
        if switch(name):
            raise UnsupportedModelError(f"{folder} was trained with {name}, which is not supported; name another one")
    if more.get("use_aux_hidden_state") is False:
        raise UnsupportedModelError(
            f"{folder} sees one state of the model, and EAGLE-3's that see several are supported; use another drafter"
        )
    names = _names(folder)
    own = _layers(folder, raw)
    hidden, wider = own.hidden_size, raw.get("target_hidden_size")
    if wider not in (None, hidden):
        raise UnsupportedModelError(
            f"{folder} is {hidden} wide and was trained for states of {wider}; drafters as wide as their model are "
            "supported"
        )
    choices = raw.get("draft_vocab_size") or own.vocab_size
    if type(choices) is not int or not 0 < choices <= own.vocab_size:
        raise CheckpointError(
            f"{folder}: draft_vocab_size is {quoted(choices, 40)}, expected a whole number from 1 to {own.vocab_size}"
        )
    sees = raw.get("eagle_aux_hidden_state_layer_ids") or more.get("eagle_aux_hidden_state_layer_ids") or ()
    if not isinstance(sees, list | tuple) or not all(type(at) is int and at >= 0 for at in sees):
        raise CheckpointError(f"{folder}: eagle_aux_hidden_state_layer_ids is {quoted(sees, 40)}, expected numbers")
    return PublishedConfig(
        EAGLE3,
        "",
        0,
        0,
        own.head_dim,
        hidden,
        own.num_heads,
        replace(
            own,
            tied=False,
            wide=True,
            low_bit=None,
            qk_norm=f"{_HALF}q_norm.weight" in names,
            qkv_bias=f"{_HALF}q_proj.bias" in names,
            output_bias=f"{_HALF}o_proj.bias" in names,
            mlp_bias="model.layers.0.mlp.gate_proj.bias" in names,
        ),
        _as_inputs(tuple(sees)),
        choices,
        are_all="d2t" not in names,
        residual_normed=switch("norm_before_residual"),
        norms="all" if switch("norm_before_fc") else "each" if switch("fc_norm") else "",
        hands_on_normed=switch("norm_output"),
        own_embedding=switch("embed_requires_grad"),
    )


def _layers(folder: Path, raw: Mapping[str, Any]) -> DecoderConfig:
    """A drafter's layers. speculators leaves out what has transformers' default."""
    layers: Mapping[str, Any] = raw
    if "transformer_layer_config" in raw:
        from transformers import AutoConfig

        given = raw["transformer_layer_config"]
        try:
            layers = AutoConfig.for_model(**given).to_dict()
        except Exception as error:
            raise CheckpointError(
                f"{folder}: transformer_layer_config {quoted(given, 80)} makes no sense ({error}); fetch it again"
            ) from None
    family = layers.get("model_type") if layers.get("model_type") in FAMILIES else "llama"
    return parse_config({**layers, "model_type": family, "quantization_config": None})


def _as_inputs(layers: tuple[int, ...]) -> tuple[int, ...]:
    """Which layers' inputs are seen. Some configurations number layers by their inputs, and some by their outputs. The
    first layer seen is the output of layer 1, so a list that begins with 1 is of the second kind (SGLang tells them
    apart so, too)."""
    return tuple(at + 1 for at in layers) if layers[:1] == (1,) else layers


def tensors_of(folder: Path, config: PublishedConfig) -> dict[str, torch.Tensor]:
    """The tensors of a published drafter, by the names of `PublishedConfig.shapes`. Those that are absent are left out.
    Raises CheckpointError for files that cannot be read."""
    wanted = {**_beside(config), **{name: f"model.{name}" for name in config.shapes() if name.startswith("layers.")}}
    found = _read(folder, {*wanted.values(), "d2t"})
    tensors = {name: found[stored] for name, stored in wanted.items() if stored in found}
    if "d2t" in found and OWN_HEAD in tensors:  # how far the number of a token is from that of its row
        tokens = found["d2t"].long() + torch.arange(len(found["d2t"]))
        order = tokens.argsort()
        tensors[VOCABULARY] = tokens[order].int()
        if not torch.equal(order, torch.arange(len(order))):
            tensors[OWN_HEAD] = tensors[OWN_HEAD][order]
    return tensors


def _beside(config: PublishedConfig) -> dict[str, str]:
    """What the tensors beside the layers are called, in our words and in the files'."""
    names = {
        "reduction.weight": "model.fc.weight",
        OWN_HEAD: "model.lm_head.weight",
        OWN_NORM: "model.norm.weight",
        "embedded_norm.weight": "model.layers.0.input_layernorm.weight",
        "seen_norm.weight": "model.layers.0.hidden_norm.weight",
    }
    if config.own_embedding:
        names[OWN_EMBEDDING] = "model.embed_tokens.weight"
    if config.norms == "all":
        names["seen.weight"] = "model.input_norm.weight"
    if config.norms == "each":
        names |= {f"seen{at}.weight": f"model.fc_norm.{at}.weight" for at in range(config.reduced_from)}
    return names


def _canonical(name: str) -> str:
    """A tensor's name as most files would have it, with `model.` before it."""
    name = name.removeprefix("model.").replace("midlayer.", "layers.0.", 1)
    return name if name in ("d2t", "t2d") else f"model.{name}"


def _names(folder: Path) -> set[str]:
    return {_canonical(name) for path in _files(folder) for name in _open(path, lambda file: list(file.keys()))}


def _read(folder: Path, wanted: set[str]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in _files(folder):
        found |= _open(
            path,
            lambda file: {
                _canonical(name): file.get_tensor(name) for name in list(file.keys()) if _canonical(name) in wanted
            },
        )
    return found


def _open(path: Path, use: Any) -> Any:
    try:
        with safe_open(path, framework="pt") as file:
            return use(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors ({error}); fetch the file again") from None


def _files(folder: Path) -> list[Path]:
    try:
        return weight_files(folder)
    except ModelNotFoundError:
        raise ModelNotFoundError(
            f"{folder} has no model.safetensors; if its weights are in pytorch_model.bin, write them as safetensors: "
            'python -c "import torch, safetensors.torch as s; '
            "s.save_file({n: t.clone() for n, t in torch.load('pytorch_model.bin', weights_only=True).items()}, "
            "'model.safetensors')\""
        ) from None
