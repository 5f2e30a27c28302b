"""A decoder grows a tree of drafts: at each step it expands several nodes in one pass.

When sampling, children are ranked by the sum of the decoder's logits and the target's seeded noise, and their scores
come from that sum. Where draft and noise agree, the target's choice is nearly certain, whatever the probabilities were
(docs/lossless.md). `sharpness` is the temperature at which scores become probabilities. It is the scale of the
difference between the draft's logits and the target's, not the temperature of the text. Greedy scores are normalised
over the whole vocabulary. When sampling, scores are normalised among the 16 best sums: a sum with noise in it has no
probability, and the best few sums decide.

Sources: SpecInfer (Miao et al. 2023) for trees over one cache; SubSpec (Wang et al. 2025), section 4.2, for deep beams
with sharpened scores; EAGLE-2 and SpecExec for the other shapes (foretoken.trees.grow).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

import torch

from foretoken.acceptance.walk import NOTHING, agreeing, walk
from foretoken.decoder.cache import Cache, new_writer
from foretoken.decoder.caches import Caches
from foretoken.decoder.rows import Rows
from foretoken.decoder.views import Views
from foretoken.drafters.decoders import DecoderRecipe
from foretoken.drafters.reading import DecoderDrafter, Open, log_probs
from foretoken.drafters.recipe import Context, Level
from foretoken.drafters.table import DrafterEntry
from foretoken.errors import DraftSpecError
from foretoken.protocol.roles import Drafter
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Budget, Distribution, Draft, Request, Turn, Verdict
from foretoken.settings.load import MOST_DRAFT_TOKENS
from foretoken.trees.grow import Growth
from foretoken.trees.tree import for_turns, longest_path, only

ROOT = -1  # the node above a tree's first tokens: the end of the text
_CANDIDATES = 16  # children of a node that are ranked before the shape chooses, or the width if that is larger


@dataclass(frozen=True)
class _Grown:
    """The rows that a round left in scratch. text: slots of the end of the text. slots: of each token that was sent,
    its slot; None if the model has not run it."""

    text: tuple[int, ...]
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    slots: tuple[int | None, ...]
    writer: int


@dataclass
class _Tree(Open):
    """A sequence whose tree is growing. slots: of each node that the model has run, the slot of its row; the root's is
    that of the end of the text. origins: of the nodes that the level below has guessed."""

    growth: Growth = field(kw_only=True)
    slots: dict[int, int] = field(default_factory=dict)
    distributions: dict[int, Distribution] = field(default_factory=dict)
    origins: dict[int, str] = field(default_factory=dict)
    passes: dict[int, int] = field(default_factory=dict)  # by index in `work`: how many nodes there were behind it

    def told(self, sent: Sequence[int]) -> tuple[Work, ...]:
        """The work, with how many of the nodes that are sent each pass gave."""
        work, first = list(self.work), 0
        for at, stop in self.passes.items():
            work[at] = replace(work[at], draft_tokens=sum(first <= node < stop for node in sent))
            first = stop
        return tuple(work)

    def part(self, frontier: Sequence[int], guess: Sequence[int]) -> tuple[Cache, list[int], list[int]]:
        """The cache, tokens and parents' slots of a pass that expands the nodes of a frontier. guess: tokens that may
        follow the first of them, which are run, too."""
        first = self.cache.scratch
        if ROOT in frontier:
            tokens, above = list(self.text), list(range(-1, len(self.text) - 1))
            start = len(self.text) - 1
        else:
            tokens = [self.growth.tokens[node] for node in frontier]
            above = [self.slots[self.growth.parents[node]] for node in frontier]
            start = first
        if guess:
            above += [start, *range(first + len(tokens), first + len(tokens) + len(guess) - 1)]
        return self.cache, [*tokens, *guess], above


@dataclass(eq=False, kw_only=True)
class TreeDrafter(DecoderDrafter):
    """A decoder that drafts a tree, as wide and deep as its turn says.

    shape: see `foretoken.trees.grow`. sharpness: the temperature at which scores become probabilities; `sampled` is
    that of sampled texts, if it is another. below: makes the `inner` drafter, if there is one, which has no decoder. It
    guesses how the likeliest path goes on. The rows of its guess are run in the same pass. Where the tree grows along
    the guess, those nodes need no other pass.
    """

    shape: str
    sharpness: float
    sampled: float | None = None
    below: InitVar[Callable[[Views], Drafter] | None] = None
    inner: Drafter | None = field(init=False, default=None)
    _grown: dict[int, _Grown] = field(init=False, default_factory=dict)  # by sequence
    _told: dict[int, Sequence[int]] = field(init=False, default_factory=dict)  # by sequence: what `inner` was told
    _checks: int = field(init=False, default=0)  # rounds between this level and the one below it

    def __post_init__(self, below: Callable[[Views], Drafter] | None) -> None:
        if below is not None:
            self.inner = below(Caches())

    def begin(self, requests: Sequence[Request]) -> None:
        """Take new sequences on."""
        super().begin(requests)
        if self.inner is not None:
            self.inner.begin(requests)

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        """A tree for each turn. All trees grow together: one step of all is one pass."""
        own = [turn for turn in turns if turn.rows]
        found = [self.opened(turn, turn.depth) for turn in own]
        trees = [self._planted(opened) for opened in found if opened is not None]
        steps = [(tree, tree.reading.sampler.step) for tree in trees]
        writer = new_writer()
        try:
            growing = [(tree, [ROOT]) for tree in trees]
            while growing:
                self._grow(growing, writer)
                growing = [(tree, nodes) for tree in trees if (nodes := tree.growth.frontier())]
        finally:
            for tree, step in steps:
                tree.reading.sampler.rewind(step)
        sent = [self._sent(tree, writer) for tree in trees]
        nothing = [turn.chain((), self.name) for turn, opened in zip(own, found, strict=True) if opened is None]
        return [*sent, *nothing, *self._left_out([turn for turn in turns if not turn.rows])]

    def observe(self, verdicts: Sequence[Verdict]) -> list[Work]:
        """Keep the keys and values of the branch that was accepted."""
        work = self.read_along(verdicts)
        for verdict in verdicts:
            reading = self._readings[verdict.sequence]
            grown = self._grown.pop(verdict.sequence, None)
            if grown is not None:
                reading.keep_branch([*grown.text, *_branch(grown, verdict.tokens)], grown.writer)
            reading.gain(verdict.tokens)
        if self.inner is not None:
            news = [self._news(verdict) for verdict in verdicts]
            work += self.inner.observe([each for each in news if each is not None]) or ()
        return work

    def rewind(self, sequence: int, position: int) -> None:
        """Forget the tokens from a position on: they were a wrong guess."""
        self._grown.pop(sequence, None)
        self._readings[sequence].rewind(position)
        if self.inner is not None:
            self._told.pop(sequence, None)
            self.inner.rewind(sequence, position)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        super().end(sequence)
        self._grown.pop(sequence, None)
        self._told.pop(sequence, None)
        if self.inner is not None:
            self.inner.end(sequence)

    def _planted(self, opened: Open) -> _Tree:
        turn = opened.turn
        growth = Growth(self.shape, turn.width, opened.count, turn.rows, least=turn.least, dues=turn.dues)
        return _Tree(**vars(opened), growth=growth)

    def _grow(self, growing: Sequence[tuple[_Tree, list[int]]], writer: int) -> None:
        """One step of some trees, in one pass: each with the nodes to expand, and with a guess behind the first."""
        guesses = [self._guess(tree, nodes[0]) for tree, nodes in growing]
        began = time.perf_counter()
        parts = [tree.part(nodes, guess.tokens) for (tree, nodes), guess in zip(growing, guesses, strict=True)]
        rows = Rows(parts, writer=writer)
        starts = [  # of the nodes, behind what there is of the text
            segment.span.stop - len(nodes) - len(guess)
            for (_, nodes), guess, segment in zip(growing, guesses, rows.segments, strict=True)
        ]
        wanted = [range(start, segment.span.stop) for start, segment in zip(starts, rows.segments, strict=True)]
        outputs = self.model.check(rows, wanted)
        followed = []
        for (tree, nodes), guess, segment, start in zip(growing, guesses, rows.segments, starts, strict=True):
            slots = segment.slots[start - segment.span.start :]
            for node, slot, row in zip(nodes, slots, range(start, segment.span.stop), strict=False):
                tree.slots[node] = slot
                self._expand(tree, node, outputs.logits(row))
            at, right = nodes[0], 0
            for token, origin, slot in zip(guess.tokens, guess.origins, slots[len(nodes) :], strict=True):
                child = tree.growth.guessed(at, token)
                if child is None:
                    break
                tree.slots[child], tree.origins[child] = slot, origin
                self._expand(tree, child, outputs.logits(start + len(nodes) + right))
                at, right = child, right + 1
            followed.append(right)
        seconds, cost = time.perf_counter() - began, {self.name: rows.cost}
        for (tree, _), guess, right, segment in zip(growing, guesses, followed, rows.segments, strict=True):
            count = len(segment.slots)
            tree.passes[len(tree.work)] = len(tree.growth.tokens)
            tree.work.append(Work(self.name, count, began, seconds, 0, len(guess), right, passes=1, cost=cost))

    def _guess(self, tree: _Tree, node: int) -> Draft:
        """How the level below guesses that the path to a node goes on: a chain."""
        nothing = tree.turn.chain((), self.name)
        if self.inner is None:
            return nothing
        turn, path = tree.turn, tree.growth.path(node)
        told = self._told.get(turn.sequence, ())
        common = agreeing(told, path)
        if common < len(told):
            self.inner.rewind(turn.sequence, turn.position + common)
        self._checks += 1
        if common < len(path):
            new = tuple(path[common:])
            place = turn.position + common
            self.inner.observe([Verdict(turn.sequence, self._checks, place, (), new, (self.name,) * len(new))])
        self._told[turn.sequence] = path
        asked = turn.inner(self._checks, turn.position + len(path), tree.growth.depth - len(path) - 1)
        if asked is None:
            return nothing
        vocab_size = min(self.vocab_size, self.model.config.vocab_size)
        (draft,) = for_turns([asked], self.inner.propose([asked]), vocab_size)[0]
        tree.work += draft.work
        return only(draft, longest_path(draft.parents))

    def _news(self, verdict: Verdict) -> Verdict | None:
        """What the level below was not told of a verdict yet. It forgets what it was told and did not come true."""
        assert self.inner is not None
        told = self._told.pop(verdict.sequence, ())
        right = agreeing(told, verdict.tokens)
        if right < len(told):
            self.inner.rewind(verdict.sequence, verdict.position + right)
        self._checks += 1
        return replace(verdict.behind(right), round=self._checks) if right < len(verdict.tokens) or not right else None

    def _left_out(self, turns: Sequence[Turn]) -> list[Draft]:
        """For turns in which this level has no rows: the drafts of the level below."""
        below = [turn.inner(turn.round, turn.position, turn.most.depth) for turn in turns]
        asked = [turn for turn in below if turn is not None]
        return [] if self.inner is None or not asked else [*self.inner.propose(asked)]

    def _sent(self, tree: _Tree, writer: int) -> Draft:
        """The draft that a tree sends. Notes where its rows lie until the verdict comes."""
        growth, sent = tree.growth, tree.growth.chosen()
        place = {-1: -1, **{node: i for i, node in enumerate(sent)}}
        tokens = tuple(growth.tokens[i] for i in sent)
        above = tuple(place[growth.parents[i]] for i in sent)
        slots = tuple(tree.slots.get(i) for i in sent)
        text = range(tree.slots[ROOT] - len(tree.text) + 1, tree.slots[ROOT] + 1)
        self._grown[tree.turn.sequence] = _Grown(tuple(text), tokens, above, slots, writer)
        probs = {place[node]: drawn for node, drawn in tree.distributions.items() if node in place}
        origins = [tree.origins.get(node, self.name) for node in sent]
        return tree.turn.tree(tokens, above, origins, tree.told(sent), probs or None)

    def _expand(self, tree: _Tree, node: int, logits: torch.Tensor) -> None:
        """Give a node its children, from its row of logits, float32 [V]. At a NaN it gets none."""
        growth, sampler = tree.growth, tree.reading.sampler
        step = sampler.step
        sampler.advance(growth.path(node))
        logits = logits[: self.vocab_size]
        count = growth.width if growth.shape == "full" else max(growth.width, _CANDIDATES)
        ranked = sampler.rank(logits, count)
        if ranked is not None and ranked[0]:
            tokens, scores = ranked
            sharpness = self.sharpness if sampler.greedy or self.sampled is None else self.sampled
            total = sampler.log_total(logits, sharpness) if sampler.greedy else None
            growth.add(node, tokens[: growth.width], log_probs(scores, sharpness, total)[: growth.width])
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


@dataclass(frozen=True)
class Usual:
    """What a tree is if its options do not say it: that of fixed depth, and the best-first one."""

    width: int = 4
    depth: int = 6
    sharpness: float = 0.5
    sampled: float | None = None
    best_first: Mapping[str, Any] = field(default_factory=lambda: {"k": 4, "depth": 16, "nodes": 12, "least": 0.6})

    def of(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Shape, k, depth, nodes, least and sharpness of a tree with these options; `sampled` is the sharpness for
        sampled texts. A sharpness that is given holds for all texts."""
        usual = {"sharpness": self.sharpness, "sampled": None if "sharpness" in options else self.sampled}
        given = {"shape": "beam", **usual, **options}
        if given["shape"] == "best-first":
            return {**self.best_first, **given}
        width, depth = options.get("k", self.width), options.get("depth", self.depth)
        return {"nodes": width * depth, **given, "k": width, "depth": depth, "least": 0.0}


