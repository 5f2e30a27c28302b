"""Drafts with a published Mixture of Attentions, which sees no token behind the observer's vectors in its second layer.

Everything else is as with one of ours (`foretoken.drafters.mixture`).
"""

from __future__ import annotations

from dataclasses import dataclass

from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.mixture import Observing
from foretoken.drafters.reading import Open
from foretoken.drafters.tree import TreeDrafter
from foretoken.protocol.types import Turn
from foretoken.trained.crossing import CrossingDecoder


@dataclass(eq=False, kw_only=True)
class Crossing(Observing):
    """What a chain and a tree have in common. It stands before `ModelDrafter` or `TreeDrafter`, as `Observing` does."""

    def opened(self, turn: Turn, count: int) -> Open | None:
        """As `Observing.opened`. None, too, if nothing was observed yet: the second layer would see nothing."""
        opened = super().opened(turn, count)
        if opened is None or not opened.reading.seen:
            return None
        assert isinstance(self.model, CrossingDecoder)
        self.model.see(opened.cache, opened.reading.seen)
        return opened


@dataclass(eq=False, kw_only=True)
class CrossingDrafter(Crossing, ModelDrafter):
    """A chain."""


@dataclass(eq=False, kw_only=True)
class CrossingTreeDrafter(Crossing, TreeDrafter):
    """A tree."""
