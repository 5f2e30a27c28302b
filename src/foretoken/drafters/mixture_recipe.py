"""The recipes of trained drafters: a folder that `foretoken train` has written, as a chain or as a tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretoken.drafters.chain_recipe import ChainRecipe
from foretoken.drafters.mixture import MixtureDrafter, MixtureTreeDrafter
from foretoken.drafters.recipe import Context, Expected, Level
from foretoken.drafters.table import CHECKPOINT_OPTIONS
from foretoken.drafters.tree_recipe import TreeRecipe
from foretoken.errors import DraftSpecError, quoted
from foretoken.protocol.roles import Drafter
from foretoken.trained.files import accepted_of, read_trained_config


def _expect_no_format(level: Level) -> None:
    for option in CHECKPOINT_OPTIONS:
        if option in level.options:
            raise DraftSpecError(
                f"draft {quoted(level.name, 80)} is a trained drafter, which has no option {option!r}; leave it out"
            )


def _expected(level: Level, usual: Expected) -> Expected:
    """What the drafter had when it was trained, on held-out text."""
    shares = () if level.folder is None else accepted_of(read_trained_config(level.folder)[1])
    return Expected((shares[0],) * len(usual.shares)) if shares else usual


def _arguments(level: Level, context: Context) -> dict[str, Any]:
    loaded = context.load(level)
    assert loaded.observer is not None
    return {
        "model": loaded.decoder,
        "samplers": context.guessing,
        "observer": loaded.observer,
        "beside": context.views,
        "below": context.below(level),
        "name": level.called,
        "vocab_size": context.target.config.valid_vocab_size,
        "independent": context.independent,
    }


class MixtureRecipe(ChainRecipe):
    """A chain of a trained drafter."""

    def expected(self, level: Level) -> Expected:
        """The share that was accepted on held-out text."""
        return _expected(level, super().expected(level))

    def found(self, level: Level, folder: Path) -> Level:
        """The level as it is: it was found before its kind was known."""
        _expect_no_format(level)
        return level

    def make(self, level: Level, context: Context) -> Drafter:
        """Make the drafter."""
        confidence = level.options.get("confidence", 0.0)
        return MixtureDrafter(**_arguments(level, context), confidence=confidence)


class MixtureTreeRecipe(TreeRecipe):
    """A tree of a trained drafter."""

    def expected(self, level: Level) -> Expected:
        """The share that was accepted on held-out text."""
        return _expected(level, super().expected(level))

    def found(self, level: Level, folder: Path) -> Level:
        """The level as it is."""
        _expect_no_format(level)
        return level

    def make(self, level: Level, context: Context) -> MixtureTreeDrafter:
        """Make the drafter."""
        its = self.sizes.of(level.options)
        shape = {name: its[name] for name in ("shape", "sharpness", "sampled")}
        return MixtureTreeDrafter(**_arguments(level, context), **shape, pauses=True)


RECIPE = MixtureRecipe()