class TreeRecipe(DecoderRecipe):
    """A tree, which lookup may speed up."""

    sizes = Usual()

    def level(self, name: str, entry: DrafterEntry, options: dict[str, Any]) -> Level:
        """The level for these options."""
        return Level(name, entry, options, self.sizes.of(options)["nodes"])

    def budget(self, level: Level) -> Budget:
        """The tree's nodes, depth and width, and where it ends."""
        its = self.sizes.of(level.options)
        return Budget(level.tokens, its["depth"], its["k"], its["least"])

    def free(self, level: Level) -> bool:
        """Whether a pace may choose how far the tree grows: a best-first tree, of which nothing else was said."""
        said = {"depth", "nodes", "least"} & level.options.keys()
        return self.sizes.of(level.options)["shape"] == "best-first" and not said

    def make(self, level: Level, context: Context) -> TreeDrafter:
        """Make the drafter."""
        loaded, common = self.loaded(level, context)
        its = self.sizes.of(level.options)
        return TreeDrafter(
            loaded.decoder,
            context.guessing,
            shape=its["shape"],
            sharpness=its["sharpness"],
            sampled=its["sampled"],
            below=context.below(level),
            **common,
        )

    def expect_size(self, level: Level, spec: str) -> None:
        """Raise DraftSpecError for more draft tokens than a round may have, or than a beam can ever send."""
        its = self.sizes.of(level.options)
        width, depth = its["k"], its["depth"]
        size = max(level.tokens, width * depth)
        if size > MOST_DRAFT_TOKENS:
            what = "nodes" if size == level.tokens != width * depth else f"nodes, k = {width} times depth = {depth}"
            raise DraftSpecError(f"draft {spec!r} is a tree of {size} {what}; expected at most {MOST_DRAFT_TOKENS}")
        if its["shape"] == "beam" and level.tokens > width * depth:
            raise DraftSpecError(
                f"draft {spec!r} is to send {level.tokens} nodes, but a beam has {width * depth}, k = {width} times "
                f"depth = {depth}; give fewer nodes, or another shape"
            )

    def sped_up(self, level: Level, below: Level, spec: str) -> Level:
        """A best-first tree, by default one that ends where it is unsure. Raises DraftSpecError for another shape, and
        for a level below that needs passes of its own."""
        if below.has_decoder or level.options.get("shape", "best-first") != "best-first":
            what = "only by lookup" if below.has_decoder else "only if its shape is best-first"
            raise DraftSpecError(
                f"draft {spec!r}: {level.name!r} drafts a tree, which can be sped up {what}; leave {below.name!r} out"
            )
        options = {**level.options, "shape": "best-first"}
        return replace(level, options=options, tokens=self.sizes.of(options)["nodes"])

    def expect_rule(self, level: Level, rule: str, spec: str) -> None:
        """Raise DraftSpecError if the rule is rejection and sampled tokens decide the tree's form."""
        if rule == "rejection" and self.sizes.of(level.options)["shape"] != "full":
            raise DraftSpecError(
                f"draft {spec!r} grows a tree whose form depends on what is sampled, which the rejection rule cannot "
                "judge; use shape=full, or rule 'walk'"
            )


RECIPE = TreeRecipe()
