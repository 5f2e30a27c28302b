"""What holds for requests that leave fields of sampling out: what the model's files say, or else OpenAI's defaults."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretoken.common.files import read_bytes
from foretoken.errors import SettingError
from foretoken.settings.generate import GenerateSettings

log = logging.getLogger(__name__)

_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
OPENAI: Mapping[str, Any] = {"temperature": 1.0}


def recommended(folder: Path) -> dict[str, Any]:
    """Defaults of sampling from generation_config.json, on top of OpenAI's. A value that makes no sense is left out,
    with a warning."""
    try:
        raw: Any = json.loads(read_bytes(folder / "generation_config.json"))
    except (OSError, ValueError, RecursionError):
        raw = {}
    found = dict(OPENAI)
    for name in _FIELDS if isinstance(raw, dict) else ():
        value = raw.get(name)
        if value is None:
            continue
        try:
            GenerateSettings(**{name: value})
        except SettingError as error:
            log.warning("generation_config.json: %s; it is left out", error)
        else:
            found[name] = value
    return found
