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
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field, replace

import torch

from foretoken.acceptance.walk import NOTHING, agreeing, walk
from foretoken.decoder.cache import new_writer
from foretoken.decoder.caches import Caches
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows
from foretoken.decoder.views import Views
from foretoken.drafters.growing import GrowingTree
from foretoken.drafters.reading import DecoderDrafter, Open, log_probs
from foretoken.protocol.roles import Drafter
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Distribution, Draft, Request, Turn, Verdict
from foretoken.sampling.sampler import Sampler
from foretoken.trees.grow import ROOT, Growth
from foretoken.trees.tree import for_turns, longest_path, only

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


@dataclass(eq=False, kw_only=True)
class TreeDrafter(DecoderDrafter):
    """A decoder that drafts a tree, as wide and deep as its turn says.

    shape: see `foretoken.trees.grow`. sharpness: the temperature at which scores become probabilities; `sampled` is
    that of sampled texts, if it is another. below: makes the `inner` drafter, if there is one, which has no decoder. It
    guesses how the likeliest path goes on. The rows of its guess are run in the same pass. Where the tree grows along
    the guess, those nodes need no other pass.

    While a best-first tree on a view is checked, `go_on` can grow it further, where the text is likeliest to go on. If
    the text comes to a node that was expanded, the next tree begins with what has grown there. pauses: it is not to.
    """

    shape: str
    sharpness: float
    sampled: float | None = None
    pauses: bool = False
    below: InitVar[Callable[[Views], Drafter] | None] = None
    inner: Drafter | None = field(init=False, default=None)
    _grown: dict[int, _Grown] = field(init=False, default_factory=dict)  # by sequence
    _sent_trees: dict[int, GrowingTree] = field(init=False, default_factory=dict)  # by sequence: those under check
    _reached: dict[int, tuple[GrowingTree, int]] = field(init=False, default_factory=dict)  # and the text's node in it
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
        writer = new_writer()
        trees = [self._planted(opened, writer) for opened in found if opened is not None]
        steps = [(tree, tree.reading.sampler.step) for tree in trees]
        try:
            growing = [(tree, nodes) for tree in trees if (nodes := tree.first())]
            while growing:
                self._grow(growing)
                growing = [(tree, nodes) for tree in trees if (nodes := tree.growth.frontier())]
        finally:
            for tree, step in steps:
                tree.reading.sampler.rewind(step)
        sent = [self._sent(tree) for tree in trees]
        nothing = [turn.chain((), self.name) for turn, opened in zip(own, found, strict=True) if opened is None]
        return [*sent, *nothing, *self._left_out([turn for turn in turns if not turn.rows])]

    @property
    def can_go_on(self) -> bool:
        """Whether trees can grow further while they are checked."""
        possible = self.shape == "best-first" and self.views is not None and not self.independent
        return possible and not self.pauses

    def go_on(self, sequences: Sequence[int], may: Callable[[], bool]) -> None:
        """Grow the trees that were sent for some sequences further, while they are checked.

        To be called after `propose` and before `observe`, in a thread of its own perhaps. may: whether there is time
        now, for some layers of a pass; waits until there is, and is False once the check has ended. A pass that has
        begun is finished then.

        The likeliest nodes are expanded, sent or not: so the drafts behind the likeliest verdicts grow most. The rows
        lie in the trees' own views. Nothing of the target's is written, and what is under check is read no more.

        Source: drafting while the target's weights come in is ShadowSpec's; one tree for all verdicts is ours.
        """
        sent = [self._sent_trees.get(sequence) for sequence in sequences]
        trees = [tree for tree in sent if tree is not None and self.can_go_on]
        for tree in trees:
            tree.growth.depth = tree.reading.room()
        while may():
            growing = [(tree, nodes) for tree in trees if (nodes := tree.beyond())]
            if not growing:
                return
            self._grow(growing, may)

    def observe(self, verdicts: Sequence[Verdict]) -> list[Work]:
        """Keep the keys and values of the branch that was accepted."""
        work = self.read_along(verdicts)
        for verdict in verdicts:
            reading = self._readings[verdict.sequence]
            grown = self._grown.pop(verdict.sequence, None)
            work += self._follow(verdict)
            if grown is not None:
                reading.keep_branch([*grown.text, *_branch(grown, verdict.tokens)], grown.writer)
            reading.gain(verdict.tokens)
        if self.inner is not None:
            news = [self._news(verdict) for verdict in verdicts]
            work += self.inner.observe([each for each in news if each is not None]) or ()
        return work

    def rewind(self, sequence: int, position: int) -> None:
        """Forget the tokens from a position on: they were a wrong guess."""
        self._drop(sequence)
        self._readings[sequence].rewind(position)
        if self.inner is not None:
            self._told.pop(sequence, None)
            self.inner.rewind(sequence, position)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        super().end(sequence)
        self._drop(sequence)
        self._told.pop(sequence, None)
        if self.inner is not None:
            self.inner.end(sequence)

    def forget(self, conversation: int) -> None:
        """Free what is kept of a conversation, here and below."""
        super().forget(conversation)
        if self.inner is not None:
            self.inner.forget(conversation)

    def _planted(self, opened: Open, writer: int) -> GrowingTree:
        turn = opened.turn
        growth = Growth(self.shape, turn.width, opened.count, turn.rows, least=turn.least, dues=turn.dues)
        tree = GrowingTree(**vars(opened), growth=growth, writer=writer)
        grown, node = self._reached.pop(turn.sequence, (None, ROOT))
        alike = grown is not None and grown.growth.width == turn.width  # a chain may follow a tree
        if grown is not None and alike and len(tree.text) == 1:  # all else of the text is in the target's cache
            tree.take_over(grown, node)
        return tree

    def _follow(self, verdict: Verdict) -> Sequence[Work]:
        """Note to which node of the tree under check a verdict has led. If to none, returns the work that was done
        there for nothing."""
        self._reached.pop(verdict.sequence, None)
        tree = self._sent_trees.pop(verdict.sequence, None)
        if tree is None:
            return ()
        follows = tree.work and verdict.tokens and verdict.position == tree.turn.position  # only a tree that went on
        node = tree.behind(verdict.tokens) if follows else None
        if node is None:
            return tree.work
        self._reached[verdict.sequence] = tree, node
        return ()

    def _drop(self, sequence: int) -> None:
        """Forget the tree of a sequence."""
        for trees in (self._grown, self._sent_trees, self._reached):
            trees.pop(sequence, None)

    def _grow(
        self, growing: Sequence[tuple[GrowingTree, list[int]]], between: Callable[[], object] | None = None
    ) -> None:
        """One step of some trees, in one pass: each with the nodes to expand, and with a guess behind the first.
        between: as `Decoder.check` has it."""
        guesses = [self._guess(tree, nodes[0]) for tree, nodes in growing]
        began = time.perf_counter()
        parts = [tree.part(nodes, guess.tokens) for (tree, nodes), guess in zip(growing, guesses, strict=True)]
        rows = Rows(parts, writer=growing[0][0].writer)
        starts = [  # of the nodes, behind what there is of the text
            segment.span.stop - len(nodes) - len(guess)
            for (_, nodes), guess, segment in zip(growing, guesses, rows.segments, strict=True)
        ]
        wanted = [range(start, segment.span.stop) for start, segment in zip(starts, rows.segments, strict=True)]
        outputs = self.model.check(rows, wanted, between=between)
        followed = []
        for (tree, nodes), guess, segment, start in zip(growing, guesses, rows.segments, starts, strict=True):
            slots = segment.slots[start - segment.span.start :]
            for node, slot, row in zip(nodes, slots, range(start, segment.span.stop), strict=False):
                tree.slots[node] = slot
                self._expand(tree, node, outputs.logits(row))
            followed.append(self._go_along(tree, nodes[0], guess, slots[len(nodes) :], outputs, start + len(nodes)))
        seconds, cost = time.perf_counter() - began, {self.name: rows.cost}
        for (tree, _), guess, right, segment in zip(growing, guesses, followed, rows.segments, strict=True):
            count = len(segment.slots)
            tree.ran(Work(self.name, count, began, seconds, 0, len(guess), right, passes=1, cost=cost))

    def _go_along(
        self, tree: GrowingTree, node: int, guess: Draft, slots: Sequence[int], outputs: Outputs, first: int
    ) -> int:
        """Expand the nodes along a guess behind a node, as far as the tree has them. slots, first: the slots of the
        guess's rows, and the first of these rows. Returns how many of its tokens were right."""
        right = 0
        for token, origin, slot in zip(guess.tokens, guess.origins, slots, strict=True):
            child = tree.growth.guessed(node, token)
            if child is None:
                break
            tree.slots[child], tree.origins[child] = slot, origin
            self._expand(tree, child, outputs.logits(first + right))
            node, right = child, right + 1
        return right

    def _guess(self, tree: GrowingTree, node: int) -> Draft:
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

    def _sent(self, tree: GrowingTree) -> Draft:
        """The draft that a tree sends. Notes where its rows lie until the verdict comes."""
        growth, sent = tree.growth, tree.growth.chosen()
        place = {-1: -1, **{node: i for i, node in enumerate(sent)}}
        tokens = tuple(growth.tokens[i] for i in sent)
        above = tuple(place[growth.parents[i]] for i in sent)
        slots = tuple(tree.slots.get(i) for i in sent)
        text = range(tree.slots[ROOT] - len(tree.text) + 1, tree.slots[ROOT] + 1)
        self._grown[tree.turn.sequence] = _Grown(tuple(text), tokens, above, slots, tree.writer)
        probs = {place[node]: drawn for node, drawn in tree.distributions.items() if node in place}
        origins = [tree.origins.get(node, self.name) for node in sent]
        draft = tree.turn.tree(tokens, above, origins, tree.told(sent), probs or None)
        if self.can_go_on:
            self._sent_trees[tree.turn.sequence] = tree
            tree.sent()
        return draft

    def _expand(self, tree: GrowingTree, node: int, logits: torch.Tensor) -> None:
        """Give a node its children, from its row of logits, float32 [V]. At a NaN it gets none."""
        growth, sampler = tree.growth, tree.reading.sampler
        step = sampler.step
        sampler.advance(growth.path(node))
        count = growth.width if growth.shape == "full" else max(growth.width, _CANDIDATES)
        sharpness = self.sharpness if sampler.greedy or self.sampled is None else self.sampled
        tokens, scores, total = self._ranked(sampler, logits, count, sharpness)
        if tokens:
            growth.add(node, tokens[: growth.width], log_probs(scores, sharpness, total)[: growth.width])
            drawn = self._drawn(sampler, logits)
            if drawn is not None:
                tree.distributions[node] = drawn
        sampler.rewind(step)

    def _ranked(
        self, sampler: Sampler, logits: torch.Tensor, count: int, sharpness: float
    ) -> tuple[list[int], list[float], float | None]:
        """The best next tokens with their scores, and when greedy the logarithm of the sum over all tokens; none at a
        NaN."""
        logits = logits[: self.vocab_size]
        tokens, scores = sampler.rank(logits, count) or ([], [])
        return tokens, scores, sampler.log_total(logits, sharpness) if tokens and sampler.greedy else None

    def _drawn(self, sampler: Sampler, logits: torch.Tensor) -> Distribution | None:
        """The distribution from which a node's children are drawn, if the rejection rule asks for it."""
        return self.drawn_from(sampler, logits[: self.vocab_size])


def _branch(grown: _Grown, tokens: Sequence[int]) -> list[int]:
    """The slots of the branch that the text followed, as far as the model has run it."""
    text = iter(tokens)
    accepted, _ = walk(grown.tokens, grown.parents, lambda _: next(text, NOTHING))
    slots = [grown.slots[i] for i in accepted]
    return [slot for slot in slots if slot is not None]  # only the leaf of a branch may have none
