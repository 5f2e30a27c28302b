"""Every drafter, shipped or fake. A row here is all that the contracts need to know of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from foretoken.api.levels import DRAFT_INPUTS
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.low_bit import quantised
from foretoken.decoder.shapes import OUTPUT
from foretoken.decoder.views import Views
from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.earlier import EarlierTexts
from foretoken.drafters.fractal import FractalDrafter
from foretoken.drafters.fractal_published import PublishedFractalDrafter
from foretoken.drafters.ladder import name_levels
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.recipe import Context, Level, LoadedLevel, recipe_of
from foretoken.drafters.table import DRAFTERS
from foretoken.drafters.tree import TreeDrafter
from foretoken.formats import format_of
from foretoken.protocol.roles import Drafter
from foretoken.protocol.types import Budget
from foretoken.sampling.sampler import Sampler
from foretoken.sampling.samplers import Samplers
from foretoken.settings.load import LoadSettings
from foretoken.trees.grow import SHAPES
from tests.contracts.stage import Stage
from tests.contracts.trained import block, dflash, eagle, mixture, published_mixture
from tests.fakes import Delayed, GoesOn, Known, Ladder, Liar, OverBudget, Scripted, Silent, without_views
from tests.fakes_inside import Halves, KeysValues, LastLayer
from tests.fakes_translated import Foreign, translated
from tests.world import VOCABULARY, weak_decoder

_ANY, _TREE = Budget(99, 99), Budget(15, 5, 3)
_THREE = Budget(3, 3)
EVENTS = ("drafted", "accepted", "rejected", "fully accepted")


@dataclass(frozen=True)
class Entry:
    """A drafter, and which events a run over all contracts must have shown of it."""

    make: Callable[[Stage], Drafter]
    shows: tuple[str, ...] = EVENTS
    below: tuple[Budget, ...] = ()  # budgets of the levels below the first
    own: Budget = _ANY  # what bounds the first, whatever a run allows

    def budgets(self, tokens: int) -> list[Budget]:
        """Of all levels, in a run that allows the first one so many tokens."""
        depth = min(self.own.depth, tokens)
        return [replace(self.own, rows=min(self.own.rows, tokens), depth=depth), *self.below]


_poor, _poorer = weak_decoder(1, noise=0.25), weak_decoder(1, noise=0.5)


def _model(
    stage: Stage,
    inner: Drafter | None = None,
    *,
    model: Decoder = _poor,
    shared: bool = False,
    confidence: float = 0.0,
) -> Drafter:
    return ModelDrafter(
        model,
        Sampler,
        name="model",
        vocab_size=VOCABULARY,
        confidence=confidence,
        below=without_views(inner),
        views=stage.caches if shared else None,
    )


def _tree(
    stage: Stage,
    shape: str,
    inner: Drafter | None = None,
    *,
    model: Decoder = _poor,
    shared: bool = False,
) -> TreeDrafter:
    return TreeDrafter(
        model,
        Sampler,
        name="tree",
        vocab_size=VOCABULARY,
        shape=shape,
        sharpness=1.0,
        below=without_views(inner),
        views=stage.caches if shared else None,
    )


def _spoiled(text: Sequence[int]) -> list[int]:
    """A text with every ninth token wrong."""
    return [(token + 1) % VOCABULARY if at % 9 == 8 else token for at, token in enumerate(text)]


def _kept(texts: Iterable[Sequence[int]]) -> EarlierTexts:
    """Outputs that were generated before."""
    earlier = EarlierTexts()
    for text in texts:
        earlier.keep(text)
    return earlier


@cache
def copy_of(target: Decoder, format: str, inputs: str, own: tuple[int, ...] = ()) -> Decoder:
    """A target's copy in a low-bit format, which shares its memory. own: layers that stay the target's."""
    weights = quantised(target.weights, target.config, format_of(format), inputs=inputs, own=own)
    return Decoder(target.config, weights, arithmetic=target.arithmetic, threads=1)


def _substitutes(target: Decoder) -> Decoder:
    return copy_of(target, "int4", "int8", (1, OUTPUT))


def _above(stage: Stage, *formats: str) -> Drafter:
    """A copy of the target, with a cache of its own, above other copies on views of it."""
    return ModelDrafter(
        copy_of(stage.world.target, "int8", "int8"),
        Sampler,
        name="int8",
        vocab_size=VOCABULARY,
        below=lambda views: _stacked(stage, *formats, views=views),
    )


def _stacked(stage: Stage, *formats: str, views: Views | None = None) -> Drafter:
    """A ladder of the target's copies, each on views of the one above it, with lookup behind the last."""

    def made(formats: Sequence[str], views: Views) -> Drafter:
        if not formats:
            return LookupDrafter()
        return ModelDrafter(
            copy_of(stage.world.target, formats[0], DRAFT_INPUTS),
            Sampler,
            name=formats[0],
            vocab_size=VOCABULARY,
            below=partial(made, formats[1:]),
            views=views,
        )

    return made(formats, views or stage.caches)


