"""A tree whose nodes all come out of one pass, which fills the places behind the end of a text."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from foretoken import kernels
from foretoken.drafters.growing import GrowingTree
from foretoken.drafters.reading import Open
from foretoken.drafters.tree import TreeDrafter


@dataclass(eq=False, kw_only=True)
class OnePassDrafter(TreeDrafter):
    """A chain is a tree of width 1. confidence: nothing is drafted behind a token to which the drafter gives a smaller
    probability than this, at temperature 1 and without the noise of sampling. A subclass says how a tree grows
    (`_grow`)."""

    confidence: float = 0.0

    def _planted(self, opened: Open, writer: int) -> GrowingTree:
        """A tree in which no step but the first takes a pass, so none has to pay for one."""
        tree = super()._planted(opened, writer)
        tree.growth.least = 0.0
        return tree

    def _expand(self, tree: GrowingTree, node: int, logits: torch.Tensor) -> None:
        """logits: of the tokens that it can draft."""
        first = len(tree.growth.tokens)
        super()._expand(tree, node, logits)
        if self.confidence and len(tree.growth.tokens) > first:
            least = math.log(self.confidence) + kernels.log_total(logits.numpy())
            of_all = self._over_all(logits)
            new = range(first, len(tree.growth.tokens))
            tree.unsure.update(child for child in new if not float(of_all[tree.growth.tokens[child]]) >= least)

    def _over_all(self, logits: torch.Tensor) -> torch.Tensor:
        """A row of logits as a row of all tokens."""
        return logits
