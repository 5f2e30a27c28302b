"""A decoder grows a tree of drafts: at each step it looks behind several nodes in one pass.

When sampling, children are ranked by the decoder's logits and the target's dice together, and their scores are taken
from that sum: it is nearly certain what the target will choose where draft and dice agree, whatever the probabilities
were (docs/lossless.md). `sharpness` is the temperature at which scores become probabilities: the scale of the
difference between the draft's logits and the target's, not the temperature of the text.

Sources: SpecInfer (Miao et al. 2023) for trees over one cache; SubSpec (Lee et al. 2025), section 4.3, for deep beams
with sharpened scores; EAGLE-2 and SpecExec for the other shapes (foretoken.trees.grow).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from foretoken.acceptance.walk import NOTHING, walk
from foretoken.decoder.cache import new_writer
from foretoken.decoder.rows import Rows, chain
from foretoken.drafters.reading import DecoderDrafter, Reading, log_probs
from foretoken.sampling.sampler import Sampler
from foretoken.trees.grow import Growth
from foretoken.types import Distribution, Draft, Turn, Verdict, Work

_CANDIDATES = 16  # children that a node is given before the shape chooses, if its width is not more


@dataclass(frozen=True)
class _Grown:
    """What a round left in scratch: of each token that was sent its slot, if the model has run it."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    slots: tuple[int | None, ...]
    writer: int


@dataclass(eq=False, kw_only=True)
class TreeDrafter(DecoderDrafter):
    """A decoder that drafts a tree. shape, width, depth: see `foretoken.trees.grow`. nodes: the most that are sent."""

    shape: str
    width: int
    depth: int
    nodes: int
    sharpness: float
    _grown: dict[int, _Grown] = field(init=False, default_factory=dict)  # by sequence

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        """For each turn a tree."""
        return [self._propose(turn) for turn in turns]

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """Keep the keys and values of the branch that was right."""
        for verdict in verdicts:
            reading = self._readings[verdict.sequence]
            grown = self._grown.pop(verdict.sequence, None)
            if grown is not None:
                reading.keep_branch(_branch(grown, verdict.tokens), grown.writer)
            reading.gain(verdict.tokens)

    def rewind(self, sequence: int, position: int) -> None:
        """Forget tokens that the level above had guessed wrongly."""
        self._grown.pop(sequence, None)
        self._readings[sequence].rewind(position)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        self._readings.pop(sequence, None)
        self._grown.pop(sequence, None)

    def _propose(self, turn: Turn) -> Draft:
        reading = self._readings[turn.sequence]
        depth, nodes = min(turn.depth, self.depth, reading.room()), min(turn.rows, self.nodes)
        if depth < 1 or nodes < 1:
            return turn.chain((), self.name)
        step = reading.sampler.step
        try:
            return self._grow(turn, reading, Growth(self.shape, self.width, depth, nodes))
        finally:
            reading.sampler.rewind(step)

    def _grow(self, turn: Turn, reading: Reading, growth: Growth) -> Draft:
        began = time.perf_counter()
        cache, writer = reading.open(), new_writer()
        pending = chain(cache, reading.pending(cache), writer=writer)
        outputs = self.model.run(pending)
        cache.commit(range(len(pending)), writer)
        computed, passes = len(pending), 1
        distributions: dict[int, Distribution] = {}
        slots: dict[int, int] = {}
        self._look_behind(-1, outputs.logits[-1], growth, reading.sampler, distributions)
        while frontier := growth.frontier():
            parents = [slots[growth.parents[i]] if growth.parents[i] >= 0 else -1 for i in frontier]
            rows = Rows([(cache, [growth.tokens[i] for i in frontier], parents)], writer=writer)
            slots.update(zip(frontier, rows.segments[0].slots, strict=True))
            outputs = self.model.run(rows)
            computed, passes = computed + len(rows), passes + 1
            for at, node in enumerate(frontier):
                self._look_behind(node, outputs.logits[at], growth, reading.sampler, distributions)
        sent = growth.chosen()
        place = {-1: -1, **{node: i for i, node in enumerate(sent)}}
        tokens = tuple(growth.tokens[i] for i in sent)
        above = tuple(place[growth.parents[i]] for i in sent)
        self._grown[turn.sequence] = _Grown(tokens, above, tuple(slots.get(i) for i in sent), writer)
        seconds = time.perf_counter() - began
        work = Work(self.name, computed, began, seconds, draft_tokens=len(sent), passes=passes)
        probs = {place[node]: drawn for node, drawn in distributions.items() if node in place}
        return turn.tree(tokens, above, self.name, (work,), probs or None)

    def _look_behind(
        self, node: int, logits: torch.Tensor, growth: Growth, sampler: Sampler, distributions: dict[int, Distribution]
    ) -> None:
        """Give a node its children, from its row of logits; none at a NaN."""
        path: list[int] = []
        at = node
        while at >= 0:
            path.append(growth.tokens[at])
            at = growth.parents[at]
        step = sampler.step
        sampler.advance(reversed(path))
        logits = logits[: self.vocab_size]
        count = growth.width if growth.shape == "full" else max(growth.width, _CANDIDATES)
        ranked = sampler.rank(logits, count)
        if ranked is not None and ranked[0]:
            tokens, scores = ranked
            growth.add(node, tokens[: growth.width], log_probs(scores, self.sharpness)[: growth.width])
            drawn = self.drawn_from(sampler, logits)
            if drawn is not None:
                distributions[node] = drawn
        sampler.rewind(step)


def _branch(grown: _Grown, tokens: Sequence[int]) -> list[int]:
    """The slots of the branch that a text followed, as far as the model has run it."""
    text = iter(tokens)
    accepted, _ = walk(grown.tokens, grown.parents, lambda _: next(text, NOTHING))
    slots = [grown.slots[i] for i in accepted]
    return [slot for slot in slots if slot is not None]  # of a branch, only the leaf may have none
