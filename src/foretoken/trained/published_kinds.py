"""The kinds of published drafters that are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretoken.decoder.config import MOA_SPEC, is_published_mixture
from foretoken.errors import UnsupportedModelError, quoted
from foretoken.trained.config import EAGLE3
from foretoken.trained.published import PublishedConfig
from foretoken.trained.published_block import DFLASH, block_from
from foretoken.trained.published_eagle import eagle_from
from foretoken.trained.published_mixture import PublishedMixture, mixture_from

_KINDS = {EAGLE3: eagle_from, DFLASH: block_from}


def published_config(folder: Path, raw: Mapping[str, Any]) -> PublishedConfig | PublishedMixture:
    """The sizes of a published drafter in a folder. raw: its config.json. Raises CheckpointError for one that is
    damaged, and UnsupportedModelError for another kind."""
    if is_published_mixture(raw):
        return mixture_from(folder, raw)
    kind = raw.get("speculators_model_type", DFLASH if "dflash_config" in raw else EAGLE3)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UnsupportedModelError(
            f"{folder} is a drafter of kind {quoted(kind, 40)}; of those that others have trained, "
            f"{', '.join(_KINDS)} and {MOA_SPEC} are supported"
        )
    return _KINDS[kind](folder, raw)
