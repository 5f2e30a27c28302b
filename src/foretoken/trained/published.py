"""Drafters that others have trained, as they are published: what their kinds have in common, and how files are read.

Two layouts are common: that of the authors' own code, which SGLang and SpecForge share, and that of the library
speculators, which vLLM made. The networks are the same, but for switches that config.json names. They see states of
some of the target's layers. They may have an output layer and a final norm of their own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from foretoken.decoder.config import DecoderConfig, parse_config
from foretoken.decoder.families import FAMILIES
from foretoken.decoder.shapes import linear_shapes
from foretoken.errors import CheckpointError, ModelError, UnsupportedModelError, quoted
from foretoken.trained.config import VOCABULARY, TrainedConfig
from foretoken.trained.published_files import expect_floats, read, shapes_in

OWN_HEAD, OWN_NORM, OWN_EMBEDDING = "head.weight", "norm.weight", "embedding.weight"
_FIRST = "model.layers.0."
PADDING = 100  # vocabularies that differ by less than one in so many differ by padding
_MOST_LAYERS = 10_000
# speculators leaves out of a configuration what has transformers' default
_OF_ALL = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-6,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {**_OF_ALL, "vocab_size": 32000, "intermediate_size": 11008, "num_key_value_heads": None},
    "qwen3": {**_OF_ALL, "vocab_size": 151936, "intermediate_size": 22016, "max_position_embeddings": 32768},
}


class OfOthers(TrainedConfig):
    """What the sizes of all published drafters have in common. It stands before another `TrainedConfig`."""

    def to_json(self) -> dict[str, Any]:
        """Raises UnsupportedModelError: it has its authors' config.json."""
        raise UnsupportedModelError("a drafter that others have trained is not written anew; copy its folder")

    def expect_made_for(self, fingerprint: str, where: str) -> None:
        """Nothing tells: the files name no weights. A drafter of another model costs time, and changes no token."""


