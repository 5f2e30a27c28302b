"""What every kind of draft says of itself: how its name and options are read, what it goes with, how it is made.

A drafter's file ends with its recipe, `RECIPE`. The table of drafters has a row for each, which says in which file it
is; `ladder.py` asks the recipes, and knows none of them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from foretoken.copies.beside import About
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.views import Views
from foretoken.drafters.table import DrafterEntry
from foretoken.errors import DraftSpecError
from foretoken.formats import Format
from foretoken.protocol.roles import Drafter
from foretoken.protocol.types import Budget
from foretoken.sampling.sampler import MakeSampler
from foretoken.sampling.samplers import Samplers
from foretoken.settings.load import MOST_DRAFT_TOKENS
from foretoken.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Level:
    """One level of a draft: its row in the table of drafters, its options, and how many tokens it drafts at most.

    format: the low-bit format of a level that a decoder stands behind, if that has one. is_copy: whether it is the
    target's own copy in it: that is known of a format's name, and of a checkpoint when its `folder` was looked into.
    `called` is the level's name in origins and statistics, where no other has it.
    """

    name: str
    entry: DrafterEntry
    options: dict[str, Any]
    tokens: int
    format: Format | None = None
    called: str = ""
    is_copy: bool = False
    folder: Path | None = None

    @property
    def recipe(self) -> Recipe:
        """How it is made."""
        return recipe_of(self.entry)

    @property
    def budget(self) -> Budget:
        """The most that it drafts in a round."""
        return self.recipe.budget(self)

    @property
    def own_layers(self) -> tuple[int, ...]:
        """Of a copy of the target, the layers that stay the target's own."""
        return tuple(self.options.get("own-layers", ()))

    @property
    def has_decoder(self) -> bool:
        """Whether it is a checkpoint or a copy of the target."""
        return self.recipe.has_decoder


class LoadedLevel(NamedTuple):
    """What stands behind a level. copy: what its weights were read from, if that is a low-bit copy."""

    decoder: Decoder
    tokenizer: Tokenizer | None = None
    copy: About | None = None


@dataclass(frozen=True)
class Context:
    """What a drafter can be made of.

    target: the model that it drafts for, and its tokenizer. samplers: of that model's requests. rule: by which drafts
    are judged. load: gives what stands behind a level that has a decoder (`api/levels.py`). faithful: a published
    method does what was published, for comparison, where we would do less. views: of the target's caches, or of those
    that the level above checks on. below: makes what speeds this one up, if anything does; it is handed views of what
    this one checks on.
    """

    target: Decoder
    tokenizer: Tokenizer | None
    samplers: Samplers
    rule: str
    load: Callable[[Level], LoadedLevel]
    faithful: bool = False
    views: Views | None = None
    below: Callable[[Views], Drafter] | None = None

    @property
    def independent(self) -> bool:
        """Whether drafts are sampled with noise of their own, for the rejection rule, and not with the target's."""
        return self.rule == "rejection"

    @property
    def guessing(self) -> MakeSampler:
        """What makes the samplers that a draft guesses with."""
        return self.samplers.independent if self.independent else self.samplers.target


class Recipe:
    """One kind of draft, as most are: a chain of tokens, without a decoder, that nothing speeds up."""

    has_decoder = False

    def level(self, name: str, entry: DrafterEntry, options: dict[str, Any]) -> Level:
        """The level that a name with these options asks for. Raises DraftSpecError for options that do not go
        together."""
        return Level(name, entry, options, options.get("tokens", entry.num_speculative_tokens))

    def found(self, level: Level, folder: Path) -> Level:
        """The level with what files say, before weights are loaded. folder: the target's."""
        return level

    def budget(self, level: Level) -> Budget:
        """The most that a level drafts in a round."""
        return Budget(level.tokens, level.tokens)

    def make(self, level: Level, context: Context) -> Drafter:
        """The drafter."""
        raise NotImplementedError

    def expect_size(self, level: Level, spec: str) -> None:
        """Refuse more draft tokens than a round may have."""
        if level.tokens > MOST_DRAFT_TOKENS:
            raise DraftSpecError(
                f"draft {spec!r} asks for {level.tokens} tokens a round, expected at most {MOST_DRAFT_TOKENS}"
            )

    def expect_below(self, level: Level, above: Level, spec: str) -> None:
        """Refuse to speed up the level above, where this kind can speed up none."""

    def expect_sped_up(self, level: Level, below: Level, spec: str) -> None:
        """Refuse to be sped up by the level below, where this kind cannot be."""
        raise DraftSpecError(
            f"draft {spec!r}: {level.name!r} cannot be sped up by {below.name!r}; only a decoder that drafts a "
            "chain can be sped up"
        )

    def expect_rule(self, level: Level, rule: str, spec: str) -> None:
        """Refuse a rule by which drafts of this kind cannot be judged."""


def recipe_of(entry: DrafterEntry) -> Recipe:
    """The recipe in a row's file."""
    recipe: Recipe = import_module(entry.module).RECIPE
    return recipe
