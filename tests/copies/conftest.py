"""Small checkpoints on disk, and copies of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from foretoken.copies import quantise as copies
from foretoken.decoder.config import parse_config
from foretoken.formats import format_of
from tests.tiny import BASE, one_thread, random_tensors

__all__ = ["one_thread"]  # of every test here

Make = Callable[..., Path]


def write_checkpoint(folder: Path, *, dtype: torch.dtype = torch.bfloat16, seed: int = 0, **changes: Any) -> Path:
    """A checkpoint with random weights, as Hugging Face writes one, without a tokenizer."""
    raw = {**BASE, **changes}
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors(parse_config(raw), seed).items()}
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "llama")


def copy_of(folder: Path, format: str = "int4", out: Path | None = None, **how: Any) -> Path:
    """A copy of a checkpoint: beside it, unless it is to lie elsewhere."""
    chosen = format_of(format)
    out = out or folder.with_name(f"{folder.name}-{chosen.label}")
    texts = how.pop("texts", ())
    copies.write(copies.plan(folder, out, chosen, **how), texts=texts)
    return out


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
