"""The recipes of trained drafters: a folder that `foretoken train` has written, as a chain or as a tree."""

from __future__ import annotations

from typing import Any

from foretoken.drafters.chain_recipe import ChainRecipe
from foretoken.drafters.decoders import DecoderRecipe
from foretoken.drafters.mixture import MixtureDrafter, MixtureTreeDrafter
from foretoken.drafters.recipe import Context, Expected, Level
from foretoken.drafters.tree_recipe import TreeRecipe
from foretoken.protocol.roles import Drafter
from foretoken.trained.files import accepted_of, read_trained_config


class TrainedRecipe(DecoderRecipe):
    """What the recipes of a chain and of a tree have in common."""

    def expected(self, level: Level) -> Expected:
        """The share that was accepted on held-out text, when the drafter was trained."""
        usual = super().expected(level)
        shares = () if level.folder is None else accepted_of(read_trained_config(level.folder)[1])
        return Expected((shares[0],) * len(usual.shares)) if shares else usual

    def arguments(self, level: Level, context: Context) -> dict[str, Any]:
        """The arguments that both drafters take."""
        loaded = context.load(level)
        assert loaded.observer is not None
        return {
            "model": loaded.decoder,
            "samplers": context.guessing,
            "observer": loaded.observer,
            "beside": context.views,
            "below": context.below(level),
            **self.common(level, context),
        }


class MixtureRecipe(TrainedRecipe, ChainRecipe):
    """A chain of a trained drafter."""

    def make(self, level: Level, context: Context) -> Drafter:
        """Make the drafter."""
        confidence = level.options.get("confidence", 0.0)
        return MixtureDrafter(**self.arguments(level, context), confidence=confidence)


class MixtureTreeRecipe(TrainedRecipe, TreeRecipe):
    """A tree of a trained drafter."""

    def make(self, level: Level, context: Context) -> MixtureTreeDrafter:
        """Make the drafter."""
        its = self.sizes.of(level.options)
        shape = {name: its[name] for name in ("shape", "sharpness", "sampled")}
        return MixtureTreeDrafter(**self.arguments(level, context), **shape, pauses=True)


RECIPE = MixtureRecipe()
