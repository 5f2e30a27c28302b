"""Small checkpoints, and rehearsals of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken.common.source import EMBEDDED
from foretoken.rehearsal import write
from foretoken.rehearsal.shapes import shape_of
from tests.copies.conftest import left_in, write_checkpoint
from tests.tiny import one_thread

__all__ = ["left_in", "one_thread"]

ROOM = "hidden=128,layers=5,heads=16,kv-heads=4,intermediate=80,vocab=131,head-dim=8"  # for what tests/tiny.py makes


def small(folder: Path, **changes: Any) -> Path:
    """A tiny checkpoint in float32, in which rounding hides nothing."""
    return write_checkpoint(folder, **{"dtype": torch.float32, **changes})


def rehearse(folder: Path, out: Path, shape: str = ROOM, **how: Any) -> Path:
    """The rehearsal of a checkpoint."""
    more = {key: how.pop(key) for key in ("replace", "shard") if key in how}
    write.write(write.plan(folder, out, write.Asked(shape_of(shape), **how), **more))
    return out


@pytest.fixture(scope="package")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rehearsal of stdlib-1m in bf16, with a tokenizer. Every factor in it is a power of two."""
    shape = "hidden=512,layers=4,heads=16,kv-heads=4,intermediate=640,vocab=5000,head-dim=64,tied=yes"
    return rehearse(EMBEDDED["stdlib-1m"], tmp_path_factory.mktemp("talking") / "rehearsal", shape)
