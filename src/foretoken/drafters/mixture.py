"""Mixture of Attentions: a small trained decoder that sees what the target has computed.

The drafter has two layers. The first attends to the tokens of the text. The second attends to one vector for each token
that the target has read, and to the drafter's own states of the tokens behind. (A block has more layers like the
second.) The observer makes these vectors of the keys and values of some layers (`foretoken.trained`). The drafter
writes the vectors' keys and values into its own cache. If it ends with the target's last layers (target layer
inference), their keys and values are copied there, too. So it runs no token that the target has read: neither a
prompt's, nor those of its drafts that were accepted. Everything else is that of any decoder that drafts: chains, trees,
ranking with the target's noise, and lookup below it.

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
from foretoken.decoder.rows import chain
from foretoken.decoder.views import Views
from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.reading import DecoderDrafter, Open
from foretoken.drafters.tree import TreeDrafter
from foretoken.protocol.roles import Drafter
from foretoken.protocol.telemetry import Cost, Work
from foretoken.protocol.types import Features, Needs, Request, Turn, Verdict
from foretoken.trained.observer import FEATURE, LAST, ObservingLayers, Sight

_SEES = 1  # the first layer that attends to the observer's vectors
_Piece = tuple[int, Mapping[str, torch.Tensor]]  # features of some positions, with the first of them


@dataclass(eq=False, kw_only=True)
class Observing(DecoderDrafter):
    """What a chain and a tree of a Mixture of Attentions have in common. It stands before `ModelDrafter` or
    `TreeDrafter`, whose methods it calls though its own base lacks them.

    observer: what is known of it here. beside: views of the target's caches, at which the observer looks when a draft
    is made; it is an extractor then. None: what it sees comes with the verdicts.
    """

    observer: Sight
    beside: Views | None = None
    below: InitVar[Callable[[Views], Drafter] | None] = None
    _waiting: dict[int, list[Features]] = field(init=False, default_factory=dict)  # by sequence: came with verdicts

    def __post_init__(self, below: Callable[[Views], Drafter] | None) -> None:
        super().__post_init__(below)  # type: ignore[misc]
        self.needs = Needs(extractors=() if self.beside is not None else (self.observer.name,))

    @property
    def extractors(self) -> tuple[ObservingLayers, ...]:
        """What a verifier in this process must run for it."""
        its = self.observer
        return (its,) if self.beside is None and isinstance(its, ObservingLayers) else ()

    def has_seen(self, request: Request) -> int:
        """Of so many positions, from the first on, what the observer saw is here already: an earlier turn of the
        conversation has left it."""
        if request.conversation is None:
            return 0
        common, seen = self._kept.look(request.conversation, request.prompt)
        return min(common, seen or 0)

    def observe(self, verdicts: Sequence[Verdict]) -> list[Work]:
        """Keep what was accepted, and what the observer has seen of it."""
        for verdict in verdicts:
            if verdict.features is not None and verdict.sequence in self._readings:
                self._waiting.setdefault(verdict.sequence, []).append(verdict.features)
        work: list[Work] = list(super().observe(verdicts) or ())  # type: ignore[misc]
        return work

    def opened(self, turn: Turn, count: int) -> Open | None:
        """A sequence ready for a draft. Of what the target has computed, nothing is left to run."""
        work = self._follow_target(turn.sequence, len(self._readings[turn.sequence].text) - 1)
        opened = super().opened(turn, count)
        if opened is not None:
            opened.work = [*work, *opened.work]
        return opened

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        super().end(sequence)
        self._waiting.pop(sequence, None)

    def _read(self, sequence: int, stop: int) -> list[Work]:
        """A prompt is followed chunk by chunk, as the target reads it. Only tokens that it has not read are run."""
        return [*self._follow_target(sequence, stop), *super()._read(sequence, stop)]

    def _follow_target(self, sequence: int, stop: int) -> list[Work]:
        """Write the keys and values of the text's first `stop` tokens, as far as the target has read, without a pass:
        layer 0 has those of the tokens' embeddings, its other layers those of the observer's vectors, and the target's
        layers have its own. They take the place of what the drafter computed there. The work is no pass."""
        reading, twin = self._readings[sequence], self._twins[sequence]
        if not reading.room():
            return []
        reading.borrow(stop, None if twin is None else self._readings.get(twin))
        began, work = time.perf_counter(), []
        found, cost = self._vectors(sequence, reading.seen, stop)
        for start, tensors in found:
            if start > reading.open().length:  # features were lost on the way: the drafter's own states stay there
                work += super()._read(sequence, start)
            self._write(reading.open(), reading.text, start, tensors)
            reading.seen = start + len(tensors[FEATURE])
        if found:
            count = sum(len(tensors[FEATURE]) for _, tensors in found)
            seconds = time.perf_counter() - began - sum(each.seconds for each in work)
            work.append(Work(self.name, count, began, seconds, cost={self.name: cost}))
        return work

    def _write(self, cache: Cache, text: Sequence[int], start: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write the keys and values of some positions, from `start` on: over those that the cache has, and behind
        them. tensors: features of these positions."""
        stop = start + len(tensors[FEATURE])
        there = range(start, min(stop, cache.length))
        if there:
            for layer, pair in self._pairs(there, tensors, start):
                cache.overwrite(layer, start, *pair)
        new = range(max(start, cache.length), stop)
        if new:
            tokens = text[new.start : stop]
            rows = chain(cache, tokens)
            (segment,) = rows.segments
            of_tokens = self.model.keys_and_values(0, self.model.embed(list(tokens)), new)
            for layer, pair in ((0, of_tokens), *self._pairs(new, tensors, start)):
                cache.write(layer, segment.slots, *pair, rows.writer)
            cache.commit(segment.slots, rows.writer)

    def _pairs(
        self, positions: range, tensors: Mapping[str, torch.Tensor], start: int
    ) -> list[tuple[int, tuple[torch.Tensor, torch.Tensor]]]:
        """The keys and values of some positions by layer, but for layer 0. start: the first position of `tensors`."""
        part = slice(positions.start - start, positions.stop - start)
        vectors = self.observer.projected(tensors[FEATURE][part])
        its = self.observer.config
        pairs = [(own, self.model.keys_and_values(own, vectors, positions)) for own in range(_SEES, its.own_layers)]
        dtype = self.model.weights.embedding.dtype  # what came over a network has another
        for own, theirs in enumerate(its.ends, its.own_layers):
            keys, values = (tensors[f"{name}.{theirs}"][part].to(dtype) for name in LAST)
            pairs.append((own, (keys, values)))
        return pairs

    def _vectors(self, sequence: int, start: int, stop: int) -> tuple[list[_Piece], Cost]:
        """What the observer has of positions from `start` to `stop` at most, each piece with its first position, and
        what it costs here."""
        if self.beside is None:
            return self._came(sequence, start, stop), Cost()
        theirs = self.beside.view(sequence, length=stop)
        if theirs.length <= start:
            return [], Cost()
        assert isinstance(self.observer, ObservingLayers)
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
