"""Mixture of Attentions: a small trained decoder that sees what the target has computed.

The drafter has two layers. The first attends to the tokens of the text. The second attends to one vector for each token
that the target has read, which the observer makes of all layers' keys and values (`foretoken.trained`), and to the
drafter's own states of the tokens behind. The drafter writes the vectors' keys and values into its own cache, over
those of its own states. Everything else is that of any decoder that drafts: chains, trees, ranking with the target's
noise, and lookup below it.

The observer runs beside the target. In one process it is asked when a draft is made, and looks at a view of the
target's cache: where the pace drafts nothing, nothing is observed. Elsewhere it is an extractor, whose vectors arrive
with the verdicts.

Source: Zimmer et al. 2025, "Mixture of Attentions for speculative decoding", sections 3.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field

import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.views import Extractor, Views
from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.reading import DecoderDrafter, Open
from foretoken.drafters.tree import TreeDrafter
from foretoken.protocol.roles import Drafter
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Features, Needs, Request, Turn, Verdict
from foretoken.trained.observer import FEATURE

_FEW = 4  # tokens of the text that may lie behind what the observer has seen when a draft begins
_SEES = 1  # the layer that attends to the observer's vectors


@dataclass
class _Observed:
    """What a drafter knows of the observer's vectors of a sequence. written: positions whose keys and values lie in the
    drafter's cache. waiting: vectors of those that follow, which came with verdicts."""

    written: int = 0
    waiting: torch.Tensor | None = None

    def add(self, features: Features) -> None:
        """Append the vectors that came with a verdict."""
        new = features.tensors[FEATURE]
        self.waiting = new if self.waiting is None else torch.cat((self.waiting, new))

    def take(self, stop: int) -> torch.Tensor | None:
        """The waiting vectors of positions `written` to `stop`; None if there are none."""
        if self.waiting is None or stop <= self.written:
            return None
        found, rest = self.waiting[: stop - self.written], self.waiting[stop - self.written :]
        self.waiting = rest if len(rest) else None
        return found


@dataclass(eq=False, kw_only=True)
class Observing(DecoderDrafter):
    """What a chain and a tree of a Mixture of Attentions have in common. It stands before `ModelDrafter` or
    `TreeDrafter`, whose methods it calls though its own base lacks them.

    observer: an extractor. beside: views of the target's caches, at which the observer looks when a draft is made.
    None: its vectors come with the verdicts.
    """

    observer: Extractor
    beside: Views | None = None
    below: InitVar[Callable[[Views], Drafter] | None] = None
    extractors: tuple[Extractor, ...] = field(init=False)
    _observed: dict[int, _Observed] = field(init=False, default_factory=dict)

    def __post_init__(self, below: Callable[[Views], Drafter] | None) -> None:
        super().__post_init__(below)  # type: ignore[misc]
        self.extractors = () if self.beside is not None else (self.observer,)
        self.needs = Needs(extractors=tuple(each.name for each in self.extractors))

    def begin(self, requests: Sequence[Request]) -> None:
        """Take new sequences on."""
        super().begin(requests)
        self._observed.update((request.sequence, _Observed()) for request in requests)

    def observe(self, verdicts: Sequence[Verdict]) -> list[Work]:
        """Keep what was accepted, and what the observer has seen of it."""
        for verdict in verdicts:
            if verdict.features is not None and verdict.sequence in self._observed:
                self._observed[verdict.sequence].add(verdict.features)
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
            self._write(turn.sequence, opened.cache)
        return opened

    def rewind(self, sequence: int, position: int) -> None:
        """Forget the tokens from a position on: they were a wrong guess."""
        super().rewind(sequence, position)  # type: ignore[misc]
        observed = self._observed[sequence]
        if self.beside is not None:
            observed.written = min(observed.written, position)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        super().end(sequence)
        self._observed.pop(sequence, None)

    def _write(self, sequence: int, cache: Cache) -> None:
        observed = self._observed[sequence]
        vectors = self._seen(sequence, observed, cache.length)
        if vectors is None:
            return
        positions = range(observed.written, observed.written + len(vectors))
        cache.overwrite(_SEES, positions.start, *self.model.keys_and_values(_SEES, vectors, positions))
        observed.written = positions.stop

    def _seen(self, sequence: int, observed: _Observed, stop: int) -> torch.Tensor | None:
        """The observer's vectors of positions `written` to `stop`, as far as the target has read; None if there are
        none."""
        if self.beside is None:
            return observed.take(stop)
        theirs = self.beside.view(sequence, length=stop)
        if theirs.length <= observed.written:
            return None
        return self.observer(theirs, observed.written, theirs.length)[FEATURE]


@dataclass(eq=False, kw_only=True)
class MixtureDrafter(Observing, ModelDrafter):
    """A chain."""


@dataclass(eq=False, kw_only=True)
class MixtureTreeDrafter(Observing, TreeDrafter):
    """A tree."""