def _copy(
    format: str,
    *,
    inputs: str = DRAFT_INPUTS,
    shape: str | None = None,
    shared: bool = False,
    own: tuple[int, ...] = (),
) -> Callable[[Stage], Drafter]:
    """Of the target, as a draft: a chain, or a tree of a shape."""

    def make(stage: Stage) -> Drafter:
        model = copy_of(stage.world.target, format, inputs, own)
        if shape is not None:
            return _tree(stage, shape, model=model, shared=shared)
        return _model(stage, model=model, shared=shared)

    return make


def _fractal(
    *layers: int,
    format: str = "int8",
    inputs: str = DRAFT_INPUTS,
    window: int = 2,
    slots: str = "recycle",
    patient: bool = False,
) -> Callable[[Stage], Drafter]:
    """A copy of the target, embedded in it before some of its three layers."""

    def make(stage: Stage) -> Drafter:
        return (PublishedFractalDrafter if patient else FractalDrafter)(
            copy_of(stage.world.target, format, inputs),
            Sampler,
            name="fractal",
            vocab_size=VOCABULARY,
            target=stage.world.target,
            layers=layers,
            window=window,
            slots=slots,
            views=stage.caches,
        )

    return make


def _shipped(name: str) -> Callable[[Stage], Drafter]:
    levels = name_levels(LoadSettings(draft=name))
    return lambda stage: Context(stage.world.target, None, Samplers(None), "walk", _nothing).make(levels)


def _nothing(level: Level) -> LoadedLevel:
    raise AssertionError(f"nothing stands behind {level.name}")


# which events the contracts must see of a drafter of `drafters/table.py`, if not all: a text of the contracts never
# repeats a token, for instance, so that who proposes the last one again is never right
SHOWS: dict[str, tuple[str, ...]] = {"none": (), "toy": ("drafted", "rejected")}


def shipped() -> dict[str, Entry]:
    """Those of the table of drafters for which nothing is loaded."""
    return {
        name: Entry(_shipped(name), shows=SHOWS.get(name, EVENTS))
        for name in DRAFTERS
        if not recipe_of(DRAFTERS[name]).has_decoder
    }


