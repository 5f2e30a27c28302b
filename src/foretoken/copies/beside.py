"""The copy that lies beside its model: read instead of being made at every load."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import DecoderConfig, parse_config, read_json
from foretoken.decoder.low_bit import INSTEAD
from foretoken.decoder.weights import copied_codes
from foretoken.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from foretoken.formats import FORMATS, Format
from foretoken.formats.weight import QuantisedWeight

log = logging.getLogger(__name__)

_OF_FILES = (CheckpointError, ModelNotFoundError, UnsupportedModelError)  # not that memory is lacking


@dataclass(frozen=True)
class Copy:
    """The low-bit weights of a copy, by the name of their layer, in memory of their own, and how they were made."""

    folder: Path
    quantiser: str
    coded: dict[str, QuantisedWeight]


def place_beside(folder: Path, format: Format) -> Path:
    """Where the copy of a model in a format lies: `llama-int4-g64` beside `llama`."""
    folder = Path(os.path.abspath(folder))
    return folder.parent / f"{folder.name}-{format.label}"


def read(place: Path, config: DecoderConfig, format: Format, threads: int | None = None) -> Copy:
    """A copy in a folder, of a model with this configuration."""
    about = read_json(place / "config.json")["quantization_config"]
    coded = copied_codes(place, replace(config, low_bit=format), instead=INSTEAD, threads=threads)
    return Copy(place, str(about.get("quantizer", "direct")), coded)


def is_copy_of(place: Path, folder: Path) -> bool:
    """Whether a low-bit checkpoint was made of the model in a folder."""
    about = read_json(place / "config.json").get("quantization_config")
    source = about.get("source") if isinstance(about, dict) else None
    config = parse_config(read_json(folder / "config.json"))
    return source is not None and config.low_bit is None and source == fingerprint(folder, config)


def find_other(folder: Path, format: Format) -> tuple[Path, Format] | None:
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
                raw = read_json(place / "config.json")
                if parse_config(raw).low_bit == other and is_copy_of(place, folder):
                    return place, other
        except _OF_FILES:
            continue
    return None


def find(folder: Path, config: DecoderConfig, format: Format, threads: int | None = None) -> Copy | None:
    """The copy beside a model's folder, if there is one. config: the model's.

    One that is of other weights or of another format, or damaged, is none, and a warning says so.
    """
    place = place_beside(folder, format)
    if config.low_bit is not None or not os.path.isfile(place / "config.json"):
        return None
    try:
        raw = read_json(place / "config.json")
        about = raw.get("quantization_config")
        its_format = parse_config(raw).low_bit
        if its_format is None or not isinstance(about, dict):
            reason = "it is no low-bit copy"
        elif its_format != format:
            reason = f"it is in {its_format.label}"
        elif about.get("source") != fingerprint(folder, config):
            reason = f"it was made of other weights than those in {folder}"
        else:
            return read(place, config, format, threads)
    except _OF_FILES as error:
        reason = str(error)
    log.warning("%s is not used: %s; quantise the model again with --force, or take it away", place, reason)
    return None
