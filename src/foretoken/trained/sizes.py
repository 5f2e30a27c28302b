"""How large a drafter for a model is: as many parameters as EAGLE-2's, but for independent ones.

EAGLE-2's drafter is one layer of the target, and a projection of two hidden states to one.
Sources: Zimmer et al. 2025, table 6, gives sizes for two models only; Li et al. 2024 (EAGLE-2) and 2025 (EAGLE-3).
"""

from __future__ import annotations

from foretoken.decoder.config import DecoderConfig
from foretoken.errors import SettingError
from foretoken.trained.config import (
    BLOCK,
    EAGLE2,
    EAGLE3,
    INDEPENDENT,
    LAYERS,
    MIXTURE,
    BlockConfig,
    MixtureConfig,
    StackConfig,
    of_target,
)

# Layers of the target that are observed. Observing costs as many products as there are layers: all 16 of a model of a
# billion parameters took an eighth of a round's time.
MOST_OBSERVED = 8
BLOCK_TOKENS = 7  # drafted in one pass, as in DSpark's comparison
MOST_CHOICES = 1 << 14  # tokens that a drafter can draft: as many as make up nearly all of a text
BLOCK_LAYERS = 4  # of a block: only from the third on do blanks see what the ones before them have come to


def mixture_for(target: DecoderConfig, fingerprint: str, *, inferred: int = 0) -> MixtureConfig:
    """The sizes of a Mixture of Attentions for a target. Feed-forward layers take what attention leaves, the observer's
    as its width is to the target's. Their sizes are multiples of 32. inferred: how many of the target's last layers it
    ends with; its own layers then have as many key/value heads as these, because they share a cache."""
    width, queries = target.hidden_size, target.num_heads * target.head_dim
    observed = 2 * target.num_kv_heads * target.head_dim
    kv_heads = target.num_kv_heads if inferred else _half(target)
    heads = max(_possible_heads(observed, target.num_heads))
    observer_kv = next(count for count in (heads // 4, 1) if count and heads % count == 0)
    taken = LAYERS * _attention(width, queries, kv_heads * target.head_dim)
    taken += _attention(observed, observed, observer_kv * (observed // heads)) + width * observed
    each = 3 * (LAYERS * width + observed * observed / width)  # parameters for each unit of a feed-forward layer
    units = max(32, (_budget(target) - taken) / each)
    return MixtureConfig(
        method=MIXTURE,
        fingerprint=fingerprint,
        **of_target(target),
        kv_heads=kv_heads,
        intermediate_size=_rounded(units),
        observer_heads=heads,
        observer_kv_heads=observer_kv,
        observer_intermediate_size=_rounded(units * observed / width),
        layers=observed_layers(target.num_layers),
        ends=tuple(range(target.num_layers - inferred, target.num_layers)),
        choices=MOST_CHOICES if target.vocab_size > MOST_CHOICES else 0,
    )


def block_of(its: MixtureConfig, *, block: int = BLOCK_TOKENS, depth: int = BLOCK_LAYERS) -> BlockConfig:
    """The sizes of a drafter that drafts `block` tokens in one pass, with parts as large as those of a mixture. depth:
    how many layers are its own. It has more of them, and each of them runs once for a whole draft."""
    return BlockConfig(
        **{**vars(its), "method": BLOCK},
        block=block,
        rank=_rounded(its.hidden_size / 4),
        depth=depth,
    )


def eagle2_for(target: DecoderConfig, fingerprint: str, *, depth: int = 1, wide: float = 1.0) -> StackConfig:
    """The sizes of EAGLE-2's drafter: one layer as the target's. depth: with more layers, they share the parameters of
    one. wide: its feed-forward layer is so many times as wide."""
    width, size = target.hidden_size, target.intermediate_size * wide
    if depth > 1:
        queries = target.num_heads * target.head_dim
        one = _attention(width, queries, target.num_kv_heads * target.head_dim) + 3 * width * size
        size = (one / depth - _attention(width, queries, _half(target) * target.head_dim)) / (3 * width)
        if size < 16:
            most = int(one / (_attention(width, queries, _half(target) * target.head_dim) + 48 * width))
            raise SettingError(
                f"{depth} layers leave no parameters for feed-forward layers; give a --depth of at most {most}"
            )
    return _stack(EAGLE2, target, fingerprint, depth, _rounded(size), (target.num_layers,))


def eagle3_for(target: DecoderConfig, fingerprint: str) -> StackConfig:
    """The sizes of EAGLE-3's drafter. It sees the inputs of three layers: one of the first, the middle one and one of
    the last. Its feed-forward layer makes room for the projection of the three."""
    count, width = target.num_layers, target.hidden_size
    sees = tuple(sorted({min(2, count - 1), count // 2, max(count - 3, 1)}))
    size = target.intermediate_size - (len(sees) * width * width) / (3 * width)
    return _stack(EAGLE3, target, fingerprint, 1, _rounded(size), sees)


def independent_for(target: DecoderConfig, fingerprint: str, *, depth: int = 1) -> StackConfig:
    """The sizes of a drafter that sees tokens alone: layers as the target's."""
    return _stack(INDEPENDENT, target, fingerprint, depth, target.intermediate_size, ())


def _stack(
    method: str, target: DecoderConfig, fingerprint: str, depth: int, size: int, sees: tuple[int, ...]
) -> StackConfig:
    kv_heads = target.num_kv_heads if depth == 1 or method == INDEPENDENT else _half(target)
    its = of_target(target)
    return StackConfig(method, fingerprint, **its, depth=depth, kv_heads=kv_heads, intermediate_size=size, sees=sees)


def observed_layers(count: int) -> tuple[int, ...]:
    """The layers to observe of a model that has `count`: all of them, or evenly spaced ones, the last among them."""
    few = min(count, MOST_OBSERVED)
    return tuple((at + 1) * count // few - 1 for at in range(few))


def _budget(target: DecoderConfig) -> int:
    """The parameters of EAGLE-2's drafter."""
    width, queries = target.hidden_size, target.num_heads * target.head_dim
    layer = _attention(width, queries, target.num_kv_heads * target.head_dim) + 3 * width * target.intermediate_size
    return layer + 2 * width * width


def _attention(outer: int, inner: int, kv: int) -> int:
    return 2 * outer * inner + 2 * outer * kv


def _half(target: DecoderConfig) -> int:
    """Half as many key/value heads as the target has, or the next smaller number that divides its query heads."""
    kv_heads = max(1, target.num_kv_heads // 2)
    while target.num_heads % kv_heads:
        kv_heads -= 1
    return kv_heads


def _possible_heads(observed: int, most: int) -> list[int]:
    """Numbers of heads that divide the observer's width into even parts of 16 or more; 1 if none does."""
    return [n for n in range(1, most + 1) if observed % n == 0 and observed // n >= 16 and not observed // n % 2] or [1]


def _rounded(units: float) -> int:
    return max(32, 32 * round(units / 32))
