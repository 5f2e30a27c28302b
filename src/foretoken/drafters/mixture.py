"""Mixture of Attentions: a small trained decoder that sees what the target has computed.

The drafter has two layers. The first attends to the tokens of the text. The second attends to one vector for each token
that the target has read, and to the drafter's own states of the tokens behind. The observer makes these vectors of the
keys and values of some layers (`foretoken.trained`). The drafter writes the vectors' keys and values into its own
cache, over those of its own states. If it ends with the target's last layers (target layer inference), their keys and
values are copied there, too. Everything else is that of any decoder that drafts: chains, trees, ranking with the
target's noise, and lookup below it.

The observer runs beside the target. In one process it is asked when a draft is made, and looks at a view of the
target's cache: where the pace drafts nothing, nothing is observed. Elsewhere it is an extractor, whose vectors arrive
with the verdicts.

Source: Zimmer et al. 2025, "Mixture of Attentions for speculative decoding", sections 3.1 and 3.2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field

import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.views import Views
from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.reading import DecoderDrafter, Open
from foretoken.drafters.tree import TreeDrafter
from foretoken.protocol.roles import Drafter
from foretoken.protocol.telemetry import Cost, Work
from foretoken.protocol.types import Features, Needs, Turn, Verdict
from foretoken.trained.config import LAYERS
from foretoken.trained.observer import FEATURE, LAST, ObservingLayers

_FEW = 4  # tokens of the text that may lie behind what the observer has seen when a draft begins
_SEES = 1  # the layer that attends to the observer's vectors
_Piece = tuple[int, Mapping[str, torch.Tensor]]  # features of some positions, with the first of them


@dataclass(eq=False, kw_only=True)
class Observing(DecoderDrafter):
    """What a chain and a tree of a Mixture of Attentions have in common. It stands before `ModelDrafter` or
    `TreeDrafter`, whose methods it calls though its own base lacks them.

    observer: an extractor. beside: views of the target's caches, at which the observer looks when a draft is made.
    None: its vectors come with the verdicts.
    """

    observer: ObservingLayers
    beside: Views | None = None
    below: InitVar[Callable[[Views], Drafter] | None] = None
    extractors: tuple[ObservingLayers, ...] = field(init=False)
    _waiting: dict[int, list[Features]] = field(init=False, default_factory=dict)  # by sequence: came with verdicts

    def __post_init__(self, below: Callable[[Views], Drafter] | None) -> None:
        super().__post_init__(below)  # type: ignore[misc]
        self.extractors = () if self.beside is not None else (self.observer,)
        self.needs = Needs(extractors=tuple(each.name for each in self.extractors))

    def observe(self, verdicts: Sequence[Verdict]) -> list[Work]:
        """Keep what was accepted, and what the observer has seen of it."""
        for verdict in verdicts:
            if verdict.features is not None and verdict.sequence in self._readings:
                self._waiting.setdefault(verdict.sequence, []).append(verdict.features)
        work: list[Work] = list(super().observe(verdicts) or ())  # type: ignore[misc]
        return work

    def opened(self, turn: Turn, count: int) -> Open | None:
        """A sequence ready for a draft. What the observer sees of committed rows takes the place of the drafter's own
        states."""
        opened = super().opened(turn, count)
        if opened is not None and len(opened.text) > _FEW:  # as of a prompt: first read, then seen, and then drafted
            work = self._read(turn.sequence, len(self._readings[turn.sequence].text) - 1)
            opened = super().opened(turn, count)
            assert opened is not None
            opened.work = [*work, *opened.work]
        if opened is not None:
            opened.work += self._write(turn.sequence, opened.cache)
        return opened

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        super().end(sequence)
        self._waiting.pop(sequence, None)

    def _read(self, sequence: int, stop: int) -> list[Work]:
        """A prompt is observed chunk by chunk, as it is read."""
        work = super()._read(sequence, stop)
        return [*work, *self._write(sequence, self._readings[sequence].open())] if work else []

    def _write(self, sequence: int, cache: Cache) -> list[Work]:
        """Overwrite the keys and values of committed positions with those of the observer's vectors, as far as the
        target has read and the cache goes. The work is no pass."""
        began, reading = time.perf_counter(), self._readings[sequence]
        found, cost = self._vectors(sequence, reading.seen, cache.length)
        for start, tensors in found:
            vectors = tensors[FEATURE]
            positions = range(start, start + len(vectors))
            cache.overwrite(_SEES, start, *self.model.keys_and_values(_SEES, vectors, positions))
            for own, theirs in enumerate(self.observer.config.ends, LAYERS):
                cache.overwrite(own, start, *(tensors[f"{name}.{theirs}"] for name in LAST))
            reading.seen = positions.stop
        count = sum(len(tensors[FEATURE]) for _, tensors in found)
        return [Work(self.name, count, began, time.perf_counter() - began, cost={self.name: cost})] if found else []

    def _vectors(self, sequence: int, start: int, stop: int) -> tuple[list[_Piece], Cost]:
        """What the observer has of positions from `start` to `stop` at most, each piece with its first position, and
        what it costs here."""
        if self.beside is None:
            return self._came(sequence, start, stop), Cost()
        theirs = self.beside.view(sequence, length=stop)
        if theirs.length <= start:
            return [], Cost()
        return [(start, self.observer(theirs, start, theirs.length))], self.observer.cost(theirs.length - start)

    def _came(self, sequence: int, start: int, stop: int) -> list[_Piece]:
        """The pieces that came with verdicts. What lies behind `stop` goes on waiting. Positions whose verdict was
        lost, with its features, keep the drafter's own keys and values."""
        found: list[_Piece] = []
        waiting: list[Features] = []
        for features in self._waiting.pop(sequence, ()):
            tensors, first = features.tensors, features.start
            count = len(tensors[FEATURE])
            begin, end = max(start, first), min(stop, first + count)
            if begin < end:
                found.append((begin, {name: each[begin - first : end - first] for name, each in tensors.items()}))
            if first + count > stop:
                rest = max(stop - first, 0)
                waiting.append(Features(first + rest, {name: each[rest:] for name, each in tensors.items()}))
        if waiting:
            self._waiting[sequence] = waiting
        return found


@dataclass(eq=False, kw_only=True)
class MixtureDrafter(Observing, ModelDrafter):
    """A chain."""


@dataclass(eq=False, kw_only=True)
class MixtureTreeDrafter(Observing, TreeDrafter):
    """A tree."""
