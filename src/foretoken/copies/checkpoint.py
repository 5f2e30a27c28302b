"""The parts of a checkpoint that we write: shards and their index, the configuration, files beside the weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from foretoken.decoder.shards import INDEX
from foretoken.formats.weight import Part
from foretoken.text.tokenizer import TOKENIZER_FILES

SHARD = 5_000_000_000  # the most bytes of a file, unless one unit is larger, as Hugging Face divides checkpoints
_KEPT = (  # files beside the weights
    "generation_config.json",
    *TOKENIZER_FILES,
    "added_tokens.json",
    "special_tokens_map.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
FILES = frozenset((*_KEPT, "config.json", INDEX))  # the names of a checkpoint's files without tensors

Unit = dict[str, Part]  # tensors, by name, that must be in one file


def size_of(part: Part) -> int:
    """The bytes of a tensor."""
    return prod(part.shape) * part.dtype.itemsize


def kept(folder: Path) -> list[str]:
    """The files of a checkpoint that are copied with its weights, unchanged."""
    return [name for name in _KEPT if (folder / name).is_file()]


def divided(units: Mapping[str, Unit], most: int) -> tuple[dict[str, Unit], ...]:
    """The units of each shard, in order: at most `most` bytes in each shard, or one larger unit."""
    shards: list[dict[str, Unit]] = [{}]
    size = 0
    for name, unit in units.items():
        more = sum(map(size_of, unit.values()))
        if shards[-1] and size + more > most:
            shards.append({})
            size = 0
        shards[-1][name] = unit
        size += more
    return tuple(shards)


def file_names(count: int) -> list[str]:
    """The names of `count` shards."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]


def index(shards: Sequence[Mapping[str, Unit]]) -> dict[str, object]:
    """The index, which names the file of each tensor."""
    mapping = {
        name: file
        for file, shard in zip(file_names(len(shards)), shards, strict=True)
        for unit in shard.values()
        for name in unit
    }
    total = sum(size_of(part) for shard in shards for unit in shard.values() for part in unit.values())
    return {"metadata": {"total_size": total}, "weight_map": mapping}


def write_json(path: Path, value: dict[str, object]) -> None:
    """Write a new file. It is on the disk when this returns."""
    with open(path, "x", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
