"""Which draft `draft="auto"` is: the one that `foretoken recommend` has measured, or else a guess."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from foretoken.common.files import cache_folder, read_json, write_json
from foretoken.common.limits import memory_left
from foretoken.common.provenance import machine, version_of
from foretoken.copies import beside
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import DecoderConfig, read_config
from foretoken.decoder.low_bit import size_in
from foretoken.decoder.shapes import linear_shapes
from foretoken.drafters.ladder import find_levels, name_levels
from foretoken.errors import ForetokenError, InputError
from foretoken.formats import FORMATS
from foretoken.kernels import native
from foretoken.settings.load import AUTO, LoadSettings

log = logging.getLogger(__name__)

_COPY = "mxfp4"
_CAST = 0.2e9  # weights cast in a second, on the slowest machine that was measured
_PATIENCE = 10.0  # seconds that casting a copy may take
_SMALL = 50e6  # weights; a pass of a smaller model spends as long on other things as on reading them (LOG)
_SPARE = 2 << 30  # bytes of memory that are left free
_KIND = "recommendation"
_TREE = ":k=2"  # the option that makes a copy draft trees


@dataclass(frozen=True)
class Recommended:
    """A draft that was measured for a model on a machine, at pace `auto`. speedup: over plain decoding."""

    draft: str
    speedup: float


def with_draft_chosen(settings: LoadSettings, folder: Path, called: str, *, loaded: bool = False) -> LoadSettings:
    """The settings, with a draft in place of `auto`. folder: the model's. called: as the user names the model. loaded:
    whether its weights are in memory already."""
    if settings.draft != AUTO:
        return settings
    config = read_config(folder)
    found = recall(folder, config, settings)
    if found is not None and (why := _unusable(found.draft, folder)) is not None:
        log.warning("the recommended draft cannot be used (%s); `foretoken recommend %s` finds another", why, called)
        found = None
    if found is None:
        draft = guess(folder, config, settings, loaded=loaded)
        level = logging.DEBUG if _weights(config) < _SMALL else logging.INFO  # where all is quick, nobody needs advice
        log.log(level, "draft auto: %s (a guess; `foretoken recommend %s` measures what is fastest)", draft, called)
    else:
        draft = found.draft
        log.debug("draft auto: %s (measured here: %.2f times plain decoding)", draft, found.speedup)
    if settings.rule == "rejection":  # it cannot judge such trees
        draft = draft.replace(_TREE, "")
    return replace(settings, draft=draft)


def _unusable(draft: str, folder: Path) -> str | None:
    """Why a remembered draft cannot be used any more: a folder that it names may be gone, or hold something else. None
    if it can be used. folder: the model's."""
    try:
        find_levels(name_levels(LoadSettings(draft=draft)), folder)
    except ForetokenError as error:
        return str(error)
    return None


def recall(folder: Path, config: DecoderConfig, settings: LoadSettings) -> Recommended | None:
    """What was remembered for a model on this machine with these settings. A file that cannot be read is left alone."""
    if not cache_folder("recommended").is_dir():  # then the fingerprint need not be waited for
        return None
    place = _place(folder, config, settings)
    if not place.is_file():
        return None
    try:
        raw = read_json(place, "run `foretoken recommend` again")
    except InputError as error:
        log.warning("%s", error)
        return None
    kinds = {"draft": str, "speedup": float}
    if not isinstance(raw, dict) or not all(isinstance(raw.get(name), kind) for name, kind in kinds.items()):
        log.warning("%s is no recommendation; run `foretoken recommend` again", place)
        return None
    return Recommended(*(raw[name] for name in kinds))


def remember(found: Recommended, folder: Path, config: DecoderConfig, settings: LoadSettings) -> Path:
    """Keep a recommendation for this model, machine and settings; returns the file. Raises InputError where it cannot
    be written."""
    place = _place(folder, config, settings)
    write_json(place, {"kind": _KIND, "model": folder.name, **_circumstances(settings), **asdict(found)})
    return place


def _place(folder: Path, config: DecoderConfig, settings: LoadSettings) -> Path:
    here = hashlib.sha256(json.dumps(_circumstances(settings), sort_keys=True).encode()).hexdigest()
    return cache_folder("recommended") / f"{fingerprint(folder, config)[:16]}-{here[:16]}.json"


def _circumstances(settings: LoadSettings) -> dict[str, Any]:
    """What a speed depends on, beside the model."""
    return {
        "version": version_of("foretoken"),
        "machine": machine(),
        "isa": native.isa() if native.module() is not None else None,
        **{name: getattr(settings, name) for name in ("dtype", "device", "promise", "weights", "cache")},
        "threads": settings.threads or torch.get_num_threads(),
    }


def guess(folder: Path, config: DecoderConfig, settings: LoadSettings, *, loaded: bool = False) -> str:
    """The draft to begin with where none was measured: a copy of the model if it is there or soon made. loaded: whether
    the weights are in memory already."""
    form = FORMATS[_COPY]
    if settings.device != "cpu" or native.module() is None or config.low_bit is not None or not settings.cache:
        return "lookup"
    weights = _weights(config)
    there = (beside.place_beside(folder, form) / "config.json").is_file()
    left = memory_left()
    each = 0 if loaded else 4 if "float32" in (config.dtype, settings.dtype) else 2
    needed = _SPARE + size_in(form, config) + weights * each
    if weights < _SMALL or (weights > _CAST * _PATIENCE and not there) or (left is not None and left < needed):
        return "lookup"
    return f"{_COPY}{_TREE},lookup"


def _weights(config: DecoderConfig) -> int:
    return sum(height * width for height, width in linear_shapes(config).values())