TABLE: dict[str, Entry] = {
    **shipped(),
    "fractal, int8, last layer": Entry(_fractal(2)),
    "fractal, mxfp4, first layer, lookup": Entry(_fractal(0, format="mxfp4", window=4, slots="lookup")),
    "fractal, int2, all layers, fixed, patient": Entry(
        _fractal(0, 1, 2, format="int2", window=1, slots="fixed", patient=True)
    ),
    "fractal, mxfp4, all layers, bf16 inputs": Entry(_fractal(0, 1, 2, format="mxfp4", inputs="bf16", window=3)),
    "fractal, int2, middle, window of 30": Entry(_fractal(1, format="int2", window=30)),
    "fractal, int2, outer layers, lookup, patient": Entry(
        _fractal(0, 2, format="int2", window=4, slots="lookup", patient=True)
    ),
    "model": Entry(_model),
    "model that ends chains where it is unsure": Entry(lambda s: _model(s, confidence=0.3)),
    "model that ends chains where it is unsure, lookup": Entry(
        lambda s: _model(s, LookupDrafter(), confidence=0.3), below=(_THREE,)
    ),
    "model, lookup": Entry(lambda s: _model(s, LookupDrafter()), below=(_THREE,)),
    "model, model, lookup": Entry(
        lambda s: _model(s, _model(s, LookupDrafter(), model=_poorer)), below=(_THREE, _THREE)
    ),
    "model, tree": Entry(lambda s: _model(s, _tree(s, "beam")), below=(Budget(3, 3, 3),)),
    "model, scripted": Entry(lambda s: _model(s, Scripted(s.truth, s.shape)), below=(_THREE,)),
    "lookup, left out by the model above": Entry(
        lambda s: _model(s, LookupDrafter()), below=(_THREE,), own=Budget(0, 0)
    ),
    "model on a view": Entry(lambda s: _model(s, shared=True)),
    "model on a view, model": Entry(lambda s: _model(s, _model(s, model=_poorer), shared=True), below=(_THREE,)),
    **{f"tree, {shape}": Entry(lambda s, shape=shape: _tree(s, shape), own=_TREE) for shape in SHAPES},
    "tree on a view": Entry(lambda s: _tree(s, "beam", shared=True), own=_TREE),
    "mxfp4": Entry(_copy("mxfp4")),
    "mxfp4 on a view": Entry(_copy("mxfp4", shared=True)),
    "mxfp4 on a view, bf16 inputs": Entry(_copy("mxfp4", inputs="bf16", shared=True)),
    "int2": Entry(_copy("int2", inputs="bf16")),
    "int2 between layers of the target's own": Entry(_copy("int2", own=(0, 2))),
    "int2 below layers of the target's own, on a view": Entry(_copy("int2", own=(1, 2), shared=True)),
    "int2 on a view": Entry(_copy("int2", shared=True)),
    "tree, mxfp4 on a view": Entry(_copy("mxfp4", shape="beam", shared=True), own=_TREE),
    "tree, int2": Entry(_copy("int2", shape="best-first"), own=_TREE),
    "mxfp4, int2, lookup on stacked views": Entry(
        lambda s: _stacked(s, "mxfp4", "int2"), below=(_THREE, _THREE), own=Budget(4, 4)
    ),
    "int2 on a view of the mxfp4 copy above, which is left out": Entry(
        lambda s: _stacked(s, "mxfp4", "int2"), below=(_THREE, _THREE), own=Budget(0, 0)
    ),
    "int2 on a view of the int8 copy above, which is left out": Entry(
        lambda s: _above(s, "int2"), below=(_THREE, _THREE), own=Budget(0, 0)
    ),
    "tree, lookup": Entry(lambda s: _tree(s, "best-first", LookupDrafter()), below=(_THREE,), own=_TREE),
    "tree that ends where it is unsure, on a view, lookup": Entry(
        lambda s: _tree(s, "best-first", LookupDrafter(), shared=True),
        below=(_THREE,),
        own=replace(_TREE, least=0.3, dues=tuple(0.1 * count for count in range(9))),
    ),
    "mixture": Entry(mixture),
    "mixture, lookup": Entry(lambda s: mixture(s, None, LookupDrafter()), below=(_THREE,)),
    "mixture, whose features come with the verdicts": Entry(lambda s: mixture(s, beside=False)),
    "mixture, tree, whose features come with the verdicts": Entry(
        lambda s: mixture(s, "beam", beside=False), own=_TREE
    ),
    "mixture, tree": Entry(lambda s: mixture(s, "beam"), own=_TREE),
    "mixture that ends with the model's last layer": Entry(lambda s: mixture(s, inferred=1)),
    "mixture that ends with the model's last layers, whose features come with the verdicts": Entry(
        lambda s: mixture(s, inferred=2, beside=False)
    ),
    "mixture, published": Entry(published_mixture),
    "mixture, published, lookup": Entry(lambda s: published_mixture(s, None, LookupDrafter()), below=(_THREE,)),
    "mixture, published, whose features come with the verdicts": Entry(lambda s: published_mixture(s, beside=False)),
    "mixture, published, tree": Entry(lambda s: published_mixture(s, "beam"), own=_TREE),
    "mixture, published, tree, lookup": Entry(
        lambda s: published_mixture(s, "best-first", LookupDrafter()), below=(_THREE,), own=_TREE
    ),
    "block": Entry(block),
    "block, unsure": Entry(lambda s: block(s, confidence=0.3)),
    "block, lookup": Entry(lambda s: block(s, inner=LookupDrafter()), below=(_THREE,)),
    "block, tree": Entry(lambda s: block(s, "best-first"), own=_TREE),
    "block, beam": Entry(lambda s: block(s, "beam"), own=_TREE),
    "block, full tree": Entry(lambda s: block(s, "full"), own=_TREE),
    "block, tree, scripted": Entry(
        lambda s: block(s, "best-first", Scripted(s.truth, s.shape)), below=(_THREE,), own=_TREE
    ),
    "block that ends with the model's last layer, whose features come with the verdicts": Entry(
        lambda s: block(s, inferred=1, beside=False)
    ),
    "eagle2": Entry(lambda s: eagle(s, "eagle2")),
    "eagle2, tree": Entry(lambda s: eagle(s, "eagle2", "beam"), own=_TREE),
    "eagle3": Entry(lambda s: eagle(s, "eagle3")),
    "eagle3, tree": Entry(lambda s: eagle(s, "eagle3", "best-first"), own=_TREE),
    "eagle3, published": Entry(lambda s: eagle(s, "published")),
    "eagle3, published, tree": Entry(lambda s: eagle(s, "published", "best-first"), own=_TREE),
    "dflash": Entry(dflash),
    "dflash, of some tokens, unsure": Entry(lambda s: dflash(s, confidence=0.2, reduced=True)),
    "dflash, tree": Entry(lambda s: dflash(s, "best-first"), own=_TREE),
    "dflash, beam": Entry(lambda s: dflash(s, "beam", from_last=True), own=_TREE),
    "mixture, tree, lookup": Entry(lambda s: mixture(s, "best-first", LookupDrafter()), below=(_THREE,), own=_TREE),
    "tree, scripted": Entry(lambda s: _tree(s, "best-first", Scripted(s.truth, s.shape)), below=(_THREE,), own=_TREE),
    "lookup, left out by the tree above": Entry(
        lambda s: _tree(s, "best-first", LookupDrafter()), below=(_THREE,), own=Budget(0, 0)
    ),
    "model, tree, lookup": Entry(
        lambda s: _model(s, _tree(s, "best-first", LookupDrafter(), model=_poorer)), below=(Budget(3, 3, 3), _THREE)
    ),
    "lookup, in files, too": Entry(lambda s: LookupDrafter(files=Known([_spoiled(text) for text in s.truth.values()]))),
    "lookup, in earlier outputs, too": Entry(lambda s: LookupDrafter(earlier=_kept(map(_spoiled, s.truth.values())))),
    "drafts with another tokenizer, translated": Entry(lambda s: translated(Foreign(s.truth, s.shape))),
    "mxfp4, unrounded inputs, the target's own output layer": Entry(_copy("mxfp4", inputs="fp32", own=(OUTPUT,))),
    "tree, substitutes of two layers": Entry(_copy("int4", shape="beam", shared=True, own=(1, OUTPUT)), own=_TREE),
    "scripted": Entry(lambda s: Scripted(s.truth, s.shape)),
    "two-lengths": Entry(lambda s: Scripted(s.truth, s.shape, lengths=(1, 4))),
    "silent": Entry(lambda s: Silent(s.shape), shows=()),
    "liar": Entry(lambda s: Liar(s.truth, s.shape)),
    "over-budget": Entry(lambda s: OverBudget(s.truth, s.shape)),
    "ladder": Entry(lambda s: Ladder(_poor, _poorer, s.caches, s.shape)),
    "keys-values": Entry(lambda s: KeysValues(_poor, s.shape)),
    "last-layer": Entry(lambda s: LastLayer(s.world.target, s.shape)),
    "halves": Entry(lambda s: Halves(s.world.target, s.caches, s.shape)),
    "delayed": Entry(lambda s: Delayed(Scripted(s.truth, s.shape))),
    "tree, substitutes of two layers, that goes on while it is checked": Entry(
        lambda s: GoesOn(
            _tree(s, "best-first", LookupDrafter(), model=_substitutes(s.world.target), shared=True),
        ),
        below=(_THREE,),
        own=_TREE,
    ),
}
