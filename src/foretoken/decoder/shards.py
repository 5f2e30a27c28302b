"""The files of a checkpoint: its weights, in one file or in shards, and the other files that decide its output."""

from __future__ import annotations

import stat
from pathlib import Path

from foretoken.common import other_formats
from foretoken.decoder.config import read_json
from foretoken.errors import CheckpointError, ModelNotFoundError, quoted
from foretoken.text.tokenizer import TOKENIZER_FILES

INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The files with a checkpoint's weights. Raises ModelNotFoundError if one is absent, and CheckpointError for an
    index that cannot be used."""
    index = folder / INDEX
    if not index.exists():
        single = folder / "model.safetensors"
        if single.is_file():
            return [single]
        other = other_formats.found_in(folder)
        raise ModelNotFoundError(
            f"{folder} has no model.safetensors and no model.safetensors.index.json; expected one of them"
            if other is None
            else f"{folder} {other}"
        )
    mapping = read_json(index).get("weight_map")
    if not isinstance(mapping, dict) or not mapping or not all(isinstance(name, str) for name in mapping.values()):
        raise CheckpointError(f"{index} has no weight_map of tensors to files; fetch the file again")
    files = {name: _shard(folder, name) for name in sorted(set(mapping.values()))}
    absent = [name for name, path in files.items() if path is None]
    if absent:
        raise ModelNotFoundError(
            f"{index.name} names {len(files)} shards, of which {len(absent)} are absent, the first is "
            f"{quoted(absent[0])}; fetch it into {folder}"
        )
    return list(dict.fromkeys(path for path in files.values() if path is not None))  # two names may be one file


def _shard(folder: Path, name: str) -> Path | None:
    """The file that an index names, in the folder or below it; None if it is absent."""
    path = folder / name
    called = f"{INDEX} in {folder} names the shard {quoted(name)}"
    # a file elsewhere could be read, but no record could name it; links may lead anywhere, as those of a hub do
    if Path(name).is_absolute() or ".." in Path(name).parts or path == folder:
        raise CheckpointError(f"{called}; expected a file in the folder of the checkpoint: fetch the index again")
    try:
        return path if stat.S_ISREG(path.stat().st_mode) else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # a name too long, or with a zero in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{called}, which cannot be read ({reason}); fetch the index again") from None


def deciding_files(folder: Path) -> dict[str, Path]:
    """The files that decide a checkpoint's output, by their names in its folder: configuration, tokenizer and weights,
    the small files first. Raises what `weight_files` raises."""
    tokenizer = [*TOKENIZER_FILES, "added_tokens.json", "special_tokens_map.json"]
    if not (folder / "tokenizer.json").exists():
        tokenizer.append("merges.txt")  # the other half of vocab.json
    names = ["config.json", "generation_config.json", *sorted(tokenizer), INDEX]
    files = [*(folder / name for name in names if (folder / name).is_file()), *weight_files(folder)]
    return {file.relative_to(folder).as_posix(): file for file in files}
