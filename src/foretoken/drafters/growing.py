"""A tree of drafts while it grows: its nodes, the rows that the drafter's model has run for them, and what is left of
it when the text has gone on into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foretoken.decoder.cache import Cache
from foretoken.drafters.reading import Open
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Distribution
from foretoken.trees.grow import ROOT, Growth

_LEAST = 0.02  # the probability that the text passes through a node from which on it is worth a row while there is time
_MOST_ROWS = 320  # rows of a tree from which on it grows no further while it is checked


@dataclass
class GrowingTree(Open):
    """A sequence whose tree is growing. writer: the tag of its rows. slots: of each node that the model has run, the
    slot of its row; the root's is that of the end of the text. origins: of the nodes that the level below has guessed.
    unsure: nodes behind which nothing is to grow.
    """

    growth: Growth = field(kw_only=True)
    writer: int = field(kw_only=True)
    slots: dict[int, int] = field(default_factory=dict)
    distributions: dict[int, Distribution] = field(default_factory=dict)
    origins: dict[int, str] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    passes: dict[int, int] = field(default_factory=dict)  # by index in `work`: how many nodes there were behind it

    def ran(self, work: Work) -> None:
        """Note a pass that was made for the tree, with the nodes that there are now."""
        self.passes[len(self.work)] = len(self.growth.tokens)
        self.work.append(work)

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

    def first(self) -> list[int]:
        """The nodes to expand first: the root, unless its row was run before."""
        return self.growth.frontier() if ROOT in self.slots else [ROOT]

    def beyond(self) -> list[int]:
        """The nodes to expand while the tree is checked; none if it has grown as far as there is memory for."""
        return [] if self.cache.scratch >= _MOST_ROWS else self.growth.beyond(_LEAST)

    def sent(self) -> None:
        """The tree was sent. What is done from now on is work for the next one."""
        self.work, self.passes = [], {}

    def behind(self, tokens: Sequence[int]) -> int | None:
        """The node to which some tokens lead from the root, if the model has run its row."""
        node = self.growth.find(tokens)
        return node if node in self.slots else None

    def take_over(self, grown: GrowingTree, node: int) -> None:
        """Begin with what another tree has below a node, which is this tree's root now. Its rows are copied: they were
        computed behind the drafter's keys and values of the path to the node, where the target's are now."""
        nodes = self.growth.take_over(grown.growth, node)
        ran = [each for each in (node, *nodes) if each in grown.slots]
        place = {each: at for at, each in enumerate(sorted(ran, key=lambda each: grown.slots[each]))}
        above = [-1 if each == node else place[grown.growth.parents[each]] for each in place]
        slots = self.cache.adopt(grown.cache, [grown.slots[each] for each in place], above)
        for each, slot in zip(place, slots, strict=True):
            self.slots[nodes.get(each, ROOT)] = slot
        self.work += grown.work
        if grown.work:
            self.passes = {len(self.work) - 1: len(self.growth.tokens)}
        self.origins.update((nodes[each], origin) for each, origin in grown.origins.items() if each in nodes)
