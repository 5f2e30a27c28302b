"""How a folder that was named as a draft becomes the level of a trained drafter."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from foretoken.common.source import EMBEDDED_DRAFTERS
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import read_config
from foretoken.drafters.recipe import Level
from foretoken.drafters.table import TRAINED, TRAINED_TREE, TREE
from foretoken.errors import CheckpointError, DraftSpecError, quoted
from foretoken.formats import FORMATS
from foretoken.kernels import native
from foretoken.trained.files import is_trained, place_beside, read_trained_config

log = logging.getLogger(__name__)

OBSERVED_IN = FORMATS["int8"]  # what it sees is worth more than what a coarser format would save
# What a trained drafter is cast to. Its drafts are as good as in bf16, and read half as much (LOG, 25 November 2026).
_USUAL = "int8"


def trained_for(folder: Path) -> str | None:
    """The drafter that was trained for the model in a folder, as --draft takes it. It lies beside the folder, or is
    embedded. None if there is none."""
    config = read_config(folder)
    for name, place in ((str(place_beside(folder)), place_beside(folder)), *EMBEDDED_DRAFTERS.items()):
        if not is_trained(place) or set(name) & set(",:"):
            continue
        try:
            its, _ = read_trained_config(place)
        except CheckpointError as error:
            log.warning("%s; it is left out", error)
            continue
        if its.fingerprint == fingerprint(folder, config):
            return name
    return None


def can_be_sped_up(name: str) -> bool:
    """Whether lookup may stand below a trained drafter. name: as `trained_for` gives it."""
    its, _ = read_trained_config(EMBEDDED_DRAFTERS.get(name, Path(name)))
    return not its.follows


def as_trained(level: Level, place: Path, folder: Path) -> Level:
    """The level for a trained drafter that lies at `place`. folder: the target's. Raises DraftSpecError if it was
    trained for another model, and for options that only copies of the model have."""
    its, _ = read_trained_config(place)
    target = read_config(folder)
    its.expect_suits(target, f"the draft {quoted(level.name, 80)}")
    expect_trained_for(place, fingerprint(folder, target), level.name)
    return trained_level(level, place)


def expect_trained_for(place: Path, target: str, called: str) -> None:
    """Raise DraftSpecError for the drafter of another model. target: the model's fingerprint."""
    its, _ = read_trained_config(place)
    if its.fingerprint != target:
        raise DraftSpecError(
            f"the draft {quoted(called, 80)} was trained for another model of this shape, or for this one before "
            "its weights were changed; train one for this model: foretoken train moa --target MODEL"
        )


def trained_level(level: Level, place: Path) -> Level:
    """The level for a trained drafter of this model. Raises DraftSpecError for options that only copies have."""
    for option in level.options:
        if option.startswith("own-"):
            raise DraftSpecError(
                f"draft {quoted(level.name, 80)} is a trained drafter, which has no option {option!r}; leave it out"
            )
    entry = TRAINED_TREE if level.entry is TREE else TRAINED
    usual = None if "format" in level.options or native.module() is None else FORMATS[_USUAL]
    return replace(level, entry=entry, folder=place, format=level.format or usual)
