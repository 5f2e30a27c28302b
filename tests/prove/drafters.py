"""What drafts in a proof: every drafter, shipped or fake, of a random make."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.views import Views
from foretoken.drafters.block import BlockDrafter
from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.crossing import CrossingDrafter, CrossingTreeDrafter
from foretoken.drafters.eagle import EagleDrafter, EagleTreeDrafter
from foretoken.drafters.fractal import FractalDrafter
from foretoken.drafters.fractal_published import PublishedFractalDrafter
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.mixture import MixtureDrafter, MixtureTreeDrafter
from foretoken.drafters.nothing import NothingDrafter
from foretoken.drafters.slots import SLOTS
from foretoken.drafters.tree import TreeDrafter
from foretoken.formats import FORMATS, Format, format_of
from foretoken.protocol.roles import Drafter
from foretoken.protocol.types import Budget, Request, SamplingParams
from foretoken.sampling.sampler import Sampler
from foretoken.trees.grow import SHAPES
from tests.fakes import (
    Delayed,
    Known,
    Ladder,
    Liar,
    OverBudget,
    RandomTrees,
    Scripted,
    Silent,
    without_views,
)
from tests.fakes_inside import Halves, KeysValues, LastLayer
from tests.mixtures import block_and_observer, decoder_and_observer, following_decoder
from tests.published import filling_decoder, filling_drafter
from tests.published_mixture import crossing_and_observer

Truth = dict[int, tuple[int, ...]]  # by sequence: prompt and plain continuation


@dataclass(frozen=True)
class Stage:
    """What a drafter may be made from."""

    target: Decoder
    caches: Caches
    truth: Truth
    shape: str
    copy: Callable[[float], Decoder]
    low: Callable[[Format, str], Decoder]  # a copy in a low-bit format, with such inputs
    chance: random.Random


def _model(
    stage: Stage,
    noise: float,
    inner: Drafter | Callable[[Views], Drafter] | None = None,
    views: Views | None = None,
    model: Decoder | None = None,
) -> Drafter:
    model = stage.copy(noise) if model is None else model
    return ModelDrafter(
        model,
        sampler,
        name="model",
        vocab_size=model.config.valid_vocab_size,
        confidence=stage.chance.choice([0.0, 0.0, 0.4]),
        below=inner if callable(inner) else without_views(inner),
        views=views,
    )


def _tree(stage: Stage, views: Views | None = None, model: Decoder | None = None) -> Drafter:
    model = stage.copy(0.1) if model is None else model
    return TreeDrafter(
        model,
        sampler,
        name="tree",
        vocab_size=model.config.valid_vocab_size,
        shape=stage.chance.choice(SHAPES),
        sharpness=stage.chance.choice([0.2, 1.0]),
        views=views,
    )


def budgets_of(chance: random.Random, count: int) -> list[Budget]:
    """Of the first level and of those below it, if there are any."""
    below = [chance.choice([Budget(1, 1), Budget(3, 3), Budget(4, 2, 2)]) for _ in range(3)]
    return [Budget(count, chance.choice([3, 4, 17, 17]), chance.choice([1, 2, 4])), *below]


def _low_bit(stage: Stage, name: str) -> Decoder:
    groups = FORMATS[name].groups
    return stage.low(format_of(name, stage.chance.choice(groups)), stage.chance.choice(["int8", "int8", "bf16"]))


def _copy(stage: Stage, name: str) -> Drafter:
    """The target's copy in a format: a chain or a tree, on views of the target's cache or in a cache of its own."""
    model, views = _low_bit(stage, name), stage.chance.choice([stage.caches, None])
    if stage.chance.random() < 0.3:
        return _tree(stage, views, model)
    return _model(stage, 0, stage.chance.choice([None, LookupDrafter(min_match=1)]), views, model)


def _stacked(stage: Stage) -> Drafter:
    """A ladder of two or three copies, each on views of what the one above it checks with."""
    models = [_low_bit(stage, name) for name in stage.chance.sample(list(FORMATS), stage.chance.choice([2, 3]))]
    last: Drafter | None = stage.chance.choice([None, LookupDrafter(min_match=1)])

    def made(models: Sequence[Decoder], views: Views) -> Drafter:
        model, *rest = models
        return _model(stage, 0, partial(made, rest) if rest else last, views, model)

    return made(models, stage.caches)


def _fractal(stage: Stage) -> Drafter:
    """The target's copy in a format, embedded before some of its layers."""
    model = _low_bit(stage, stage.chance.choice(list(FORMATS)))
    count = model.config.num_layers
    kind = PublishedFractalDrafter if stage.chance.random() < 0.5 else FractalDrafter
    return kind(
        model,
        sampler,
        name="fractal",
        vocab_size=model.config.valid_vocab_size,
        target=stage.target,
        layers=tuple(sorted(stage.chance.sample(range(count), stage.chance.randint(1, count)))),
        window=stage.chance.choice([1, 2, 4, 12]),
        slots=stage.chance.choice(list(SLOTS)),
        views=stage.caches,
    )


def _mixture(stage: Stage) -> Drafter:
    """A Mixture of Attentions with random weights, one of ours or a published one."""
    seed, scale = stage.chance.randrange(10**6), stage.chance.choice([0.02, 0.2])
    published = stage.chance.random() < 0.3
    if published:
        model, observer = crossing_and_observer(stage.target, seed, scale)
    else:
        model, observer = decoder_and_observer(stage.target, seed, scale, inferred=stage.chance.choice([0, 0, 1]))
    inner = without_views(stage.chance.choice([None, LookupDrafter(min_match=1)]))
    common = {"name": "mixture", "vocab_size": model.config.valid_vocab_size, "observer": observer, "below": inner}
    common["beside"] = stage.chance.choice([stage.caches, None])
    if stage.chance.random() < 0.5:
        chain = CrossingDrafter if published else MixtureDrafter
        return chain(model=model, samplers=sampler, **common)
    shape = "best-first" if inner is not None else stage.chance.choice(SHAPES)
    tree = CrossingTreeDrafter if published else MixtureTreeDrafter
    return tree(model=model, samplers=sampler, shape=shape, sharpness=1.0, **common)


