"""The sizes of a Mixture of Attentions, and for which model it was trained.

Sources: Zimmer et al. 2025, "Mixture of Attentions for speculative decoding", section 3 and table 6. The paper gives
sizes for two models. For any other, `sized_for` gives the network as many parameters as EAGLE-2's would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from foretoken.decoder.config import DRAFTER, DecoderConfig
from foretoken.errors import CheckpointError, quoted

METHOD, VERSION = "mixture", 2
_MOST = 1 << 24  # of any size
LAYERS = 2  # of the decoder: self-attention over tokens, then attention to what the target has computed
# Layers of the target that are observed. Observing costs as many products as there are layers: all 16 of a model of a
# billion parameters took an eighth of a round's time.
MOST_OBSERVED = 8


@dataclass(frozen=True)
class MixtureConfig:
    """Sizes of a Mixture of Attentions.

    fingerprint: of the target (`copies.fingerprint`). target_layers, target_kv_heads, head_dim, hidden_size, num_heads:
    the target's. layers: those of the target's that are observed, in order. kv_heads, intermediate_size: of the
    drafter's two layers. The other three are those of the observer, which attends over the observed layers.
    """

    fingerprint: str
    target_layers: int
    target_kv_heads: int
    head_dim: int
    hidden_size: int
    num_heads: int
    kv_heads: int
    intermediate_size: int
    observer_heads: int
    observer_kv_heads: int
    observer_intermediate_size: int
    layers: tuple[int, ...]

    @property
    def observed(self) -> int:
        """The numbers that are seen of a token in one layer of the target: its keys and its values."""
        return 2 * self.target_kv_heads * self.head_dim

    def expect_suits(self, target: DecoderConfig, where: str) -> None:
        """Raise CheckpointError for a target of another shape."""
        for name, ours in _of_target(target).items():
            if getattr(self, name) != ours:
                raise CheckpointError(
                    f"{where} was trained for a model whose {name} is {getattr(self, name)}, and this one's is {ours}; "
                    "train a drafter for this model: foretoken train moa --target MODEL"
                )

    def decoder(self, target: DecoderConfig) -> DecoderConfig:
        """The drafter's two layers as a decoder, which has the target's embedding, final norm and output layer."""
        return replace(
            target,
            num_layers=LAYERS,
            num_kv_heads=self.kv_heads,
            intermediate_size=self.intermediate_size,
            qkv_bias=False,
            output_bias=False,
            mlp_bias=False,
            qk_norm=False,
            windows=(None,) * LAYERS,
            low_bit=None,
        )

    def to_json(self) -> dict[str, Any]:
        """For the drafter's config.json."""
        return {DRAFTER: METHOD, "version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], where: str) -> MixtureConfig:
        """From a config.json. Raises CheckpointError for one that is damaged, or of another version."""
        if raw.get(DRAFTER) != METHOD or raw.get("version") != VERSION:
            raise CheckpointError(
                f"{where} is a trained drafter of kind {quoted(raw.get('foretoken_drafter'), 40)}, version "
                f"{quoted(raw.get('version'), 20)}; expected {METHOD}, {VERSION}: use the Foretoken that trained it"
            )
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = values[field.name] = raw.get(field.name)
            if field.name == "layers":
                continue
            is_text = field.name == "fingerprint"
            sound = isinstance(value, str) if is_text else type(value) is int and 0 < value < _MOST
            if not sound:
                raise CheckpointError(
                    f"{where}: {field.name} is {quoted(value, 40)}, expected a "
                    f"{'text' if is_text else 'positive whole number'}; train the drafter again, or fetch it again"
                )
        layers = raw.get("layers")
        if not isinstance(layers, list | tuple) or not _are_layers(layers, values["target_layers"]):
            raise CheckpointError(
                f"{where}: layers is {quoted(layers, 40)}, expected a list of some of the model's layers, in order; "
                "train the drafter again, or fetch it again"
            )
        its = cls(**{**values, "layers": tuple(layers)})
        shared = (its.num_heads % its.kv_heads, its.observer_heads % its.observer_kv_heads)
        if any(shared) or its.observed % (2 * its.observer_heads):
            raise CheckpointError(f"{where}: its numbers of heads do not divide each other; train the drafter again")
        return its


def _are_layers(layers: Sequence[Any], count: int) -> bool:
    numbers = all(type(layer) is int and 0 <= layer < count for layer in layers)
    return numbers and bool(layers) and list(layers) == sorted(set(layers))


def observed_layers(count: int) -> tuple[int, ...]:
    """The layers to observe of a model that has `count`: all of them, or evenly spaced ones, the last among them."""
    few = min(count, MOST_OBSERVED)
    return tuple((at + 1) * count // few - 1 for at in range(few))


def _of_target(target: DecoderConfig) -> dict[str, int]:
    return {
        "target_layers": target.num_layers,
        "target_kv_heads": target.num_kv_heads,
        "head_dim": target.head_dim,
        "hidden_size": target.hidden_size,
        "num_heads": target.num_heads,
    }


def sized_for(target: DecoderConfig, fingerprint: str) -> MixtureConfig:
    """The sizes for a target: as many parameters as EAGLE-2's head has, which are one layer of the target and a
    projection of two hidden states to one. Feed-forward layers take what attention leaves, the observer's as its width
    is to the target's. Their sizes are multiples of 32."""
    width, queries = target.hidden_size, target.num_heads * target.head_dim
    observed = 2 * target.num_kv_heads * target.head_dim

    def attention(outer: int, inner: int, kv: int) -> int:
        return 2 * outer * inner + 2 * outer * kv

    budget = attention(width, queries, target.num_kv_heads * target.head_dim)
    budget += 3 * width * target.intermediate_size + 2 * width * width
    kv_heads = max(1, target.num_kv_heads // 2)
    while target.num_heads % kv_heads:
        kv_heads -= 1
    heads = max(_possible_heads(observed, target.num_heads))
    observer_kv = next(count for count in (heads // 4, 1) if count and heads % count == 0)
    taken = LAYERS * attention(width, queries, kv_heads * target.head_dim)
    taken += attention(observed, observed, observer_kv * (observed // heads)) + width * observed
    each = 3 * (LAYERS * width + observed * observed / width)  # parameters for each unit of a feed-forward layer
    units = max(32, (budget - taken) / each)
    return MixtureConfig(
        fingerprint=fingerprint,
        **_of_target(target),
        kv_heads=kv_heads,
        intermediate_size=_rounded(units),
        observer_heads=heads,
        observer_kv_heads=observer_kv,
        observer_intermediate_size=_rounded(units * observed / width),
        layers=observed_layers(target.num_layers),
    )


def _possible_heads(observed: int, most: int) -> list[int]:
    """Numbers of heads that divide the observer's width into even parts of 16 or more; 1 if none does."""
    return [n for n in range(1, most + 1) if observed % n == 0 and observed // n >= 16 and not observed // n % 2] or [1]


def _rounded(units: float) -> int:
    return max(32, 32 * round(units / 32))