@dataclass(frozen=True)
class PublishedConfig(OfOthers):
    """Sizes of a published drafter. It does not say for which model it was trained, but for the width of its states.

    own: its layers, as a decoder's, with the vocabulary that it was trained for. sees: the layers of the target whose
    input is seen. choices: how many tokens it can draft. are_all: these are the vocabulary. own_head: its output layer
    is its own, not the target's. own_embedding: so is its embedding. target: the name of the model for which it was
    trained, if it says that.
    """

    own: DecoderConfig
    sees: tuple[int, ...]
    choices: int
    are_all: bool
    own_head: bool
    own_embedding: bool
    target: str

    @property
    def num_layers(self) -> int:
        """All are its own."""
        return self.own.num_layers

    @property
    def reduced_from(self) -> int:
        """How many layers of the target are seen."""
        return len(self.sees)

    def decoder(self, target: DecoderConfig) -> DecoderConfig:
        """Its layers, with the embedding of the target. A text may be as long as the target's: nothing but its
        training had the length that its configuration names."""
        return replace(
            self.own,
            vocab_size=min(self.own.vocab_size, target.vocab_size) if self.own_embedding else target.vocab_size,
            valid_vocab_size=min(self.choices, target.valid_vocab_size),
            context_length=target.context_length,
        )

    def linears(self, target: DecoderConfig) -> DecoderConfig:
        """As `decoder`, but as wide as its output layer is."""
        return replace(self.decoder(target), vocab_size=self.choices if self.own_head else target.vocab_size)

    def of_target(self, target: DecoderConfig) -> Self:
        """The same, with the layers that it sees named by their inputs."""
        return self

    def expect_suits(self, target: DecoderConfig, where: str) -> None:
        """Raise CheckpointError for a target of another width or vocabulary, or that lacks a layer that is seen."""
        of = f" ({quoted(self.target, 80)}, as it says)" if self.target else ""
        for name, ours, theirs, far in (
            ("hidden_size", self.hidden_size, target.hidden_size, 0),
            ("vocab_size", self.own.vocab_size, target.vocab_size, target.vocab_size // PADDING),
        ):
            if abs(ours - theirs) > far:
                raise CheckpointError(
                    f"{where} was trained for a model{of} whose {name} is {ours}, and this one's is {theirs}; name a "
                    "drafter of this model"
                )
        if self.own_embedding and self.own.vocab_size < target.valid_vocab_size:
            raise CheckpointError(
                f"{where} has an embedding of its own for {self.own.vocab_size} tokens, and this model has "
                f"{target.valid_vocab_size}; name a drafter of this model"
            )
        sees = self.of_target(target).sees
        if list(sees) != sorted({*sees}):
            raise CheckpointError(
                f"{where} sees the model before its layers {quoted(sees, 80)}, expected each once, in order; fetch its "
                "config.json again"
            )
        if sees[-1] > target.num_layers:
            raise CheckpointError(
                f"{where} sees the model before its layers {quoted(sees, 80)}, and this one has {target.num_layers}; "
                "name a drafter of this model"
            )

    @property
    @abstractmethod
    def beside(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The tensors beside the layers and the output layer, by name: what the files call each, and its shape."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of its tensors, as `tensors_of` gives them."""
        c, width = self.own, self.hidden_size
        found = {name: shape for name, (_, shape) in self.beside.items()}
        found[OWN_NORM] = (width,)
        if self.own_head:
            found[OWN_HEAD] = (self.choices, width)
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


@dataclass(frozen=True)
class Publication:
    """A folder with a published drafter, while its sizes are read. raw: its config.json. more: the part of it that is
    of the drafter's kind alone, which some layouts have. shapes: of its tensors, by the names that `canonical` gives
    them."""

    folder: Path
    raw: Mapping[str, Any]
    more: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, folder: Path, raw: Mapping[str, Any], part: str) -> Publication:
        """part: what `more` is called in config.json. Raises CheckpointError for one that is no object, and
        UnsupportedModelError for quantised weights."""
        more = raw.get(part) or {}
        if not isinstance(more, dict):
            raise CheckpointError(f"{folder}: {part} is {quoted(more, 40)}, expected an object; fetch it again")
        if raw.get("quantization_config"):
            raise UnsupportedModelError(f"{folder} is quantised, which is not supported; use the bf16 original")
        return cls(folder, raw, more, shapes_in(folder))

    @property
    def names(self) -> Set[str]:
        """Of its tensors, as `canonical` has them."""
        return self.shapes.keys()

    @property
    def is_of_speculators(self) -> bool:
        """Whether it has the layout of speculators."""
        return "speculators_model_type" in self.raw

    @property
    def target(self) -> str:
        """The name of the model that it was trained for; empty if it does not say that."""
        found: Any = self.raw
        for name in ("speculators_config", "verifier", "name_or_path"):
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, str) else ""

    def value(self, name: str) -> Any:
        """What config.json says of something, in the part of the kind or else beside it; None if it says nothing."""
        found = self.more.get(name)
        return self.raw.get(name) if found is None else found

    def switch(self, name: str) -> bool:
        """Whether something is switched on. Raises CheckpointError for what is neither true nor false."""
        found = self.value(name)
        if found not in (None, False, True) or isinstance(found, float):
            raise CheckpointError(
                f"{self.folder}: {name} is {quoted(found, 40)}, expected true or false; fetch it again"
            )
        return bool(found)

    def number(self, name: str, most: int, usual: int | None = None) -> int:
        """A whole number from 1 to `most`. Raises CheckpointError for anything else."""
        found = self.value(name)
        found = usual if found is None else found
        if type(found) is not int or not 0 < found <= most:
            raise CheckpointError(
                f"{self.folder}: {name} is {quoted(found, 40)}, expected a whole number from 1 to {most}; fetch it "
                "again"
            )
        return found

    def choices(self, vocab_size: int) -> int:
        """How many tokens can be drafted. Raises CheckpointError if these are not all, and nothing says which."""
        count = self.number("draft_vocab_size", vocab_size, vocab_size)
        if count != vocab_size and "d2t" not in self.names:
            raise CheckpointError(
                f"{self.folder} can draft {count} of {vocab_size} tokens, and d2t, which says which, is missing; fetch "
                "it again"
            )
        return count

    def layers_seen(self, name: str) -> tuple[int, ...]:
        """Numbers of layers; none if config.json names none. Raises CheckpointError for anything else."""
        found = self.value(name)
        if found in (None, []):
            return ()
        if not isinstance(found, list) or not all(type(at) is int and 0 <= at <= _MOST_LAYERS for at in found):
            raise CheckpointError(
                f"{self.folder}: {name} is {quoted(found, 40)}, expected a list of numbers of layers; fetch it again"
            )
        return tuple(found)

    def refuse(self, names: Iterable[str]) -> None:
        """Raise UnsupportedModelError for the first of some settings that is on: they change what is computed."""
        for name in names:
            if self.value(name):
                raise UnsupportedModelError(
                    f"{self.folder} was trained with {name}, which is not supported; use another drafter of its model"
                )

    def expect_known(self, config: PublishedConfig) -> None:
        """Raise UnsupportedModelError for a tensor that nothing here computes with."""
        known = {f"model.{name}" for name in stored_names(config).values()}
        spare = ("d2t", "t2d", "embed_tokens.weight", "lm_head.weight", "verifier_", "rotary_emb.")
        for name in sorted(self.names - known):
            if not name.removeprefix("model.").startswith(spare) and not name.endswith("rotary_emb.inv_freq"):
                raise UnsupportedModelError(
                    f"{self.folder} holds {quoted(name.removeprefix('model.'), 80)}, which drafters of its kind are "
                    "not known to have; use another drafter of its model"
                )

    def layers(self, *, wide: bool = False) -> DecoderConfig:
        """A drafter's layers, as wide as the states that it sees. wide: as `DecoderConfig` has it."""
        given = self.raw.get("transformer_layer_config", self.raw)
        if not isinstance(given, dict):
            raise CheckpointError(
                f"{self.folder}: transformer_layer_config is {quoted(given, 40)}, expected an object; fetch it again"
            )
        family = str(given.get("model_type"))
        if self.is_of_speculators and family not in _DEFAULTS:
            raise UnsupportedModelError(
                f"{self.folder} has layers of type {quoted(family, 40)}; supported: {', '.join(_DEFAULTS)}"
            )
        usual = _DEFAULTS[family] if self.is_of_speculators else {}
        family = family if family in FAMILIES else "llama"
        try:
            own = parse_config({**usual, **given, "model_type": family})
        except ModelError as error:
            raise type(error)(f"{self.folder}: {error}") from None
        types = given.get("layer_types") or []
        if any(own.windows) or not isinstance(types, list) or any(each != "full_attention" for each in types):
            raise UnsupportedModelError(
                f"{self.folder} has layers that do not see all of a text (layer_types: {quoted(types, 80)}), which is "
                "not supported; use another drafter of its model"
            )
        wider = self.raw.get("target_hidden_size")
        if wider not in (None, own.hidden_size):
            raise UnsupportedModelError(
                f"{self.folder} is {own.hidden_size} wide and was trained for states of {quoted(wider, 20)}; drafters "
                "as wide as their model are supported: use another drafter of its model"
            )
        return replace(
            own,
            tied=False,
            wide=wide,
            windows=(None,) * own.num_layers,
            qk_norm=f"{_FIRST}self_attn.q_norm.weight" in self.names,
            qkv_bias=f"{_FIRST}self_attn.q_proj.bias" in self.names,
            output_bias=f"{_FIRST}self_attn.o_proj.bias" in self.names,
            mlp_bias=f"{_FIRST}mlp.gate_proj.bias" in self.names,
        )


