"""The recipe of a kind of draft: how its name and options are read, what it goes together with, and how it is made.

A drafter's file ends with its recipe, `RECIPE`. The table of drafters has a row for each drafter, which names the file.
`ladder.py` asks the recipes, and knows none of them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from foretoken.copies.beside import About
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.shapes import OUTPUT
from foretoken.decoder.views import Views
from foretoken.drafters.table import KV, TRAINED, TRAINED_TREE, DrafterEntry
from foretoken.errors import DraftSpecError, quoted
from foretoken.formats import Format
from foretoken.protocol.roles import Drafter
from foretoken.protocol.types import Budget
from foretoken.sampling.sampler import MakeSampler
from foretoken.sampling.samplers import Samplers
from foretoken.settings.load import MOST_DRAFT_TOKENS, LoadSettings
from foretoken.text.tokenizer import Tokenizer
from foretoken.trained.config import MixtureConfig
from foretoken.trained.files import read_trained_config
from foretoken.trained.observer import Sight
from foretoken.trained.published_block import PublishedBlock
from foretoken.trained.published_mixture import PublishedMixture


@dataclass(frozen=True)
class Level:
    """One level of a draft: its row in the table of drafters, its options, and the most tokens that it drafts.

    format: the low-bit format of the level's decoder, if it has one. is_copy: whether the decoder is the target's own
    copy. For a format's name this is known at once, for a checkpoint only after `folder` has been looked into. called:
    the level's name in origins and statistics, which no other level has. is_asked: whether `num_speculative_tokens`
    says how many tokens it drafts.
    """

    name: str
    entry: DrafterEntry
    options: dict[str, Any]
    tokens: int
    format: Format | None = None
    called: str = ""
    is_copy: bool = False
    folder: Path | None = None
    is_asked: bool = False

    @property
    def recipe(self) -> Recipe:
        """The recipe that makes it."""
        return recipe_of(self.entry)

    @property
    def budget(self) -> Budget:
        """The most that it drafts in a round."""
        return self.recipe.budget(self)

    @property
    def own_layers(self) -> tuple[int, ...]:
        """For a copy of the target: the layers that stay the target's own, `OUTPUT` for the output layer."""
        return (*self.options.get("own-layers", ()), *((OUTPUT,) if "own-head" in self.options else ()))

    @property
    def reads_int8(self) -> bool:
        """Whether it is a copy on the target's cache that is to read old keys and values in int8: unless it is told, if
        it has four bits or fewer. A copy in int8 loses more by it (LOG.md, 29 November 2026)."""
        if not self.is_copy or self.format is None or "own-cache" in self.options or self.recipe.substitutes:
            return False
        usual = "int8" if self.format.bits <= 4 else "full"
        return bool(self.options.get(KV, usual) == "int8")

    @property
    def has_decoder(self) -> bool:
        """Whether it is a checkpoint or a copy of the target."""
        return self.recipe.has_decoder

    def expect_features(self, settings: LoadSettings) -> None:
        """Raise DraftSpecError for a trained drafter where it cannot see what the target computes, or where it would
        wait for layers of the target."""
        if not self.is_trained:
            return
        assert self.folder is not None
        its = None if settings.device == "cpu" and not settings.offloads else read_trained_config(self.folder)[0]
        if not settings.cache:
            why = "needs what the model has computed, which is not kept without a cache"
        elif isinstance(its, PublishedBlock | PublishedMixture) and settings.device != "cpu":
            why = "has rows that see others than those before them, which run on the CPU alone"
        elif not settings.offloads:
            return
        elif settings.device != "cpu":
            why = "cannot be used with --memory or --stream-layers on a GPU yet"
        elif isinstance(its, MixtureConfig) and its.ends:
            why = "ends with layers of the model, which would have to come in for each draft token"
        else:
            return
        raise DraftSpecError(f"draft {quoted(self.name, 80)} is a trained drafter, and {why}; use lookup there")

    @property
    def is_trained(self) -> bool:
        """Whether it is a drafter that was trained for the target. That is known once its folder was looked into."""
        return self.entry in (TRAINED, TRAINED_TREE)


class LoadedLevel(NamedTuple):
    """The loaded decoder of a level. copy: the low-bit copy from which its weights were read, if there is one.
    observer: of a trained drafter, what it knows of the part that runs beside the target."""

    decoder: Decoder
    tokenizer: Tokenizer | None = None
    copy: About | None = None
    observer: Sight | None = None


