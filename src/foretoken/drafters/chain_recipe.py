"""The recipe of chains: reads their options, and makes the drafter."""

from __future__ import annotations

from typing import Any

from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.decoders import DecoderRecipe
from foretoken.drafters.recipe import Context, Level
from foretoken.drafters.table import DrafterEntry
from foretoken.errors import DraftSpecError


class ChainRecipe(DecoderRecipe):
    """A chain, which another draft may speed up."""

    paced = True

    def level(self, name: str, entry: DrafterEntry, options: dict[str, Any]) -> Level:
        """The level for these options. Raises DraftSpecError for a confidence that no token can have."""
        confidence = options.get("confidence", 0.0)
        if confidence >= 1:
            raise DraftSpecError(
                f"draft {name!r}: confidence is {confidence:g}, expected a probability below 1, such as 0.4"
            )
        return super().level(name, entry, options)

    def make(self, level: Level, context: Context) -> ModelDrafter:
        """Make the drafter."""
        loaded, common = self.loaded(level, context)
        confidence = level.options.get("confidence", 0.0)
        return ModelDrafter(loaded.decoder, context.guessing, confidence=confidence, below=context.below, **common)

    def sped_up(self, level: Level, below: Level, spec: str) -> Level:
        """The level as it is: any draft that can speed up another can speed up a chain."""
        return level


RECIPE = ChainRecipe()
