"""Every drafter, shipped or fake. A row here is all that the contracts need to know of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.drafters import DRAFTERS
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.model import ModelDrafter
from foretoken.drafters.tree import TreeDrafter
from foretoken.sampling.sampler import Sampler
from foretoken.trees.grow import SHAPES
from foretoken.types import Drafter
from tests.fakes import Delayed, Halves, KeysValues, Ladder, LastLayer, Liar, OverBudget, Scripted, Silent
from tests.world import VOCABULARY, World, weak_decoder

EVENTS = ("drafted", "accepted", "rejected", "fully accepted")


@dataclass(frozen=True)
class Stage:
    """What a drafter may need to be made: the world, the target's caches, the truth, and chain or tree."""

    world: World
    caches: Caches
    shape: str

    @property
    def truth(self) -> Mapping[int, tuple[int, ...]]:
        """By sequence: the prompt and its plain continuation."""
        return {s: plain.prompt + plain.tokens for s, plain in enumerate(self.world.plains)}


@dataclass(frozen=True)
class Entry:
    """A drafter, and which events a run over all contracts must have shown of it."""

    make: Callable[[Stage], Drafter]
    shows: tuple[str, ...] = EVENTS


_poor, _poorer = weak_decoder(1, noise=0.25), weak_decoder(1, noise=0.5)


def _model(stage: Stage, inner: Drafter | None = None, *, model: Decoder = _poor, shared: bool = False) -> Drafter:
    return ModelDrafter(
        model,
        Sampler,
        name="model",
        vocab_size=VOCABULARY,
        tokens=99,
        inner=inner,
        inner_tokens=3,
        views=stage.caches if shared else None,
    )


def _tree(stage: Stage, shape: str, *, shared: bool = False) -> Drafter:
    return TreeDrafter(
        _poor,
        Sampler,
        name="tree",
        vocab_size=VOCABULARY,
        shape=shape,
        width=3,
        depth=5,
        nodes=15,
        sharpness=1.0,
        views=stage.caches if shared else None,
    )


def _shipped(name: str) -> Callable[[Stage], Drafter]:
    return lambda stage: DRAFTERS[name].make()


TABLE: dict[str, Entry] = {
    **{name: Entry(_shipped(name), shows=() if name == "none" else EVENTS) for name in DRAFTERS},
    "model": Entry(_model),
    "model, lookup": Entry(lambda s: _model(s, LookupDrafter())),
    "model, model, lookup": Entry(lambda s: _model(s, _model(s, LookupDrafter(), model=_poorer))),
    "model, tree": Entry(lambda s: _model(s, _tree(s, "beam"))),
    "model, scripted": Entry(lambda s: _model(s, Scripted(s.truth, s.shape))),
    "model on a view": Entry(lambda s: _model(s, shared=True)),
    "model on a view, model": Entry(lambda s: _model(s, _model(s, model=_poorer), shared=True)),
    **{f"tree, {shape}": Entry(lambda s, shape=shape: _tree(s, shape)) for shape in SHAPES},
    "tree on a view": Entry(lambda s: _tree(s, "beam", shared=True)),
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
}
