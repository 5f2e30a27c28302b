"""The recipes of trained drafters: a folder that `foretoken train` has written, as a chain or as a tree."""

from __future__ import annotations

from typing import Any

from foretoken.drafters.block import BlockDrafter
from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.chain_recipe import ChainRecipe
from foretoken.drafters.crossing import CrossingDrafter, CrossingTreeDrafter
from foretoken.drafters.decoders import DecoderRecipe
from foretoken.drafters.eagle import EagleDrafter, EagleTreeDrafter
from foretoken.drafters.filling import FillingDrafter
from foretoken.drafters.mixture import MixtureDrafter, MixtureTreeDrafter
from foretoken.drafters.one_pass import OnePassDrafter
from foretoken.drafters.recipe import Context, Expected, Level, LoadedLevel
from foretoken.drafters.tree import TreeDrafter
from foretoken.drafters.tree_recipe import TreeRecipe
from foretoken.protocol.roles import Drafter
from foretoken.trained.blocks import BlockDecoder
from foretoken.trained.config import BlockConfig
from foretoken.trained.crossing import CrossingDecoder
from foretoken.trained.files import accepted_of, read_trained_config
from foretoken.trained.filling import FillingDecoder
from foretoken.trained.following import FollowingDecoder
from foretoken.trained.published_block import PublishedBlock


class TrainedRecipe(DecoderRecipe):
    """What the recipes of a chain and of a tree have in common."""

    def expected(self, level: Level) -> Expected:
        """The share that was accepted on held-out text, when the drafter was trained."""
        usual = super().expected(level)
        shares = () if level.folder is None else accepted_of(read_trained_config(level.folder)[1])
        return Expected((shares[0],) * len(usual.shares)) if shares else usual

    def at_once(self, level: Level) -> int:
        """A block's drafts take one pass."""
        its = None if level.folder is None else read_trained_config(level.folder)[0]
        if isinstance(its, PublishedBlock):
            return its.drafts
        return its.block if isinstance(its, BlockConfig) else 1

    def arguments(self, level: Level, loaded: LoadedLevel, context: Context) -> dict[str, Any]:
        """The arguments that drafters of all kinds take."""
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

    def ends_itself(self, level: Level) -> bool:
        """A block's chain does: how sure it is of each token is known before any is sent."""
        its = None if level.folder is None else read_trained_config(level.folder)[0]
        return isinstance(its, BlockConfig | PublishedBlock)

    def make(self, level: Level, context: Context) -> Drafter:
        """Make the drafter."""
        loaded = context.load(level)
        confidence = level.options.get("confidence", 0.0)
        kind: Any = _kind(loaded, MixtureDrafter, EagleDrafter, CrossingDrafter, ModelDrafter)
        of_tree = {"shape": "best-first", "sharpness": 1.0, "pauses": True} if issubclass(kind, OnePassDrafter) else {}
        made: Drafter = kind(**self.arguments(level, loaded, context), **of_tree, confidence=confidence)
        return made


class TrainedTreeRecipe(TrainedRecipe, TreeRecipe):
    """A tree of a trained drafter."""

    def make(self, level: Level, context: Context) -> TreeDrafter:
        """Make the drafter."""
        its, loaded = self.sizes.of(level.options), context.load(level)
        kind: Any = _kind(loaded, MixtureTreeDrafter, EagleTreeDrafter, CrossingTreeDrafter, TreeDrafter)
        shape = {name: its[name] for name in ("shape", "sharpness", "sampled")}
        made: TreeDrafter = kind(**self.arguments(level, loaded, context), **shape, pauses=True)
        return made


def _kind(loaded: LoadedLevel, mixture: Any, eagle: Any, crossing: Any, independent: Any) -> Any:
    if isinstance(loaded.decoder, FillingDecoder):
        return FillingDrafter
    if isinstance(loaded.decoder, BlockDecoder):
        return BlockDrafter
    if isinstance(loaded.decoder, CrossingDecoder):
        return crossing
    if loaded.observer is not None:
        return mixture
    return eagle if isinstance(loaded.decoder, FollowingDecoder) else independent


RECIPE = TrainedChainRecipe()
