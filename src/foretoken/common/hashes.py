"""SHA-256 of files, and whether a file is the one that was published."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from foretoken.common.progress import progress
from foretoken.errors import CheckpointError

log = logging.getLogger(__name__)

_BLOCK = 1 << 23  # bytes read at once
_AT_ONCE = 4  # files

Blocks = Iterable[memoryview]  # a file from beginning to end; each block is good until the next is asked for


def sha256(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits. Raises CheckpointError if it cannot be read."""
    return sha256_of({file: blocks_of(file)})[file]


def blocks_of(file: Path) -> Iterator[memoryview]:
    """A file as the system's cache of files has it. Raises CheckpointError if it cannot be read."""
    memory = memoryview(bytearray(_BLOCK))
    try:
        with open(file, "rb", buffering=0) as data:
            while count := data.readinto(memory):
                yield memory[:count]
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error.strerror}); fetch the file again") from None


def sha256_of(files: Mapping[Path, Blocks]) -> dict[Path, str]:
    """The SHA-256 of files, in hexadecimal digits, several files at once. Raises CheckpointError if one cannot be
    read."""
    given_up = threading.Event()

    def one(blocks: Blocks) -> str:
        digest = hashlib.sha256()  # which lets other threads run meanwhile
        for block in blocks:
            if given_up.is_set():
                break
            digest.update(block)
            done(len(block))
        return digest.hexdigest()

    names = ", ".join(file.name for file in files) if len(files) < 3 else f"{len(files)} files"
    pool = ThreadPoolExecutor(max(1, min(len(files), _AT_ONCE)))
    with progress(f"hashing {names}", _sizes(list(files))) as done, pool:
        try:
            return dict(zip(files, pool.map(one, files.values()), strict=True))
        except BaseException:  # Ctrl-C does not wait for gigabytes
            given_up.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def expect_published(files: Mapping[Path, Blocks]) -> None:
    """Read files once, and raise CheckpointError for one that has another SHA-256 than the hub gave it. Log for which
    files none is known."""
    found = sha256_of(files)
    for file, digest in found.items():
        expected = published(file)
        if expected is not None and digest != expected:
            raise CheckpointError(
                f"{file} is damaged: its SHA-256 is {digest}, and the hub gave {expected}; remove "
                f"{os.path.realpath(file)} and fetch the model again"
            )
    unknown = [file for file in files if published(file) is None]
    if unknown:
        names = ", ".join(file.name for file in unknown[:2]) + (" and others" if len(unknown) > 2 else "")
        log.warning(
            "no published hash is known for %s in %s, so nothing says whether this is what was published; a file in "
            "the hub's cache has one",
            *(names, unknown[0].parent),
        )


def published(file: Path) -> str | None:
    """The SHA-256 that the hub gave for a file in its cache; None for any other file.

    Source: the cache of huggingface_hub, where a snapshot's large file is a link to `blobs/<SHA-256>`.
    """
    place = Path(os.path.realpath(file))
    return place.name if place.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{64}", place.name) else None


def _sizes(files: Sequence[Path]) -> int:
    """The bytes of files; of one that is not there, none: reading it says why."""
    return sum(os.path.getsize(file) for file in files if os.path.exists(file))
