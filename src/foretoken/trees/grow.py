"""How a draft tree grows: which nodes are expanded next, and which are sent to the target.

A tree begins at the root (-1), whose children come first. Every node has a score: the logarithm of the probability that
the target's text passes through it. A score never exceeds the parent's. A tree grows in steps, each of which is one
pass of the drafter's model: `frontier` names the nodes to expand, and `add` takes their children. The shapes:

    beam        the `width` likeliest nodes of each depth are expanded and sent: width x depth in all
    rerank      the same growth, but of all children seen the `nodes` likeliest are sent (EAGLE-2, Li et al. 2024)
    best-first  the `width` likeliest nodes anywhere are expanded next, until the `nodes` likeliest are known
                (SpecExec, Svirschevski et al. 2024)
    full        every node has `width` children, breadth first, up to `nodes`. No score decides this form, and the
                rejection rule needs such a form (Sequoia, Chen et al. 2024)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

ROOT = -1  # the node above a tree's first tokens: the end of the text
SHAPES = ("beam", "rerank", "best-first", "full")


@dataclass
class Growth:
    """A tree while it grows. width, depth: of the shape. nodes: the most nodes that are sent. least, dues: where a
    best-first tree ends, and how many of its nodes are sent (`foretoken.protocol.types.Budget`)."""

    shape: str
    width: int
    depth: int
    nodes: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    least: float = 0.0
    dues: Sequence[float] = ()
    _looked: set[int] = field(default_factory=set)  # the nodes that were expanded
    _beams: list[int] = field(default_factory=list)  # the nodes of each depth that are in the beam
    _reached: int = 0  # the last depth in the frontier, for shapes that grow depth by depth

    def add(self, parent: int, tokens: Sequence[int], log_probs: Sequence[float]) -> None:
        """Add the children of a node, likeliest first, with the logarithms of their probabilities."""
        base = 0.0 if parent < 0 else self.scores[parent]
        depth = 1 if parent < 0 else self.depths[parent] + 1
        for token, log_prob in zip(tokens, log_probs, strict=True):
            self.tokens.append(token)
            self.parents.append(parent)
            self.scores.append(base + min(log_prob, 0.0))
            self.depths.append(depth)

    def guessed(self, parent: int, token: int) -> int | None:
        """The child of a node with this token, now counted as expanded: its row was computed on a guess. None if the
        node has no such child, or if the child is too deep to be expanded."""
        for node in range(len(self.tokens) - 1, parent, -1):
            if self.parents[node] == parent and self.tokens[node] == token:
                if node in self._looked or self.depths[node] >= self.depth:
                    return None
                self._looked.add(node)
                return node
        return None

    def find(self, tokens: Sequence[int]) -> int | None:
        """The node to which some tokens lead from the root; None if there is none."""
        at = ROOT
        for token in tokens:
            pairs = enumerate(zip(self.parents, self.tokens, strict=True))
            at = next((node for node, pair in pairs if pair == (at, token)), ROOT)
            if at == ROOT:
                return None
        return at

    def take_over(self, other: Growth, root: int) -> dict[int, int]:
        """Begin with what another tree has below a node, down to this tree's depth, with its scores as they are if the
        text has come to that node. Returns the number of each such node in this tree."""
        found: dict[int, int] = {root: ROOT}
        for node in range(root + 1, len(other.tokens)):
            parent, depth = other.parents[node], other.depths[node] - other.depths[root]
            if parent in found and depth <= self.depth:
                found[node] = len(self.tokens)
                self.tokens.append(other.tokens[node])
                self.parents.append(found[parent])
                self.scores.append(other.scores[node] - other.scores[root])
                self.depths.append(depth)
        self._looked.update(found[node] for node in other._looked if node in found)
        del found[root]
        return found

    def path(self, node: int) -> list[int]:
        """The tokens from the root down to a node."""
        found = []
        while node >= 0:
            found.append(self.tokens[node])
            node = self.parents[node]
        return found[::-1]

    def frontier(self) -> list[int]:
        """The nodes to expand next: at most `width`, the likeliest first in a best-first tree, or all of a depth for a
        full tree; none if the tree is grown."""
        nodes = self._frontier()
        self._looked.update(nodes)
        return nodes

    def beyond(self, least: float) -> list[int]:
        """The likeliest nodes anywhere to expand next, whatever is sent: at most `width`, none of which the text passes
        through with a probability below `least`."""
        nodes = [i for i in self._open() if self.scores[i] >= math.log(least)]
        self._looked.update(nodes)
        return nodes

    def _open(self) -> list[int]:
        """The likeliest nodes that can be expanded and were not: at most `width`."""
        open_ = (i for i in self._by_score(range(len(self.tokens))) if i not in self._looked)
        return [i for i in open_ if self.depths[i] < self.depth][: self.width]

    def _frontier(self) -> list[int]:
        if self.shape == "best-first":
            chosen = self.chosen()
            if all(i in self._looked or self.depths[i] == self.depth for i in chosen):
                return []  # children of the other nodes are less likely than the nodes that are chosen
            likeliest = self._open()
            due = self._due(chosen)
            gain = sum(max(0.0, math.exp(self.scores[i]) - due) for i in likeliest)
            return likeliest if gain >= self.least else []
        deepest = self.depths[-1] if self.depths else 0
        if deepest == self._reached:
            return []
        self._reached = deepest
        last = [i for i in range(len(self.tokens)) if self.depths[i] == deepest]
        if self.shape == "full":
            wanted = -(-max(0, self.nodes - len(self.tokens)) // self.width)  # no more than can still be sent
            return last[:wanted] if deepest < self.depth else []
        beam = sorted(self._by_score(last)[: self.width])
        self._beams += beam
        return beam if deepest < self.depth else []

    def chosen(self) -> list[int]:
        """The nodes that are sent: parents before children, at most `nodes`."""
        if self.shape == "full":
            return list(range(min(self.nodes, len(self.tokens))))
        if self.shape == "beam":
            return sorted(self._by_score(self._beams)[: self.nodes])
        best = self._by_score(range(len(self.tokens)))[: self.nodes]
        return sorted(best[: self._worth(best)] if self.dues else best)

    def _due(self, chosen: Sequence[int]) -> float:
        """The probability that another node must have to be sent beside those that are chosen, or in place of one."""
        count = len(chosen)
        if count >= self.nodes:
            return math.exp(min(self.scores[i] for i in chosen))
        return self.dues[count + 1] - self.dues[count] if count + 1 < len(self.dues) else 0.0

    def _worth(self, nodes: Sequence[int]) -> int:
        """How many of some nodes, likeliest first, are worth their dues: at least one, if there is one."""
        gained, most, found = 0.0, -math.inf, 0
        for count, (node, due) in enumerate(zip(nodes, self.dues[1:], strict=False), 1):
            gained += math.exp(self.scores[node])
            if gained - due > most:
                most, found = gained - due, count
        return found

    def _by_score(self, nodes: Sequence[int]) -> list[int]:
        """Nodes by score, likeliest first. Of equals the earlier comes first, so a parent comes before its children."""
        return sorted(nodes, key=lambda i: (-self.scores[i], i))
