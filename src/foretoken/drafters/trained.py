"""How a folder that was named as a draft becomes the level of a trained drafter."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from foretoken.common.source import EMBEDDED_DRAFTERS
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import read_config
from foretoken.drafters.recipe import Level
from foretoken.drafters.table import OF_COPIES, TRAINED, TRAINED_TREE, TREE
from foretoken.errors import DraftSpecError, ModelError, quoted
from foretoken.formats import FORMATS
from foretoken.kernels import native
from foretoken.trained.config import BlockConfig
from foretoken.trained.files import BESIDE, is_trained, place_beside, read_trained_config
from foretoken.trained.published_block import PublishedBlock

log = logging.getLogger(__name__)

OBSERVED_IN = FORMATS["int8"]  # what it sees is worth more than what a coarser format would save
# What a trained drafter is cast to. Its drafts are as good as in bf16, and read half as much (LOG, 25 November 2026).
_USUAL = "int8"


def trained_for(folder: Path) -> list[str]:
    """The drafters that were trained for the model in a folder, as --draft takes them. They lie beside the folder, or
    are embedded."""
    config, found = read_config(folder), []
    beside = [place_beside(folder, kind) for kind in BESIDE]
    for name, place in (*zip(map(str, beside), beside, strict=True), *EMBEDDED_DRAFTERS.items()):
        if not is_trained(place) or set(name) & set(",:"):
            continue
        try:
            its, _ = read_trained_config(place)
        except ModelError as error:
            log.warning("%s; it is left out", error)
            continue
        if its.fingerprint == fingerprint(folder, config):
            found.append(name)
    return found


def can_be_sped_up(name: str) -> bool:
    """Whether lookup may stand below a trained drafter. name: as `trained_for` gives it."""
    its, _ = read_trained_config(EMBEDDED_DRAFTERS.get(name, Path(name)))
    return not its.follows


def _within(level: Level, most: int) -> Level:
    """A level that drafts at most so many tokens in a row. Raises DraftSpecError if it is asked for more."""
    for option in ("tokens", "depth"):
        asked = level.options.get(option, 0)
        if asked > most:
            raise DraftSpecError(
                f"draft {quoted(level.name, 80)}: {option} is {asked}, and it drafts at most {most} tokens in a row; "
                "ask for fewer"
            )
    return replace(level, tokens=min(level.tokens, most)) if level.is_asked else level


def expect_places(levels: Sequence[Level]) -> None:
    """Raise DraftSpecError for a trained drafter that is not the first of the levels of a draft, and for a level below
    one that it cannot speed up."""
    for level in levels[1:]:
        if level.is_trained:
            stands = "name it alone" if _why_alone(level) else f"put it first, as in {level.name},lookup"
            raise DraftSpecError(
                f"draft {quoted(level.name, 80)} is a trained drafter, which sees what the model computes; {stands}"
            )
    for level, below in pairwise(levels):
        why = _why_alone(level)
        if why:
            raise DraftSpecError(
                f"draft {quoted(level.name, 80)} {why}, so {below.name!r} cannot speed it up; leave that out"
            )
        if level.folder is not None and level.is_trained and below.has_decoder:
            its, _ = read_trained_config(level.folder)
            if isinstance(its, BlockConfig):
                raise DraftSpecError(
                    f"draft {quoted(level.name, 80)} drafts in one pass, which only lookup is fast enough to guess "
                    f"for; leave {below.name!r} out"
                )


def _why_alone(level: Level) -> str:
    """Why no other draft can speed a trained drafter up; empty if one can."""
    if not level.is_trained or level.folder is None:
        return ""
    its, _ = read_trained_config(level.folder)
    if its.follows:
        return "is EAGLE's, each of whose rows needs what the row before put out"
    return "fills all places of a block at once, whatever the others hold" if isinstance(its, PublishedBlock) else ""


def as_trained(level: Level, place: Path, folder: Path) -> Level:
    """The level for a trained drafter that lies at `place`. folder: the target's. Raises CheckpointError if it was
    trained for another model, and DraftSpecError for options that only copies of the model have."""
    its, _ = read_trained_config(place)
    target, called = read_config(folder), f"the draft {quoted(level.name, 80)}"
    its.expect_suits(target, called)
    its.expect_made_for(fingerprint(folder, target), called)
    return trained_level(level, place)


def trained_level(level: Level, place: Path) -> Level:
    """The level for a trained drafter of this model. Raises DraftSpecError for options that only copies have."""
    for option in level.options:
        if option in OF_COPIES:
            raise DraftSpecError(
                f"draft {quoted(level.name, 80)} is a trained drafter, which has no option {option!r}; leave it out"
            )
    entry = TRAINED_TREE if level.entry is TREE else TRAINED
    its, _ = read_trained_config(place)
    if isinstance(its, BlockConfig | PublishedBlock):
        if "least" in level.options:
            raise DraftSpecError(
                f"draft {quoted(level.name, 80)} drafts in one pass, so there is no other pass for 'least' to save; "
                "leave it out"
            )
        if isinstance(its, PublishedBlock):
            level = _within(level, its.drafts)
        if entry is TRAINED and "tokens" not in level.options and not level.is_asked:
            level = replace(level, tokens=its.block if isinstance(its, BlockConfig) else its.drafts)
    usual = None if "format" in level.options or native.module() is None else FORMATS[_USUAL]
    return replace(level, entry=entry, folder=place, format=level.format or usual)