def _block(stage: Stage) -> Drafter:
    """One that drafts in a pass, with random weights."""
    seed, scale = stage.chance.randrange(10**6), stage.chance.choice([0.02, 0.2])
    model, observer = block_and_observer(stage.target, seed, scale, inferred=stage.chance.choice([0, 0, 1]))
    inner = stage.chance.choice([None, LookupDrafter(min_match=1)])
    return BlockDrafter(
        model=model,
        samplers=sampler,
        name="block",
        vocab_size=model.config.valid_vocab_size,
        observer=observer,
        beside=stage.chance.choice([stage.caches, None]),
        below=without_views(inner),
        shape="best-first" if inner is not None else stage.chance.choice(SHAPES),
        sharpness=1.0,
        pauses=True,
        confidence=stage.chance.choice([0.0, 0.2]),
    )


def _eagle(stage: Stage) -> Drafter:
    """One of EAGLE's with random weights."""
    seed, scale = stage.chance.randrange(10**6), stage.chance.choice([0.02, 0.2])
    method = stage.chance.choice(["eagle2", "eagle3", "published"])
    model = following_decoder(stage.target, method, seed, scale)
    common = {"name": method, "vocab_size": model.config.valid_vocab_size, "model": model, "samplers": sampler}
    if stage.chance.random() < 0.5:
        return EagleDrafter(**common)
    return EagleTreeDrafter(shape=stage.chance.choice(SHAPES), sharpness=1.0, **common)


def _dflash(stage: Stage) -> Drafter:
    """A published DFlash with random weights."""
    chance = stage.chance
    sizes = {name: chance.random() < 0.5 for name in ("reduced", "qk_norm", "from_last")}
    model = filling_decoder(stage.target, chance.randrange(10**6), chance.choice([0.02, 0.2]), **sizes)
    shape, confidence = chance.choice(SHAPES), chance.choice([0.0, 0.2])
    vocab_size = stage.target.config.valid_vocab_size
    return filling_drafter(model, vocab_size, shape=shape, confidence=confidence, samplers=sampler)


class Thirds:
    """A grammar of sorts: after each token, by what it is and where it stands, a third of all tokens must not come."""

    complete = False

    def __init__(self) -> None:
        self._tokens: list[int] = []

    def allowed(self, size: int) -> np.ndarray:
        last = self._tokens[-1] if self._tokens else 0
        return (np.arange(size) + 7 * last + len(self._tokens)) % 3 > 0

    def advance(self, token: int) -> None:
        self._tokens.append(token)

    def rewind(self, count: int) -> None:
        del self._tokens[len(self._tokens) - count :]


def sampler(request: Request) -> Sampler:
    """With the grammar, if the request names one."""
    return Sampler(request, None if request.sampling.constraint is None else Thirds())


SAMPLING = {
    "greedy, grammar": SamplingParams(constraint=("thirds", "")),
    "0.8, grammar": SamplingParams(temperature=0.8, seed=3, constraint=("thirds", "")),
    "greedy": SamplingParams(),
    "0.8": SamplingParams(temperature=0.8, top_p=0.95, seed=1),
    "1.3, penalties": SamplingParams(temperature=1.3, top_k=50, repetition_penalty=1.1, presence_penalty=0.2, seed=2),
}

DRAFTERS: dict[str, Callable[[Stage], Drafter]] = {
    "none": lambda s: NothingDrafter(),
    "lookup": lambda s: LookupDrafter(s.chance.choice([1, 2]), s.chance.choice([None, Known(list(s.truth.values()))])),
    "model": lambda s: _model(s, 0.1),
    "model, lookup": lambda s: _model(s, 0.1, LookupDrafter(min_match=1)),
    "model, model": lambda s: _model(s, 0.1, _model(s, 0.3)),
    "model on a view": lambda s: _model(s, 0.1, views=s.caches),
    "tree": lambda s: _tree(s),
    "tree on a view": lambda s: _tree(s, views=s.caches),
    **{f"{name} copy": (lambda s, name=name: _copy(s, name)) for name in FORMATS},  # type: ignore[misc]
    "stacked copies": _stacked,
    "embedded copy": _fractal,
    "mixture": _mixture,
    "block": _block,
    "eagle": _eagle,
    "dflash": _dflash,
    "scripted": lambda s: Scripted(s.truth, s.shape),
    "two-lengths": lambda s: Scripted(s.truth, s.shape, lengths=(1, 4)),
    "random-trees": lambda s: RandomTrees(s.truth, s.chance.randrange(10**6)),
    "silent": lambda s: Silent(s.shape),
    "liar": lambda s: Liar(s.truth, s.shape),
    "over-budget": lambda s: OverBudget(s.truth, s.shape),
    "delayed": lambda s: Delayed(Scripted(s.truth, s.shape)),
    "ladder": lambda s: Ladder(s.copy(0.1), s.copy(0.3), s.caches, s.shape),
    "keys-values": lambda s: KeysValues(s.copy(0.1), s.shape),
    "last-layer": lambda s: LastLayer(s.target, s.shape, sampler),
    "halves": lambda s: Halves(s.target, s.caches, s.shape),
}
