"""The recipe of chains: reads their options, and makes the drafter."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.decoders import DecoderRecipe, difference
from foretoken.drafters.recipe import Context, Level, LoadedLevel
from foretoken.drafters.table import DrafterEntry
from foretoken.drafters.translated import TranslatedDrafter
from foretoken.errors import DraftSpecError
from foretoken.protocol.roles import Drafter
from foretoken.sampling.samplers import Samplers

log = logging.getLogger(__name__)


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

    def make(self, level: Level, context: Context) -> Drafter:
        """Make the drafter. It and all levels below it speak the tokens of its own tokenizer."""
        loaded = context.load(level)
        ours, theirs = context.tokenizer, loaded.tokenizer
        if level.is_copy or difference(level.name, ours, theirs) is None:
            return self._chain(level, loaded, context)
        assert ours is not None
        assert theirs is not None
        log.info("%s has another tokenizer: what it drafts is translated, as text", level.called)
        its = replace(context, target=loaded.decoder, tokenizer=theirs, samplers=Samplers(theirs), rule="walk")
        return TranslatedDrafter(self._chain(level, loaded, its), ours, theirs)

    def _chain(self, level: Level, loaded: LoadedLevel, context: Context) -> ModelDrafter:
        return ModelDrafter(
            loaded.decoder,
            context.guessing,
            confidence=level.options.get("confidence", 0.0),
            below=context.below(level),
            **self.common(level, context),
        )

    def sped_up(self, level: Level, below: Level, spec: str) -> Level:
        """The level as it is: any draft that can speed up another can speed up a chain."""
        return level


RECIPE = ChainRecipe()
