"""The entry of a rehearsal in its config.json, and the drafts that a rehearsal may be measured with.

A rehearsal gives exactly the output of a small model, so every draft of that model would be accepted. And a model that
is no rehearsal costs next to nothing beside it. Both would make drafting look better than it can be with a real large
model.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import parse_config, read_config, read_json
from foretoken.decoder.loading import mapped_tensors
from foretoken.decoder.shapes import EMBEDDING
from foretoken.errors import CheckpointError, DraftSpecError, quoted
from foretoken.rehearsal.fit import has_room
from foretoken.rehearsal.shapes import SHAPES, shape_of
from foretoken.trained.files import is_ours, is_trained

KEY = "rehearsal"  # in config.json
# embeddings that are compared: the last; the first are bytes, many of them untrained and so alike in every model
_ROWS = 512
_ALIKE = 0.93  # correlation: 0.55 to 0.62 for models trained separately on one text, 0.996 after noise of a tenth


@dataclass(frozen=True)
class About:
    """The entry in config.json: the shape, the small model (a name, and the fingerprint of its weights), how its layers
    were placed and which layers these are, and the seed of the random numbers."""

    shape: str
    source_name: str
    source_sha256: str
    placement: str
    layers: tuple[int, ...]
    seed: int

    def to_json(self) -> dict[str, Any]:
        """The entry of config.json."""
        return {
            "shape": self.shape,
            "source": {"name": self.source_name, "sha256": self.source_sha256},
            "placement": self.placement,
            "layers": list(self.layers),
            "seed": self.seed,
        }


def read_about(raw: Mapping[str, Any]) -> About | None:
    """The entry in the contents of a config.json; None without one. Raises CheckpointError if it makes no sense."""
    given = raw.get(KEY)
    if given is None:
        return None
    source = given.get("source") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(source, dict):
        raise CheckpointError(f"config.json: {KEY} is {quoted(given)}, expected a shape and a source; rehearse again")
    layers = given.get("layers")
    count = raw.get("num_hidden_layers")
    checks = {
        "shape": isinstance(given.get("shape"), str),
        "source": isinstance(source.get("name"), str)
        and re.fullmatch("[0-9a-f]{64}", str(source.get("sha256"))) is not None,
        "placement": isinstance(given.get("placement"), str),
        "layers": isinstance(layers, list)
        and layers == sorted(set(filter(_is_count, layers)))
        and (not isinstance(count, int) or all(layer < count for layer in layers)),
        "seed": _is_count(given.get("seed")),
    }
    for key, sound in checks.items():
        if not sound:
            raise CheckpointError(f"config.json: {KEY}: {key} is {quoted(given.get(key))}; rehearse the model again")
    return About(
        given["shape"], source["name"], source["sha256"], given["placement"], tuple(given["layers"]), given["seed"]
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def about(folder: Path) -> About | None:
    """The entry of the rehearsal in a folder, or of its low-bit copy; None for any other checkpoint.

    Raises ModelNotFoundError and CheckpointError.
    """
    return read_about(read_json(folder / "config.json"))


def expect_honest_draft(target: Path, draft: Path) -> None:
    """Raise DraftSpecError for a draft with which measuring a rehearsal would say nothing about the large model.

    The rehearsal itself and its copies are allowed: a large model has such copies at such costs, too. So is a trained
    drafter that was padded with it. Any other draft must be a rehearsal, or it would cost too little, and one of a
    different model, or it would predict every token. If the target is no rehearsal, every draft is allowed. Models are
    recognised by fingerprints, and by the angles between their embeddings, which stay the same in a different type or
    order of channels, and nearly the same after a little training or with added noise. Raises a ModelError if one of
    the two cannot be read.
    """
    its = about(target)
    if its is None:
        return
    if is_trained(draft):
        if not is_ours(draft):
            raise DraftSpecError(
                f"draft {str(draft)!r} was trained by others, and the rehearsal {str(target)!r} says what "
                f"{its.source_name} says; train one for that model, and pad it: foretoken rehearse --drafter"
            )
        if about(draft) != its:
            raise DraftSpecError(
                f"draft {str(draft)!r} was trained for the rehearsal {str(target)!r}, and is larger than "
                f"{its.source_name}, whose text it has learned; train one for that model, and pad it: "
                "foretoken rehearse --drafter"
            )
        return
    root = _root(draft)
    if root == _root(target):
        return
    drafts = about(draft)
    if its.source_sha256 in (root, drafts and drafts.source_sha256) or _come_from_one(target, draft):
        raise DraftSpecError(
            f"draft {str(draft)!r} says what {its.source_name} says, and so does {str(target)!r}, its rehearsal: every "
            "token would be accepted; draft with lookup, with a copy of the rehearsal (mxfp4), or with a rehearsal of "
            "another model"
        )
    if drafts is None:
        small, vocabulary = read_config(draft), read_config(target).vocab_size
        shape = next((name for name in SHAPES if has_room(small, shape_of(name, vocab_size=vocabulary))), "SHAPE")
        raise DraftSpecError(
            f"draft {str(draft)!r} is no rehearsal, and would cost too little beside {str(target)!r}, which is one; "
            f"rehearse it, too: foretoken rehearse --model {shlex.quote(str(draft))} --shape {shape} --vocab-size "
            f"{vocabulary} OUT"
        )


def _come_from_one(one: Path, other: Path) -> bool:
    """Whether two checkpoints were made of one model: rehearsals keep their model's embeddings."""
    end = min(read_config(folder).valid_vocab_size for folder in (one, other))
    angles = torch.stack([_angles(folder, end) for folder in (one, other)])
    return float(torch.corrcoef(angles)[0, 1]) > _ALIKE


def _angles(folder: Path, end: int) -> torch.Tensor:
    """The cosines between the embeddings of the last tokens before `end`: [pairs], whatever the order of channels."""
    rows = mapped_tensors(folder, read_config(folder))[f"{EMBEDDING}.weight"][max(end - _ROWS, 0) : end]
    directions = torch.nn.functional.normalize(rows.float())
    return (directions @ directions.T)[tuple(torch.triu_indices(len(rows), len(rows), 1))]


def _root(folder: Path) -> str:
    """The fingerprint of a checkpoint, or of the model that it is a low-bit copy of."""
    raw = read_json(folder / "config.json")
    config = parse_config(raw)
    if config.low_bit is None:
        return fingerprint(folder, config)
    return str(raw["quantization_config"].get("source"))