def stored_names(config: PublishedConfig) -> dict[str, str]:
    """What the files call the tensors of `PublishedConfig.shapes`, but for the vocabulary."""
    called = {name: theirs for name, (theirs, _) in config.beside.items()}
    called |= {OWN_HEAD: "lm_head.weight", OWN_NORM: "norm.weight", OWN_EMBEDDING: "embed_tokens.weight"}
    return {name: called.get(name, name) for name in config.shapes() if name != VOCABULARY}


def tensors_of(folder: Path, config: PublishedConfig) -> dict[str, torch.Tensor]:
    """The tensors of a published drafter, by the names of `PublishedConfig.shapes`, of sound shapes and types. Raises
    CheckpointError for files that cannot be read, or that lack something, and UnsupportedModelError for other types."""
    names, shapes = stored_names(config), config.shapes()
    found = read(folder, {*(f"model.{name}" for name in names.values()), "d2t"})
    tensors = {}
    for name, stored in names.items():
        tensor = found.get(f"model.{stored}")
        if tensor is None or tuple(tensor.shape) != shapes[name]:
            came = "is missing" if tensor is None else f"has shape {list(tensor.shape)}"
            raise CheckpointError(
                f"{folder}: {stored} {came}, expected {list(shapes[name])} by config.json; fetch it again"
            )
        expect_floats(tensor, stored, folder)
        tensors[name] = tensor
    if VOCABULARY in shapes:
        tokens = _tokens(folder, found.get("d2t"), config)
        order = tokens.argsort()
        tensors[VOCABULARY] = tokens[order].int()
        if not torch.equal(order, torch.arange(len(order))):
            tensors[OWN_HEAD] = tensors[OWN_HEAD][order]
    return tensors


def _tokens(folder: Path, given: torch.Tensor | None, config: PublishedConfig) -> torch.Tensor:
    """The tokens that a drafter's output layer has rows for. given: how far each is from the number of its row."""
    last = config.own.vocab_size - 1
    if given is None or given.dtype not in (torch.int64, torch.int32) or given.shape != (config.choices,):
        came = "is missing" if given is None else f"is {given.dtype} {list(given.shape)}"
        raise CheckpointError(f"{folder}: d2t {came}, expected {config.choices} whole numbers; fetch it again")
    tokens = given.long() + torch.arange(config.choices)
    least, most = int(tokens.min()), int(tokens.max())
    if least < 0 or most > last:
        raise CheckpointError(
            f"{folder}: d2t leads to token {least if least < 0 else most}, expected tokens from 0 to {last}; fetch it "
            "again"
        )
    return tokens
