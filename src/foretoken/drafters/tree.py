"""A decoder grows a tree of drafts: at each step it expands several nodes in one pass.

When sampling, children are ranked by the sum of the decoder's logits and the target's seeded noise, and their scores
come from that sum. Where draft and noise agree, the target's choice is nearly certain, whatever the probabilities were
(docs/lossless.md). `sharpness` is the temperature at which scores become probabilities. It is the scale of the
difference between the draft's logits and the target's, not the temperature of the text. Greedy scores are normalised
over the whole vocabulary. When sampling, scores are normalised among the 16 best sums: a sum with noise in it has no
probability, and the best few sums decide.

Sources: SpecInfer (Miao et al. 2023) for trees over one cache; SubSpec (Lee et al. 2025), section 4.2, for deep beams
with sharpened scores; EAGLE-2 and SpecExec for the other shapes (foretoken.trees.grow).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from foretoken.acceptance.walk import NOTHING, walk
from foretoken.decoder.cache import Cache, new_writer
from foretoken.decoder.checking import Part, run_check
from foretoken.decoder.rows import Rows
from foretoken.drafters.decoders import DecoderRecipe
from foretoken.drafters.reading import DecoderDrafter, Open, log_probs
from foretoken.drafters.recipe import Context, Level
from foretoken.drafters.table import TREE, DrafterEntry
from foretoken.errors import DraftSpecError
from foretoken.protocol.telemetry import Cost, Work
from foretoken.protocol.types import Budget, Distribution, Draft, Turn, Verdict
from foretoken.settings.load import MOST_DRAFT_TOKENS
from foretoken.trees.grow import Growth

_CANDIDATES = 16  # children of a node that are ranked before the shape chooses, or the width if that is larger


@dataclass(frozen=True)
class _Grown:
    """The rows that a round left in scratch. slots: of each token that was sent, its slot; None if the model has not
    run it."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    slots: tuple[int | None, ...]
    writer: int


@dataclass
class _Tree(Open):
    """A sequence whose tree is growing. slots: of each node that the model has run, the slot of its row."""

    growth: Growth = field(kw_only=True)
    slots: dict[int, int] = field(default_factory=dict)
    distributions: dict[int, Distribution] = field(default_factory=dict)
    rows: int = 0

    def parts(self, frontier: Sequence[int]) -> tuple[Cache, list[int], list[int]]:
        """The cache, tokens and parents' slots of a pass that expands the nodes of a frontier."""
        parents = [self.growth.parents[node] for node in frontier]
        above = [self.slots[parent] if parent >= 0 else -1 for parent in parents]
        return self.cache, [self.growth.tokens[node] for node in frontier], above


@dataclass(eq=False, kw_only=True)
class TreeDrafter(DecoderDrafter):
    """A decoder that drafts a tree, as wide and deep as its turn says. shape: see `foretoken.trees.grow`. sharpness:
    the temperature at which scores become probabilities."""

    shape: str
    sharpness: float
    _grown: dict[int, _Grown] = field(init=False, default_factory=dict)  # by sequence

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        """A tree for each turn. All trees grow together: one step of all is one pass."""
        began = time.perf_counter()
        found = [self.opened(turn, turn.depth) if turn.rows else None for turn in turns]
        trees = [self._planted(opened) for opened in found if opened is not None]
        steps = [(tree, tree.reading.sampler.step) for tree in trees]
        writer = new_writer()
        try:
            passes, cost = self._grow(trees, writer) if trees else (0, Cost())
        finally:
            for tree, step in steps:
                tree.reading.sampler.rewind(step)
        seconds = time.perf_counter() - began
        shared = {self.name: cost}
        work = [Work(self.name, tree.rows, began, seconds, passes=passes, cost=shared) for tree in trees]
        sent = [self._sent(tree, writer, its) for tree, its in zip(trees, work, strict=True)]
        nothing = [turn.chain((), self.name) for turn, opened in zip(turns, found, strict=True) if opened is None]
        return [*sent, *nothing]

    def observe(self, verdicts: Sequence[Verdict]) -> list[Work]:
        """Keep the keys and values of the branch that was accepted."""
        work = self.read_along(verdicts)
        for verdict in verdicts:
            reading = self._readings[verdict.sequence]
            grown = self._grown.pop(verdict.sequence, None)
            if grown is not None:
                reading.keep_branch(_branch(grown, verdict.tokens), grown.writer)
            reading.gain(verdict.tokens)
        return work

    def rewind(self, sequence: int, position: int) -> None:
        """Forget the tokens from a position on: they were a wrong guess."""
        self._grown.pop(sequence, None)
        self._readings[sequence].rewind(position)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        super().end(sequence)
        self._grown.pop(sequence, None)

    def _planted(self, opened: Open) -> _Tree:
        turn = opened.turn
        return _Tree(**vars(opened), growth=Growth(self.shape, turn.width, opened.count, turn.rows))

    def _grow(self, trees: Sequence[_Tree], writer: int) -> tuple[int, Cost]:
        """Grow all trees, one step of each in every pass. Returns the number of passes and their cost."""
        check = run_check(self.model, [Part(tree.cache, tree.text) for tree in trees])
        for at, tree in enumerate(trees):
            check.commit(at, range(len(tree.text)))
            tree.rows += len(tree.text)
            self._expand(tree, -1, check.outputs.logits(check.root(at)))
        passes, cost = 1, check.rows.cost
        while growing := [(tree, nodes) for tree in trees if (nodes := tree.growth.frontier())]:
            rows = Rows((tree.parts(nodes) for tree, nodes in growing), writer=writer)
            outputs = self.model.run(rows)
            passes += 1
            for (tree, nodes), segment in zip(growing, rows.segments, strict=True):
                tree.rows += len(nodes)
                tree.slots.update(zip(nodes, segment.slots, strict=True))
                for at, node in enumerate(nodes, segment.span.start):
                    self._expand(tree, node, outputs.logits(at))
            cost += rows.cost
        return passes, cost

    def _sent(self, tree: _Tree, writer: int, work: Work) -> Draft:
        """The draft that a tree sends. Notes where its rows lie until the verdict comes."""
        growth, sent = tree.growth, tree.growth.chosen()
        place = {-1: -1, **{node: i for i, node in enumerate(sent)}}
        tokens = tuple(growth.tokens[i] for i in sent)
        above = tuple(place[growth.parents[i]] for i in sent)
        slots = tuple(tree.slots.get(i) for i in sent)
        self._grown[tree.turn.sequence] = _Grown(tokens, above, slots, writer)
        probs = {place[node]: drawn for node, drawn in tree.distributions.items() if node in place}
        return tree.turn.tree(
            tokens, above, self.name, (*tree.work, replace(work, draft_tokens=len(sent))), probs or None
        )

    def _expand(self, tree: _Tree, node: int, logits: torch.Tensor) -> None:
        """Give a node its children, from its row of logits, float32 [V]. At a NaN it gets none."""
        growth, sampler = tree.growth, tree.reading.sampler
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
            total = sampler.log_total(logits, self.sharpness) if sampler.greedy else None
            growth.add(node, tokens[: growth.width], log_probs(scores, self.sharpness, total)[: growth.width])
            drawn = self.drawn_from(sampler, logits)
            if drawn is not None:
                tree.distributions[node] = drawn
        sampler.rewind(step)


