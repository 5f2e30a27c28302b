"""A published DFlash drafts: a chain or a tree, out of what one pass says of each place of a block.

What a place holds does not depend on the tokens that are chosen for the places before. So all nodes of a depth have the
same children, unless a penalty or a grammar looks at the tokens before them.

The target's states come with the verdicts. A draft is made only where those of all tokens but the last are known.

Source: Chen, Liang and Liu 2026, "DFlash" (2602.06036).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from foretoken.drafters.growing import GrowingTree
from foretoken.drafters.one_pass import OnePassDrafter
from foretoken.drafters.reading import Open
from foretoken.drafters.seeing import Seeing
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Turn, Verdict
from foretoken.trained.filling import FillingDecoder
from foretoken.trees.grow import ROOT

_AT_ONCE = 64  # rows of logits


@dataclass(eq=False, kw_only=True)
class FillingDrafter(Seeing, OnePassDrafter):
    """The arguments are `OnePassDrafter`'s."""

    @property
    def _decoder(self) -> FillingDecoder:
        assert isinstance(self.model, FillingDecoder)
        return self.model

    def observe(self, verdicts: Sequence[Verdict]) -> list[Work]:
        """Keep the target's states, and drop the rows of the block."""
        work = self._keep(verdicts)
        for verdict in verdicts:
            self._grown.pop(verdict.sequence, None)
        return [*work, *super().observe(verdicts)]

    def opened(self, turn: Turn, count: int) -> Open | None:
        """A sequence ready for a draft. None if the state of a token is not known, or if there is no room for one."""
        if not self._knows(turn.sequence):
            return None
        work = self._read(turn.sequence, len(self._readings[turn.sequence].text) - 1)
        opened = super().opened(turn, min(count, self._decoder.its.drafts))
        if opened is not None:
            opened.work = [*work, *opened.work]
        return opened

    def _read(self, sequence: int, stop: int) -> list[Work]:
        """Write keys and values of the text's first `stop` tokens, as far as their states are known."""
        reading, known = self._readings[sequence], self._known[sequence]
        cache = reading.open()
        new = range(cache.length, min(stop, len(known), len(reading.text) - 1))
        if not new or not reading.room():
            return []
        began = time.perf_counter()
        states = torch.from_numpy(np.stack(known[new.start : new.stop]))
        self._decoder.fill(cache, reading.text[new.start : new.stop], states.to(self._decoder.device))
        cost = {self.name: self._decoder.cost_of_filling(len(new))}
        return [Work(self.name, len(new), began, time.perf_counter() - began, cost=cost)]

    def _grow(
        self, growing: Sequence[tuple[GrowingTree, list[int]]], between: Callable[[], object] | None = None
    ) -> None:
        """All steps of some trees, after one pass."""
        trees, its = [tree for tree, _ in growing], self._decoder.its
        began = time.perf_counter()
        counts = [min(tree.growth.depth, its.drafts) for tree in trees]
        parts = [(tree.cache, tree.text[-1], count) for tree, count in zip(trees, counts, strict=True)]
        rows = self._decoder.blocks(parts, trees[0].writer)
        wanted = [
            range(segment.span.stop - count, segment.span.stop)
            for segment, count in zip(rows.segments, counts, strict=True)
        ]
        outputs = self.model.check(rows, wanted, between=between)
        every = [row for places in wanted for row in places]
        for at in range(0, len(every), _AT_ONCE):  # the output layer is read once for so many, not once for each text
            outputs.prepare(every[at : at + _AT_ONCE])
        for tree, places, segment in zip(trees, wanted, rows.segments, strict=True):
            growth, tree.slots[ROOT] = tree.growth, segment.slots[0]
            self._expand(tree, ROOT, outputs.logits(places[0]))
            while nodes := growth.frontier():
                for node in nodes:
                    if node not in tree.unsure:
                        self._expand(tree, node, outputs.logits(places[growth.depths[node]]))
        seconds, cost = time.perf_counter() - began, {self.name: rows.cost}
        for tree, segment in zip(trees, rows.segments, strict=True):
            tree.ran(Work(self.name, len(segment.slots), began, seconds, passes=1, cost=cost))
