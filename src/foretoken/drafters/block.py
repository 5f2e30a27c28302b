"""A Mixture of Attentions that drafts in one pass: a chain or a tree, out of what the pass says of each place.

One pass runs the end of the text and the blanks behind it (`foretoken.trained.blocks`). A node of the draft finds its
logits in the row of its place, corrected by its own token. So a tree takes one pass, as a chain does.

The rows of blanks are dropped with the draft. The target computes the keys and values of all that is accepted, and the
drafter's are made from them.

A level below, which has no decoder, may guess how the text goes on. The rows of its guess are run in the same pass.
They know the tokens before them, and a draft that follows the guess may be longer than the block.

Unlike with other trees, what a tree's steps cost is small beside its pass, so `Budget.least` does not end it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.outputs import Outputs, gathered
from foretoken.decoder.rows import Rows, Segment
from foretoken.drafters.growing import GrowingTree
from foretoken.drafters.mixture import Observing
from foretoken.drafters.one_pass import OnePassDrafter
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Distribution, Draft
from foretoken.sampling.sampler import Sampler
from foretoken.trained.blocks import BlockDecoder
from foretoken.trees.grow import ROOT


class _Filled(NamedTuple):
    """What a pass has found for one tree. root: the row of the last token. blanks: how many follow it. guess: what the
    level below has guessed, whose rows follow the blanks. normed: the states of the blanks, behind the final norm."""

    outputs: Outputs
    root: int
    blanks: int
    guess: Draft
    normed: torch.Tensor


@dataclass(eq=False, kw_only=True)
class BlockDrafter(Observing, OnePassDrafter):
    """The arguments are `OnePassDrafter`'s."""

    @property
    def _decoder(self) -> BlockDecoder:
        assert isinstance(self.model, BlockDecoder)
        return self.model

    def _grow(
        self, growing: Sequence[tuple[GrowingTree, list[int]]], between: Callable[[], object] | None = None
    ) -> None:
        """All steps of some trees, after one pass."""
        trees = [tree for tree, _ in growing]
        guesses = [self._guess(tree, ROOT) for tree in trees]
        began = time.perf_counter()
        counts = [min(self._decoder.block, tree.growth.depth) - 1 for tree in trees]
        rows = Rows(
            [self._part(tree, count, guess) for tree, count, guess in zip(trees, counts, guesses, strict=True)],
            writer=trees[0].writer,
        )
        roots = [s.span.start + len(tree.text) - 1 for s, tree in zip(rows.segments, trees, strict=True)]
        wanted = [range(root, s.span.stop) for root, s in zip(roots, rows.segments, strict=True)]
        outputs = self.model.check(rows, wanted, between=between)
        followed = []
        for tree, count, guess, root, segment in zip(trees, counts, guesses, roots, rows.segments, strict=True):
            hidden = outputs.hidden[root + 1 : root + 1 + count]
            normed = self.model.norm(hidden) if count else hidden
            followed.append(self._expand_all(tree, _Filled(outputs, root, count, guess, normed), rows, segment))
        seconds, cost = time.perf_counter() - began, {self.name: rows.cost}
        for tree, guess, right, segment in zip(trees, guesses, followed, rows.segments, strict=True):
            count = len(segment.slots)
            tree.ran(Work(self.name, count, began, seconds, 0, len(guess), right, passes=1, cost=cost))

    def _part(self, tree: GrowingTree, blanks: int, guess: Draft) -> tuple[Cache, list[int], list[int]]:
        """The cache, tokens and parents' slots of the pass: the end of the text, blanks behind it, and a guess."""
        first, text = tree.cache.scratch, len(tree.text)
        root = first + text - 1
        above = list(range(first - 1, root + blanks))
        if guess.tokens:
            start = root + blanks + 1
            above += [root, *range(start, start + len(guess) - 1)]
        return tree.cache, [*tree.text, *self._decoder.blanks(blanks), *guess.tokens], above

    def _expand_all(self, tree: GrowingTree, filled: _Filled, rows: Rows, segment: Segment) -> int:
        """Grow a tree to its end. Returns how many tokens of the guess were right."""
        growth, outputs = tree.growth, filled.outputs
        slots, behind = segment.slots[filled.root - segment.span.start :], 1 + filled.blanks
        tree.slots[ROOT] = slots[0]
        self._expand(tree, ROOT, outputs.logits(filled.root))
        right = self._go_along(tree, ROOT, filled.guess, slots[behind:], outputs, filled.root + behind)
        while nodes := growth.frontier():
            nodes = [node for node in nodes if growth.depths[node] <= filled.blanks and node not in tree.unsure]
            if not nodes:
                continue
            depths = [growth.depths[node] for node in nodes]
            normed = gathered(filled.normed, [depth - 1 for depth in depths])
            more = self._decoder.correction(normed, [growth.tokens[node] for node in nodes])
            rows.cost += self._decoder.cost_of_correcting(len(nodes))
            for node, depth, added in zip(nodes, depths, more.numpy(), strict=True):
                # numpy adds on this thread; PyTorch would wake others, which then spin on the cores of the next pass
                self._expand(tree, node, torch.from_numpy(outputs.logits(filled.root + depth).numpy() + added))
        return right

    def _over_all(self, logits: torch.Tensor) -> torch.Tensor:
        return self._decoder.over_all(logits)

    def _ranked(
        self, sampler: Sampler, logits: torch.Tensor, count: int, sharpness: float
    ) -> tuple[list[int], list[float], float | None]:
        """As a tree's. Where nothing looks at other tokens, neither does this."""
        if not sampler.plain:
            return super()._ranked(sampler, self._over_all(logits), count, sharpness)
        places, scores, total = super()._ranked(sampler, logits, count, sharpness)
        return self._decoder.tokens_at(places), scores, total

    def _drawn(self, sampler: Sampler, logits: torch.Tensor) -> Distribution | None:
        """As a tree's: over all tokens."""
        return super()._drawn(sampler, self._over_all(logits)) if self.independent else None
