"""The copy that lies beside its model: read instead of being made at every load."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import DecoderConfig, parse_config, read_json
from foretoken.decoder.weights import copied_codes
from foretoken.errors import ModelError
from foretoken.formats import Format
from foretoken.formats.weight import QuantisedWeight

log = logging.getLogger(__name__)


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


def find(folder: Path, config: DecoderConfig, format: Format) -> Copy | None:
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
            coded = copied_codes(place, replace(config, low_bit=format))
            return Copy(place, str(about.get("quantizer", "direct")), coded)
    except ModelError as error:
        reason = str(error)
    log.warning("%s is not used: %s; quantise the model again with --force, or take it away", place, reason)
    return None