def _branch(grown: _Grown, tokens: Sequence[int]) -> list[int]:
    """The slots of the branch that the text followed, as far as the model has run it."""
    text = iter(tokens)
    accepted, _ = walk(grown.tokens, grown.parents, lambda _: next(text, NOTHING))
    slots = [grown.slots[i] for i in accepted]
    return [slot for slot in slots if slot is not None]  # only the leaf of a branch may have none


_WIDTH, _DEPTH, _SHARPNESS = 4, 6, 0.5  # the defaults


class TreeRecipe(DecoderRecipe):
    """A tree, which nothing speeds up."""

    def level(self, name: str, entry: DrafterEntry, options: dict[str, Any]) -> Level:
        """The level for these options."""
        nodes = options.get("k", _WIDTH) * options.get("depth", _DEPTH)
        return Level(name, entry, options, options.get("nodes", nodes))

    def budget(self, level: Level) -> Budget:
        """The tree's nodes, depth and width."""
        return Budget(level.tokens, level.options.get("depth", _DEPTH), level.options.get("k", _WIDTH))

    def make(self, level: Level, context: Context) -> TreeDrafter:
        """Make the drafter."""
        loaded, common = self.loaded(level, context)
        shape, sharpness = level.options.get("shape", "beam"), level.options.get("sharpness", _SHARPNESS)
        return TreeDrafter(loaded.decoder, context.guessing, shape=shape, sharpness=sharpness, **common)

    def expect_size(self, level: Level, spec: str) -> None:
        """Raise DraftSpecError for more draft tokens than a round may have, or than a beam can ever send."""
        width, depth = level.options.get("k", _WIDTH), level.options.get("depth", _DEPTH)
        size = max(level.tokens, width * depth)
        if size > MOST_DRAFT_TOKENS:
            what = "nodes" if size == level.tokens != width * depth else f"nodes, k = {width} times depth = {depth}"
            raise DraftSpecError(f"draft {spec!r} is a tree of {size} {what}; expected at most {MOST_DRAFT_TOKENS}")
        if level.options.get("shape", "beam") == "beam" and level.tokens > width * depth:
            raise DraftSpecError(
                f"draft {spec!r} is to send {level.tokens} nodes, but a beam has {width * depth}, k = {width} times "
                f"depth = {depth}; give fewer nodes, or another shape"
            )

    def expect_sped_up(self, level: Level, below: Level, spec: str) -> None:
        """Raises DraftSpecError: nothing can speed a tree up."""
        option = next(name for name in level.options if name in TREE.options)
        raise DraftSpecError(
            f"draft {spec!r}: {option!r} makes {level.name!r} draft a tree, and trees cannot be sped up; leave "
            f"{option!r} out, or {below.name!r}"
        )

    def expect_rule(self, level: Level, rule: str, spec: str) -> None:
        """Raise DraftSpecError if the rule is rejection and sampled tokens decide the tree's form."""
        if rule == "rejection" and level.options.get("shape") != "full":
            raise DraftSpecError(
                f"draft {spec!r} grows a tree whose form depends on what is sampled, which the rejection rule cannot "
                "judge; use shape=full, or rule 'walk'"
            )


RECIPE = TreeRecipe()
