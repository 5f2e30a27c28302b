"""The sizes of trained drafters, and for which model each was trained.

There are two networks. A `Mixture of Attentions` sees keys and values of the model (Zimmer et al. 2025). A *stack* is a
few decoder layers over embeddings: those of EAGLE see hidden states of the model, too (Li et al. 2024 and 2025), and
an independent drafter sees nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Self

from foretoken.decoder.config import DRAFTER, DecoderConfig
from foretoken.errors import CheckpointError, quoted

MIXTURE, BLOCK, EAGLE2, EAGLE3, INDEPENDENT = "mixture", "block", "eagle2", "eagle3", "independent"
VERSION = 3
VOCABULARY = "vocabulary"  # the tensor of the tokens that a drafter can draft, in order, if these are not all
LAYERS = 2  # of a mixture: self-attention over tokens, then attention to what the target has computed
_MOST, _MOST_LAYERS = 1 << 24, 1 << 10  # of any size; of layers
_LISTS = ("layers", "ends", "sees")


@dataclass(frozen=True)
class TrainedConfig(ABC):
    """What the sizes of all kinds have in common.

    method: the kind. fingerprint: of the target (`copies.fingerprint`). target_layers, target_kv_heads, head_dim,
    hidden_size, num_heads: the target's.
    """

    method: str
    fingerprint: str
    target_layers: int
    target_kv_heads: int
    head_dim: int
    hidden_size: int
    num_heads: int

    methods: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """Of its decoder, the target's own layers among them."""

    @property
    def command(self) -> str:
        """What `foretoken train` calls its kind."""
        return "moa" if self.method == MIXTURE else self.method

    @property
    def follows(self) -> bool:
        """Whether each of its rows needs what the row before it put out."""
        return False

    @abstractmethod
    def decoder(self, target: DecoderConfig) -> DecoderConfig:
        """Its layers as a decoder, which has the target's embedding, final norm and output layer."""

    def linears(self, target: DecoderConfig) -> DecoderConfig:
        """The decoder as its linear layers lie in memory."""
        return self.decoder(target)

    def expect_suits(self, target: DecoderConfig, where: str) -> None:
        """Raise CheckpointError for a target of another shape."""
        for name, ours in of_target(target).items():
            if getattr(self, name) != ours:
                raise CheckpointError(
                    f"{where} was trained for a model whose {_SAID.get(name, name)} is {getattr(self, name)}, and this "
                    f"one's is {ours}; train a drafter for this model: foretoken train {self.command} --target MODEL"
                )

    def expect_made_for(self, fingerprint: str, where: str) -> None:
        """Raise CheckpointError for another target than the one that it was trained for."""
        if self.fingerprint != fingerprint:
            raise CheckpointError(
                f"{where} was trained for another model of this shape, or for this one before its weights were "
                f"changed; train a drafter for this model: foretoken train {self.command} --target MODEL"
            )

    def to_json(self) -> dict[str, Any]:
        """For the drafter's config.json."""
        values = asdict(self)
        return {DRAFTER: values.pop("method"), "version": VERSION, **values}

    @classmethod
    def read(cls, raw: Mapping[str, Any], where: str) -> Self:
        """From a config.json of this class. Raises CheckpointError for one that is damaged."""
        values: dict[str, Any] = {"method": raw[DRAFTER]}
        for field in fields(cls):
            if field.name in values:
                continue
            value = raw.get(field.name, 0 if field.name == "choices" else None)  # older drafters can draft all
            if field.name in _LISTS:
                expected = "list of some of the model's layers, in order"
                sound = isinstance(value, list | tuple) and _are_layers(value, values["target_layers"])
                value = tuple(value) if sound and value is not None else value
            elif field.name == "fingerprint":
                expected, sound = "text", isinstance(value, str)
            else:
                most = _MOST_LAYERS if field.name == "depth" else _MOST
                least = 0 if field.name == "choices" else 1
                expected, sound = f"whole number from {least} to {most}", type(value) is int and least <= value <= most
            if not sound:
                raise CheckpointError(
                    f"{where}: {field.name} is {quoted(value, 40)}, expected a {expected}; train the drafter again, "
                    "or fetch it again"
                )
            values[field.name] = value
        its = cls(**values)
        if not its.is_sound:
            raise CheckpointError(
                f"{where}: its sizes do not fit together, or it sees no layers; train the drafter again, or fetch it "
                "again"
            )
        return its

    @property
    def is_sound(self) -> bool:
        """Whether its sizes fit together."""
        return True


