"""Every drafter, shipped or fake. A row here is all that the contracts need to know of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from foretoken.decoder.caches import Caches
from foretoken.drafters import DRAFTERS
from foretoken.types import Drafter
from tests.fakes import Delayed, Halves, KeysValues, Ladder, LastLayer, Liar, OverBudget, Scripted, Silent
from tests.world import World, weak_decoder

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


def _shipped(name: str) -> Callable[[Stage], Drafter]:
    return lambda stage: DRAFTERS[name].load()()  # type: ignore[no-any-return]


TABLE: dict[str, Entry] = {
    **{name: Entry(_shipped(name), shows=() if name == "none" else EVENTS) for name in DRAFTERS},
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
