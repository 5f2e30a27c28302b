"""How a draft tree grows: which nodes are expanded next, and which are sent to the target.

A tree begins at the root (-1), whose children come first. Every node has a score: the logarithm of the probability that
the target comes by it, which never exceeds its parent's. Growing is divided into steps, each one pass of the drafter's
model: `frontier` names the nodes whose children are wanted, `add` gives them. The shapes:

    beam        at each depth the `width` likeliest nodes, and those are sent: width x depth in all
    rerank      the same growth, but of all children seen the `nodes` likeliest are sent (EAGLE-2, Li et al. 2024)
    best-first  the `width` likeliest nodes anywhere are expanded next, until the `nodes` likeliest are known
                (SpecExec, Svirschevski et al. 2024)
    full        every node has `width` children, breadth first, up to `nodes`: a form that no score decides, which the
                rejection rule needs (Sequoia, Chen et al. 2024)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

SHAPES = ("beam", "rerank", "best-first", "full")


@dataclass
class Growth:
    """A tree while it grows. width, depth: of the shape; nodes: how many are sent at most."""

    shape: str
    width: int
    depth: int
    nodes: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    _looked: set[int] = field(default_factory=set)  # behind which nodes
    _beams: list[int] = field(default_factory=list)  # the nodes at each depth that went on
    _reached: int = 0  # the depth whose nodes were last asked for, where it goes depth by depth

    def add(self, parent: int, tokens: Sequence[int], log_probs: Sequence[float]) -> None:
        """The children of a node, likeliest first, with the logarithms of their probabilities."""
        base = 0.0 if parent < 0 else self.scores[parent]
        depth = 1 if parent < 0 else self.depths[parent] + 1
        for token, log_prob in zip(tokens, log_probs, strict=True):
            self.tokens.append(token)
            self.parents.append(parent)
            self.scores.append(base + min(log_prob, 0.0))
            self.depths.append(depth)

    def frontier(self) -> list[int]:
        """The nodes whose children come next: at most `width`, of a full tree all of a depth; none if it is grown."""
        nodes = self._frontier()
        self._looked.update(nodes)
        return nodes

    def _frontier(self) -> list[int]:
        if self.shape == "best-first":
            if all(i in self._looked or self.depths[i] == self.depth for i in self.chosen()):
                return []  # whatever lies behind the others is less likely than what is known
            open_ = (i for i in self._by_score(range(len(self.tokens))) if i not in self._looked)
            return sorted([i for i in open_ if self.depths[i] < self.depth][: self.width])
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
        return sorted(self._by_score(range(len(self.tokens)))[: self.nodes])

    def _by_score(self, nodes: Sequence[int]) -> list[int]:
        """Likeliest first; of equals the earlier, so that a parent comes before its children."""
        return sorted(nodes, key=lambda i: (-self.scores[i], i))