@dataclass(frozen=True)
class MixtureConfig(TrainedConfig):
    """Sizes of a Mixture of Attentions.

    layers: those of the target's that are observed, in order. kv_heads, intermediate_size: of the drafter's own
    layers. The next three are those of the observer, which attends over the observed layers. ends: the target's last
    layers, with which the drafter ends (target layer inference). A padded drafter leaves out those that add nothing.
    choices: how many tokens of the vocabulary it can draft, those that occurred most in the text of its training; 0:
    all.
    """

    kv_heads: int
    intermediate_size: int
    observer_heads: int
    observer_kv_heads: int
    observer_intermediate_size: int
    layers: tuple[int, ...]
    ends: tuple[int, ...] = ()
    choices: int = 0

    methods = (MIXTURE,)

    @property
    def observed(self) -> int:
        """The numbers that are seen of a token in one layer of the target: its keys and its values."""
        return 2 * self.target_kv_heads * self.head_dim

    def intermediate_of(self, layer: int) -> int:
        """The width of the feed-forward layer of one of its own layers."""
        return self.intermediate_size

    @property
    def observer_theta(self) -> float:
        """The base of the angles by which the observer turns the numbers of layers."""
        return 10000.0

    @property
    def num_layers(self) -> int:
        """Its own, and those of the target."""
        return self.own_layers + len(self.ends)

    @property
    def own_layers(self) -> int:
        """Those that are not the target's. The first attends to tokens, the others to what the target has computed."""
        return LAYERS

    def decoder(self, target: DecoderConfig) -> DecoderConfig:
        """Its own layers, then the target's."""
        own = _small(target, self.own_layers, self.kv_heads, self.intermediate_size)
        if self.choices:
            own = replace(own, valid_vocab_size=min(self.choices, target.valid_vocab_size))
        if not self.ends:
            return own
        wide = tuple(target.intermediate_of(layer) for layer in self.ends)
        sizes = (*((self.intermediate_size,) * self.own_layers), *wide)
        windows = (*own.windows, *(target.windows[layer] for layer in self.ends))
        return replace(
            own,
            num_layers=self.num_layers,
            intermediate_size=max(sizes),
            intermediate_sizes=sizes,
            windows=windows,
        )

    def linears(self, target: DecoderConfig) -> DecoderConfig:
        """As `decoder`, but as wide as its own output layer is."""
        its = self.decoder(target)
        return replace(its, vocab_size=self.choices) if self.choices else its

    @property
    def is_sound(self) -> bool:
        """Whether heads divide each other, and the target has the layers."""
        shared = (self.num_heads % self.kv_heads, self.observer_heads % self.observer_kv_heads)
        there = bool(self.layers) and max((*self.layers, *self.ends)) < self.target_layers
        # the target's layers and the drafter's own lie in one cache
        alike = not self.ends or self.kv_heads == self.target_kv_heads
        return not any(shared) and not self.observed % (2 * self.observer_heads) and there and alike


@dataclass(frozen=True)
class BlockConfig(MixtureConfig):
    """Sizes of a Mixture of Attentions that drafts several tokens in one pass.

    block: how many. rank: how many numbers a token passes on to the choice of the token behind it. depth: layers of its
    own.
    """

    block: int = 7
    rank: int = 32
    depth: int = LAYERS

    methods = (BLOCK,)

    @property
    def own_layers(self) -> int:
        """Any number from 2 up."""
        return self.depth

    @property
    def is_sound(self) -> bool:
        """It drafts several tokens, and a layer attends to what the target has computed."""
        return super().is_sound and self.block > 1 and self.depth > 1


@dataclass(frozen=True)
class StackConfig(TrainedConfig):
    """Sizes of a stack of decoder layers over embeddings.

    depth: how many layers. kv_heads, intermediate_size: of each. sees: the layers of the target whose input is seen, in
    order; the number of its layers stands for what the last one puts out, which is seen behind the final norm by
    EAGLE-2, and before it by EAGLE-3. An independent drafter sees none.
    """

    depth: int
    kv_heads: int
    intermediate_size: int
    sees: tuple[int, ...] = ()

    methods = (EAGLE2, EAGLE3, INDEPENDENT)

    @property
    def num_layers(self) -> int:
        """All are its own."""
        return self.depth

    @property
    def follows(self) -> bool:
        """EAGLE's do."""
        return bool(self.sees)

    @property
    def sees_normed(self) -> bool:
        """Whether it sees states behind the final norm, and in a draft its own, behind it, too."""
        return self.method == EAGLE2

    def decoder(self, target: DecoderConfig) -> DecoderConfig:
        """Its layers."""
        return _small(target, self.depth, self.kv_heads, self.intermediate_size)

    @property
    def is_sound(self) -> bool:
        """Whether heads divide each other, and the kind sees what it should."""
        wanted = {EAGLE2: (self.target_layers,), INDEPENDENT: ()}
        seen = wanted.get(self.method, self.sees) == self.sees and (self.method == INDEPENDENT or bool(self.sees))
        return not self.num_heads % self.kv_heads and seen


def _small(target: DecoderConfig, layers: int, kv_heads: int, intermediate_size: int) -> DecoderConfig:
    return replace(
        target,
        num_layers=layers,
        num_kv_heads=kv_heads,
        intermediate_size=intermediate_size,
        intermediate_sizes=None,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        windows=(None,) * layers,
        low_bit=None,
    )


def config_of(raw: Mapping[str, Any], where: str) -> TrainedConfig:
    """The sizes in a config.json. Raises CheckpointError for one that is damaged, or of another version."""
    if DRAFTER not in raw:
        raise CheckpointError(f"{where} holds no trained drafter; name a folder that `foretoken train` has written")
    kinds: tuple[type[TrainedConfig], ...] = (MixtureConfig, BlockConfig, StackConfig)
    for kind in kinds:
        if raw.get(DRAFTER) in kind.methods and raw.get("version") == VERSION:
            return kind.read(raw, where)
    known = ", ".join(method for kind in kinds for method in kind.methods)
    raise CheckpointError(
        f"{where} is a trained drafter of kind {quoted(raw.get(DRAFTER), 40)}, version "
        f"{quoted(raw.get('version'), 20)}; expected one of {known}, version {VERSION}: train it again, or use the "
        "Foretoken that trained it"
    )


def _are_layers(layers: Any, count: int) -> bool:
    """Whether they are numbers of layers, ascending; `count` itself stands for what the last layer puts out."""
    return all(type(layer) is int and 0 <= layer <= count for layer in layers) and list(layers) == sorted(set(layers))


_SAID = {"target_layers": "number of layers", "target_kv_heads": "number of key heads", "num_heads": "number of heads"}


def of_target(target: DecoderConfig) -> dict[str, int]:
    """The sizes of a target that a trained drafter depends on."""
    return {
        "target_layers": target.num_layers,
        "target_kv_heads": target.num_kv_heads,
        "head_dim": target.head_dim,
        "hidden_size": target.hidden_size,
        "num_heads": target.num_heads,
    }
