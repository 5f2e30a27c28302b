"""The recipes of trained drafters: a folder that `foretoken train` has written, as a chain or as a tree."""

from __future__ import annotations

from typing import Any

from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.chain_recipe import ChainRecipe
from foretoken.drafters.decoders import DecoderRecipe
from foretoken.drafters.eagle import EagleDrafter, EagleTreeDrafter
from foretoken.drafters.mixture import MixtureDrafter, MixtureTreeDrafter
from foretoken.drafters.recipe import Context, Expected, Level, LoadedLevel
from foretoken.drafters.tree import TreeDrafter
from foretoken.drafters.tree_recipe import TreeRecipe
from foretoken.errors import DraftSpecError, quoted
from foretoken.protocol.roles import Drafter
from foretoken.trained.files import accepted_of, read_trained_config
from foretoken.trained.following import FollowingDecoder


class TrainedRecipe(DecoderRecipe):
    """What the recipes of a chain and of a tree have in common."""

    def expected(self, level: Level) -> Expected:
        """The share that was accepted on held-out text, when the drafter was trained."""
        usual = super().expected(level)
        shares = () if level.folder is None else accepted_of(read_trained_config(level.folder)[1])
        return Expected((shares[0],) * len(usual.shares)) if shares else usual

    def arguments(self, level: Level, loaded: LoadedLevel, context: Context) -> dict[str, Any]:
        """The arguments that drafters of all kinds take. Raises DraftSpecError for a draft below one whose rows follow
        one another."""
        if context.rest and isinstance(loaded.decoder, FollowingDecoder):
            raise DraftSpecError(
                f"draft {quoted(level.name, 80)} is EAGLE's, each of whose rows needs what the row before put out, so "
                f"{context.rest[0].name!r} cannot speed it up; leave that out"
            )
        seen = {} if loaded.observer is None else {"observer": loaded.observer, "beside": context.views}
        return {
            "model": loaded.decoder,
            "samplers": context.guessing,
            "below": context.below(level),
            **self.common(level, context),
            **seen,
        }


class TrainedChainRecipe(TrainedRecipe, ChainRecipe):
    """A chain of a trained drafter."""

    def make(self, level: Level, context: Context) -> Drafter:
        """Make the drafter."""
        loaded = context.load(level)
        kind: Any = _kind(loaded, MixtureDrafter, EagleDrafter, ModelDrafter)
        confidence = level.options.get("confidence", 0.0)
        made: ModelDrafter = kind(**self.arguments(level, loaded, context), confidence=confidence)
        return made


class TrainedTreeRecipe(TrainedRecipe, TreeRecipe):
    """A tree of a trained drafter."""

    def make(self, level: Level, context: Context) -> TreeDrafter:
        """Make the drafter."""
        its, loaded = self.sizes.of(level.options), context.load(level)
        kind: Any = _kind(loaded, MixtureTreeDrafter, EagleTreeDrafter, TreeDrafter)
        shape = {name: its[name] for name in ("shape", "sharpness", "sampled")}
        made: TreeDrafter = kind(**self.arguments(level, loaded, context), **shape, pauses=True)
        return made


def _kind(loaded: LoadedLevel, mixture: Any, eagle: Any, independent: Any) -> Any:
    if loaded.observer is not None:
        return mixture
    return eagle if isinstance(loaded.decoder, FollowingDecoder) else independent


RECIPE = TrainedChainRecipe()
