"""The copy that lies beside its model: read instead of being made at every load."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import DecoderConfig, parse_config, read_json
from foretoken.decoder.loading import copied_codes
from foretoken.decoder.low_bit import INSTEAD
from foretoken.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from foretoken.formats import FORMATS, Format
from foretoken.formats.weight import QuantisedWeight

log = logging.getLogger(__name__)

_OF_FILES = (CheckpointError, ModelNotFoundError, UnsupportedModelError)  # not that memory is lacking


@dataclass(frozen=True)
class About:
    """What config.json says of the low-bit copy beside it. source: the fingerprint of the model that it was made of."""

    folder: Path
    format: Format
    quantiser: str
    source: object

    def is_of(self, folder: Path, config: DecoderConfig) -> bool:
        """Whether it was made of the model in a folder, with this configuration."""
        return self.source is not None and config.low_bit is None and self.source == fingerprint(folder, config)


def place_beside(folder: Path, format: Format) -> Path:
    """Where the copy of a model in a format lies: `llama-int4-g64` beside `llama`."""
    folder = Path(os.path.abspath(folder))
    return folder.parent / f"{folder.name}-{format.label}"


def describe(place: Path) -> About | None:
    """What a checkpoint says of itself; nothing, if it is in no low-bit format."""
    raw = read_json(place / "config.json")
    format, about = parse_config(raw).low_bit, raw.get("quantization_config")
    if format is None or not isinstance(about, dict):
        return None
    return About(place, format, str(about.get("quantizer", "direct")), about.get("source"))


def read(
    about: About, config: DecoderConfig, threads: int | None = None, *, own: Collection[int] = ()
) -> dict[str, QuantisedWeight]:
    """The low-bit weights of a copy by the name of their layer, in memory of their own. config: the model's; own:
    layers that stay the model's."""
    low_bit = replace(config, low_bit=about.format)
    return copied_codes(about.folder, low_bit, instead=INSTEAD, without=own, threads=threads)


def find_other(folder: Path, config: DecoderConfig, format: Format) -> About | None:
    """A copy of a model that lies beside it in another format, the same with another group first."""
    others = [
        Format(name, usual.bits, group)
        for name, usual in sorted(FORMATS.items(), key=lambda item: item[0] != format.name)
        for group in usual.groups
    ]
    for other in others:
        place = place_beside(folder, other)
        try:
            if other != format and os.path.isfile(place / "config.json"):
                about = describe(place)
                if about is not None and about.format == other and about.is_of(folder, config):
                    return about
        except _OF_FILES:
            continue
    return None


def find(
    folder: Path, config: DecoderConfig, format: Format, threads: int | None = None, *, own: Collection[int] = ()
) -> tuple[About, dict[str, QuantisedWeight]] | None:
    """The copy beside a model's folder, if there is one, and what it holds. config: the model's; own: layers that stay
    the model's.

    One that is of other weights or of another format, or damaged, is none, and a warning says so.
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
            return about, read(about, config, threads, own=own)
    except _OF_FILES as error:
        reason = str(error)
    log.warning("%s is not used: %s; quantise the model again with --force, or take it away", place, reason)
    return None