@dataclass(frozen=True)
class Context:
    """The things of which a drafter can be made.

    target, tokenizer: the model for which it drafts. samplers: of that model's requests. rule: the rule that judges
    drafts. load: loads the decoder of a level (`api/levels.py`). faithful: whether a published method does everything
    that was published, for comparison, where this project would do less. views: views of the target's caches, or of the
    caches on which the level above checks. rest: the levels below the one that is made.
    """

    target: Decoder
    tokenizer: Tokenizer | None
    samplers: Samplers
    rule: str
    load: Callable[[Level], LoadedLevel]
    faithful: bool = False
    views: Views | None = None
    rest: tuple[Level, ...] = ()

    def make(self, levels: Sequence[Level]) -> Drafter:
        """Make the drafter of some levels. Each level makes the one below it."""
        level, *rest = levels
        return level.recipe.make(level, replace(self, rest=tuple(rest)))

    def below(self, level: Level) -> Callable[[Views], Drafter] | None:
        """What makes the drafter that speeds this level up, if there is one. It is called with views of the caches on
        which this level checks. A copy's are handed on; those of another model are of no use to the target's copies."""
        if not self.rest:
            return None
        return lambda views: replace(self, views=views if level.is_copy else None).make(self.rest)

    @property
    def independent(self) -> bool:
        """Whether drafts are sampled with noise of their own, as the rejection rule needs, or with the target's."""
        return self.rule == "rejection"

    @property
    def guessing(self) -> MakeSampler:
        """Makes the samplers with which a draft guesses tokens."""
        return self.samplers.independent if self.independent else self.samplers.target


class Expected(NamedTuple):
    """The share of a level's tokens that is accepted before anything is known, for each kind of place in the text
    (`foretoken.api.pacing`), and how many tokens that opinion is worth."""

    shares: tuple[float, ...]
    weight: float = 3.0


class Recipe:
    """One kind of draft. The defaults suit most: a chain of tokens, without a decoder, that nothing speeds up."""

    has_decoder = False
    substitutes = False  # whether it is a copy of those layers alone that are read from the disk in each pass
    paced = False  # whether its drafts may be of any length, from round to round: those without `tokens`
    # the share of its tokens that is accepted before anything is known, by the kind of place (`foretoken.api.pacing`)
    usual: tuple[float, ...] = (0.7, 0.7, 0.7, 0.75, 0.8, 0.9)

    def level(self, name: str, entry: DrafterEntry, options: dict[str, Any]) -> Level:
        """The level for a name with these options. Raises DraftSpecError for options that contradict each other."""
        return Level(name, entry, options, options.get("tokens", entry.num_speculative_tokens))

    def found(self, level: Level, folder: Path) -> Level:
        """The level, completed from files, before weights are loaded. folder: the target's."""
        return level

    def budget(self, level: Level) -> Budget:
        """The most that a level of this kind drafts in a round."""
        return Budget(level.tokens, level.tokens)

    def free(self, level: Level) -> bool:
        """Whether a pace may choose how much the level drafts: nothing that was asked for says it."""
        return self.paced and "tokens" not in level.options

    def expected(self, level: Level) -> Expected:
        """How many of the level's tokens are accepted before anything is known."""
        return Expected(self.usual)

    def ends_itself(self, level: Level) -> bool:
        """Whether the level's drafts end where they are unsure, if the pace may choose their length."""
        return False

    def at_once(self, level: Level) -> int:
        """How many tokens the level drafts in one pass."""
        return 1

    def make(self, level: Level, context: Context) -> Drafter:
        """Make the drafter."""
        raise NotImplementedError

    def expect_size(self, level: Level, spec: str) -> None:
        """Raise DraftSpecError for more draft tokens than a round may have."""
        if level.tokens > MOST_DRAFT_TOKENS:
            raise DraftSpecError(
                f"draft {spec!r} asks for {level.tokens} tokens a round, expected at most {MOST_DRAFT_TOKENS}"
            )

    def speeding_up(self, level: Level, above: Level, spec: str) -> Level:
        """The level as it is below another one. Raises DraftSpecError if this kind cannot speed up that one."""
        return level

    def sped_up(self, level: Level, below: Level, spec: str) -> Level:
        """The level as it is above another one. Raises DraftSpecError if this kind cannot be sped up by that one."""
        raise DraftSpecError(
            f"draft {spec!r}: {level.name!r} cannot be sped up by {below.name!r}; only a decoder can be sped up"
        )

    def expect_rule(self, level: Level, rule: str, spec: str) -> None:
        """Raise DraftSpecError for a rule that cannot judge drafts of this kind."""


def recipe_of(entry: DrafterEntry) -> Recipe:
    """The recipe in the module of a row."""
    recipe: Recipe = import_module(entry.module).RECIPE
    return recipe
