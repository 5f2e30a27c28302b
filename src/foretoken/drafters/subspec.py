"""The recipe of SubSpec: low-bit substitutes of the layers that do not fit into memory draft a deep tree.

Substitutes draft on the model's own keys and values. Layers that stay in memory are shared as they are, and so are
embedding, norms and output layer. Where the whole model fits, every layer has a substitute.

Source: SubSpec (Wang et al. 2025), sections 4.1 and 4.2: 4 bits, a tree 6 wide and 48 deep, draft temperature 0.2. The
best-first tree is ours. It goes deep where the substitutes are sure, and ends where another pass of theirs costs more
than it can gain.
"""

from __future__ import annotations

from typing import Any

from foretoken.drafters.decoders import format_asked
from foretoken.drafters.recipe import Level
from foretoken.drafters.table import DrafterEntry
from foretoken.drafters.tree_recipe import TreeRecipe, Usual


class SubspecRecipe(TreeRecipe):
    """A tree of a copy, which is made of the layers that are read from the disk."""

    substitutes = True
    sizes = Usual(6, 48, 0.2, 0.5, {"k": 4, "depth": 160, "nodes": 288, "least": 0.3, "sampled": 0.35})

    def level(self, name: str, entry: DrafterEntry, options: dict[str, Any]) -> Level:
        """The level for these options."""
        options = {"format": "int4", "own-head": True, **options}
        made = super().level(name, entry, options)
        return Level(name, entry, options, made.tokens, format_asked(name, options), is_copy=True)

    def free(self, level: Level) -> bool:
        """No price says how large a tree is best: a check takes as long as the disk does, until its rows take longer
        (`foretoken.pace.waiting`)."""
        return False


RECIPE = SubspecRecipe()
