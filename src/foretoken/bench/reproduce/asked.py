"""What is to be reproduced."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foretoken.bench.fields import expect_count
from foretoken.errors import SettingError, nearest, quoted
from foretoken.settings.load import LoadSettings

SCALES = ("embedded", "rehearsal", "paper")  # seconds; minutes, at a large model's speed; as the paper did it


def default_work() -> Path:
    """Where rehearsals are made, unless a user says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foretoken" / "rehearsals"


@dataclass(frozen=True)
class Asked:
    """What is to be reproduced. only: of which tables and figures; none: of all. model: instead of the small model of a
    small scale; models: folders in which the paper's own checkpoints lie. data: NAME=PLACE, or at a small scale one
    suite. out: the folder of the record. Raises SettingError."""

    paper: str
    scale: str = "rehearsal"
    only: Sequence[str] = ()
    model: str | None = None
    models: Sequence[Path] = ()
    data: Sequence[str] = ()
    num_prompts: int | None = None
    max_new_tokens: int | None = None
    out: Path = Path()
    work: Path = field(default_factory=default_work)
    loading: LoadSettings = field(default_factory=LoadSettings)

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise SettingError(f"scale is {quoted(self.scale)}{nearest(self.scale, SCALES)}")
        if self.models and self.scale != "paper":
            raise SettingError("models are the paper's own checkpoints; give scale paper, or model for a small scale")
        if self.model is not None and self.scale == "paper":
            raise SettingError("at scale paper the models are the paper's; give the folders where they lie as models")
        for name, least in (("num_prompts", 1), ("max_new_tokens", 2)):  # of one token there is no speed
            if getattr(self, name) is not None:
                expect_count(name, getattr(self, name), least)
