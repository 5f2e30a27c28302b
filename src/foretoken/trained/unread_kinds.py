"""Drafters that others have trained and that are not read here, told apart from damaged checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretoken.errors import UnsupportedModelError

_EAGLE = "EAGLE or EAGLE-2"
_BY_MODEL_TYPE = {"medusa": "Medusa", "mlp_speculator": "MLP Speculator", "eagle": _EAGLE}
_BY_KEY = {"medusa_num_heads": "Medusa", "hydra_num_heads": "Hydra"}
# the matrix of an EAGLE that takes a token's embedding and the model's state together, as the name stands in the header
# of safetensors, and in a pickle behind its length
_REDUCES = (b'"fc.weight"', b"\x09\x00\x00\x00fc.weight")
_MANY = 1 << 16  # bytes: the names of a drafter's tensors stand before their values


def expect_no_unread_drafter(folder: Path, raw: Mapping[str, Any]) -> None:
    """Raise UnsupportedModelError for a drafter of a kind that is not read. Such a folder looks like a checkpoint of
    another kind, or like one that lacks tensors. raw: its config.json. Its weights need not be there yet."""
    kind = _BY_MODEL_TYPE.get(str(raw.get("model_type"))) or next((_BY_KEY[key] for key in _BY_KEY if key in raw), None)
    if kind is None and raw.get("num_hidden_layers") == 1 and any(map(_reduces, folder.glob("*.*"))):
        kind = _EAGLE
    if kind is not None:
        raise UnsupportedModelError(
            f"{folder} is a drafter of the kind {kind}, which Foretoken does not read; of drafters that others have "
            "trained, those of EAGLE-3, DFlash and Mixture of Attentions are supported"
        )


def _reduces(file: Path) -> bool:
    """Whether a file of weights has an EAGLE's first matrix. A pickle is not unpickled."""
    if file.suffix not in (".safetensors", ".bin", ".pt"):
        return False
    try:
        with file.open("rb") as opened:
            beginning = opened.read(_MANY)
    except OSError:
        return False
    return any(name in beginning for name in _REDUCES)
