"""The trained drafters of the contracts, with random weights."""

from __future__ import annotations

from typing import Any

from foretoken.drafters.block import BlockDrafter
from foretoken.drafters.crossing import CrossingDrafter, CrossingTreeDrafter
from foretoken.drafters.eagle import EagleDrafter, EagleTreeDrafter
from foretoken.drafters.mixture import MixtureDrafter, MixtureTreeDrafter
from foretoken.protocol.roles import Drafter
from foretoken.sampling.sampler import Sampler
from tests.contracts.stage import Stage
from tests.fakes import without_views
from tests.mixtures import block_and_observer, decoder_and_observer, following_decoder
from tests.published import filling_decoder, filling_drafter
from tests.published_mixture import crossing_and_observer
from tests.world import VOCABULARY


def mixture(
    stage: Stage,
    shape: str | None = None,
    inner: Drafter | None = None,
    *,
    beside: bool = True,
    inferred: int = 0,
) -> Drafter:
    """A Mixture of Attentions with random weights, which do little: it repeats what a token alone suggests."""
    model, observer = decoder_and_observer(stage.world.target, inferred=inferred)
    common = {"name": "mixture", "vocab_size": VOCABULARY, "below": without_views(inner), "observer": observer}
    common["beside"] = stage.caches if beside else None
    if shape is None:
        return MixtureDrafter(model=model, samplers=Sampler, **common)
    return MixtureTreeDrafter(model=model, samplers=Sampler, shape=shape, sharpness=1.0, **common)


def published_mixture(
    stage: Stage, shape: str | None = None, inner: Drafter | None = None, *, beside: bool = True
) -> Drafter:
    """A published Mixture of Attentions with random weights, which do little."""
    model, observer = crossing_and_observer(stage.world.target)
    common = {"name": "published", "vocab_size": VOCABULARY, "below": without_views(inner), "observer": observer}
    common["beside"] = stage.caches if beside else None
    if shape is None:
        return CrossingDrafter(model=model, samplers=Sampler, **common)
    return CrossingTreeDrafter(model=model, samplers=Sampler, shape=shape, sharpness=1.0, **common)


def block(
    stage: Stage,
    shape: str = "best-first",
    inner: Drafter | None = None,
    *,
    beside: bool = True,
    inferred: int = 0,
    confidence: float = 0.0,
) -> Drafter:
    """A Mixture of Attentions that drafts in one pass, with random weights, which do little."""
    model, observer = block_and_observer(stage.world.target, inferred=inferred)
    return BlockDrafter(
        model=model,
        samplers=Sampler,
        name="block",
        vocab_size=VOCABULARY,
        below=without_views(inner),
        observer=observer,
        beside=stage.caches if beside else None,
        shape=shape,
        sharpness=1.0,
        pauses=True,
        confidence=confidence,
    )


def eagle(stage: Stage, method: str, shape: str | None = None) -> Drafter:
    """One of EAGLE's with random weights, which do little."""
    model = following_decoder(stage.world.target, method)
    common: dict[str, Any] = {"name": method, "vocab_size": VOCABULARY, "model": model, "samplers": Sampler}
    if shape is None:
        return EagleDrafter(**common)
    return EagleTreeDrafter(shape=shape, sharpness=1.0, **common)


def dflash(stage: Stage, shape: str = "best-first", confidence: float = 0.0, **sizes: bool) -> Drafter:
    """A published DFlash with random weights."""
    return filling_drafter(filling_decoder(stage.world.target, **sizes), VOCABULARY, shape=shape, confidence=confidence)
