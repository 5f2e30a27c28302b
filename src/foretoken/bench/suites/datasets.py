"""Data sets in files, from the hub or in the hub's layout, and the prompts that their rows become."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from foretoken.bench.suites.rows import SUFFIXES, read_rows
from foretoken.bench.suites.table import DataSet
from foretoken.bench.suites.types import Prompt
from foretoken.common.files import readable
from foretoken.common.source import snapshot
from foretoken.errors import InputError, quoted
from foretoken.text.tokenizer import Tokenizer

CONVERTED = "refs/convert/parquet"  # a branch of every data set, written by the hub itself


def download(data_set: DataSet) -> list[Path]:
    """A data set's own files, else the hub's conversion of them. Downloads them, or finds an earlier download. Raises
    InputError."""
    name, hub = data_set.name, data_set.hub
    yours = f"give the rows that you have: {name}=FOLDER_OR_FILE"
    explained = {
        "gated": f"{hub} is gated; accept its terms on its page, then log in with `hf auth login`, or {yours}",
        "revision": f"{hub} on the hub has neither {data_set.files} nor a converted copy; {yours}",
        "repository": f"the hub has no data set {hub!r} any more, or it is private; log in, or {yours}",
        "hub": f"no hub could be reached for {hub} (WHY); connect, or {yours}",
        "download": f"{hub} could not be downloaded (WHY); try again, or {yours}",
    }
    for revision, files in ((None, data_set.files), (CONVERTED, data_set.converted)):
        asked = {"repo_type": "dataset", "revision": revision, "allow_patterns": files}
        found = files_in(snapshot(hub, InputError, explained, **asked), data_set)
        if found:
            return found
    raise InputError(
        f"{hub} on the hub holds no {data_set.files} any more; get its rows yourself, and give {name}=FILE"
    )


def files_in(folder: Path, data_set: DataSet) -> list[Path]:
    """The files of a data set in a folder with the hub's layout, of the repository or of one of its folders."""
    patterns = (data_set.files, data_set.converted, Path(data_set.files).name)
    with readable(folder, f"name a folder of {data_set.hub}"):
        return next((found for pattern in patterns if (found := sorted(folder.glob(pattern)))), [])


def local_files(place: Path, data_set: DataSet) -> list[Path]:
    """The files of a user's own data set: one file, whatever its name, or a folder with the hub's layout."""
    if place.is_file():
        if place.suffix not in SUFFIXES:
            raise InputError(f"{place} is no file of rows; expected one that ends in {', '.join(SUFFIXES)}")
        return [place]
    if not place.is_dir():
        raise InputError(f"there is no {quoted(str(place), 200)}; expected a file or folder of {data_set.hub}")
    found = files_in(place, data_set)
    if not found:
        raise InputError(f"{place} holds no {data_set.files}; expected the layout of {data_set.hub}")
    return found


def prompts_of(
    data_set: DataSet, files: Sequence[Path], tokenizer: Tokenizer | None, count: int | None
) -> list[Prompt]:
    """The first `count` prompts of some files. A data set with categories gives all prompts; `first` chooses later."""
    if data_set.cut and tokenizer is None:
        raise InputError(
            f"{data_set.name} cuts its articles to {data_set.cut} tokens, and the model has no tokenizer; "
            "give prompts of token ids"
        )
    rows = (row for file in files for row in read_rows(file, data_set.columns))
    prompts = []
    for at, row in enumerate(islice(rows, None if data_set.category else count), 1):
        name = row.name(data_set.id) if data_set.id else f"row {at}"
        category = row.name(data_set.category) if data_set.category else ""
        turns = data_set.turns(row)
        if data_set.cut and tokenizer is not None:
            turns = tuple(shorten(turn, data_set.cut, tokenizer) for turn in turns)
        prompts.append(Prompt(name, turns, category, data_set.chat))
    if not prompts:
        raise InputError(f"{files[0]} holds no row; expected some of {data_set.hub}")
    return prompts


def shorten(text: str, most: int, tokenizer: Tokenizer) -> str:
    """The longest beginning of a text with no more than `most` tokens, found by halving."""
    if len(tokenizer.encode(text)) <= most:
        return text
    fits, over = 0, len(text)
    while over - fits > 1:
        middle = (fits + over) // 2
        if len(tokenizer.encode(text[:middle])) <= most:
            fits = middle
        else:
            over = middle
    return text[:fits]
