"""The low-bit copy beside its model, which is read instead of being made at every load."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from foretoken.common.source import named_beside
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import DecoderConfig, parse_config, read_json
from foretoken.decoder.loading import copied_codes
from foretoken.decoder.low_bit import INSTEAD
from foretoken.decoder.streaming import read_codes
from foretoken.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from foretoken.formats import FORMATS, Format
from foretoken.formats.weight import QuantisedWeight

log = logging.getLogger(__name__)

_OF_FILES = (CheckpointError, ModelNotFoundError, UnsupportedModelError)  # but not a lack of memory


@dataclass(frozen=True)
class About:
    """A low-bit copy, by its config.json. source: the fingerprint of the model that the copy was made of."""

    folder: Path
    format: Format
    quantiser: str
    source: object

    def is_of(self, folder: Path, config: DecoderConfig) -> bool:
        """Whether the copy was made of the model in a folder, which has this configuration."""
        return self.source is not None and config.low_bit is None and self.source == fingerprint(folder, config)


def place_beside(folder: Path, format: Format) -> Path:
    """The folder of a model's copy in a format: `llama-int4-g64` beside `llama`."""
    return named_beside(folder, format.label)


def describe(place: Path) -> About | None:
    """The description of a low-bit checkpoint; None for a checkpoint in no low-bit format."""
    raw = read_json(place / "config.json")
    format, about = parse_config(raw).low_bit, raw.get("quantization_config")
    if format is None or not isinstance(about, dict):
        return None
    return About(place, format, str(about.get("quantizer", "direct")), about.get("source"))


def described(folder: Path, config: DecoderConfig, format: Format) -> About | None:
    """The copy in a format beside a model's folder; None without one, and for a copy in another format or of other
    weights. Its weights are not read."""
    place = place_beside(folder, format)
    about = describe(place) if os.path.isfile(place / "config.json") else None
    return about if about is not None and about.format == format and about.is_of(folder, config) else None


def read(
    about: About,
    config: DecoderConfig,
    threads: int | None = None,
    *,
    own: Collection[int] = (),
    bounded: bool = False,
) -> dict[str, QuantisedWeight]:
    """The low-bit weights of a copy, by the names of their layers, in memory of their own. config: the model's; own:
    layers that stay the model's. bounded: use no more memory on the way, which may take longer."""
    low_bit = replace(config, low_bit=about.format)
    reader = read_codes if bounded else copied_codes
    return reader(about.folder, low_bit, instead=INSTEAD, without=own, threads=threads)


def find_other(folder: Path, config: DecoderConfig, format: Format) -> About | None:
    """A copy beside a model's folder, in a format other than `format`; None without one. Copies that differ only in the
    group come first."""
    others = [
        Format(name, usual.bits, group)
        for name, usual in sorted(FORMATS.items(), key=lambda item: item[0] != format.name)
        for group in usual.groups
    ]
    for other in others:
        try:
            if other != format and (about := described(folder, config, other)) is not None:
                return about
        except _OF_FILES:
            continue
    return None


def find(
    folder: Path,
    config: DecoderConfig,
    format: Format,
    threads: int | None = None,
    *,
    own: Collection[int] = (),
    bounded: bool = False,
) -> tuple[About, dict[str, QuantisedWeight]] | None:
    """The copy beside a model's folder, and its low-bit weights; None without a copy. config: the model's; own,
    bounded: as in `read`.

    A copy of other weights, in a different format or damaged, is not used, and a warning says why.
    """
    place = place_beside(folder, format)
    if config.low_bit is not None or not os.path.isfile(place / "config.json"):
        return None
    try:
        about = describe(place)
        if about is None:
            reason = "it is no low-bit copy"
        elif about.format != format:
            reason = f"it is in {about.format.label}"
        elif not about.is_of(folder, config):
            reason = f"it was made of other weights than those in {folder}"
        else:
            return about, read(about, config, threads, own=own, bounded=bounded)
    except _OF_FILES as error:
        reason = str(error)
    log.warning("%s is not used: %s; quantise the model again with --force, or take it away", place, reason)
    return None
