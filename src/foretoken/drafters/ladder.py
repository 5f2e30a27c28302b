"""Makes a drafter from the text that a user gives: `lookup`, `mxfp4,lookup`, `PATH:k=4:depth=6`.

The level nearest to the target comes first. Each level is sped up by the one after it, and checks its drafts. A level's
recipe reads its options and makes it (foretoken.drafters.recipe). This module puts the levels together.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

from foretoken.drafters.decoders import decoder_level, in_format
from foretoken.drafters.recipe import Level, recipe_of
from foretoken.drafters.table import DRAFTERS
from foretoken.drafters.trained import expect_places
from foretoken.errors import DraftSpecError
from foretoken.protocol.types import TARGET
from foretoken.settings.drafts import DraftLevel, parse_draft
from foretoken.settings.load import AUTO, LoadSettings


def name_levels(settings: LoadSettings) -> list[Level]:
    """The levels that a draft names, before anything is loaded. num_speculative_tokens applies to the first level.

    Raises DraftSpecError for levels that are not known, or that do not go together.
    """
    spec, asked = settings.draft, settings.num_speculative_tokens
    levels = [_name(level) for level in parse_draft(spec)]
    for at in range(len(levels) - 1):
        above, level = levels[at : at + 2]
        levels[at + 1] = level.recipe.speeding_up(level, above, spec)
        levels[at] = above.recipe.sped_up(above, level, spec)
    if asked is not None:
        for option in ("tokens", "nodes"):
            if levels[0].options.get(option, asked) != asked:
                raise DraftSpecError(
                    f"draft {spec!r} asks for {levels[0].tokens} {option}, num_speculative_tokens for {asked}; "
                    "give one of them"
                )
        levels[0] = replace(levels[0], tokens=asked, is_asked=True)
    for level in levels:
        level.recipe.expect_size(level, spec)
    for level in levels:
        level.recipe.expect_rule(level, settings.rule, spec)
    return _called(levels)


def expect_known(settings: LoadSettings) -> None:
    """Refuse, as `name_levels` does, a wrong draft before anything is loaded. What `auto` is shows only with the
    model."""
    if settings.draft != AUTO:
        name_levels(settings)


def find_levels(levels: list[Level], folder: Path) -> list[Level]:
    """The levels, completed from files, before weights are loaded. folder: the target's."""
    found = [level.recipe.found(level, folder) for level in levels]
    _expect_copies_first(found)
    expect_places(found)
    return found


def _name(level: DraftLevel) -> Level:
    entry = DRAFTERS.get(level.name)
    if entry is None:
        return decoder_level(level)
    return recipe_of(entry).level(level.name, entry, level.values(entry.options))


def _called(levels: list[Level]) -> list[Level]:
    """The levels, each with a name of its own. Two checkpoints may lie in folders of one name, or one in a folder
    named `target`."""
    taken = {TARGET, *DRAFTERS}
    called = []
    for place, level in enumerate(levels, 1):
        name = Path(level.name).absolute().name if level.has_decoder and not level.is_copy else level.name
        if level.has_decoder and name in taken and level.name not in DRAFTERS:
            name = f"{name}-{place}"
        taken.add(name)
        called.append(replace(level, called=name))
    return called


def _expect_copies_first(levels: list[Level]) -> None:
    """Raise DraftSpecError for a copy of the model below another checkpoint: a larger model would draft for a smaller
    one."""
    for above, level in itertools.pairwise(levels):
        if level.is_copy and above.has_decoder and not above.is_copy:
            made = ""
            if level.folder is None and level.format is not None:
                made = f", or name a copy of that one: {in_format(above.name, level.format)}"
            raise DraftSpecError(
                f"draft {level.name!r} is a copy of the model, and would draft for {above.name!r} here; put it first"
                f"{made}"
            )
