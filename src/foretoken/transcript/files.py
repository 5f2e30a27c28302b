"""Hashes the files that decide a checkpoint's output, and compares them with a record."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from foretoken.common.progress import progress
from foretoken.errors import CheckpointError, TranscriptError, quoted

_BLOCK = 1 << 24  # bytes read at once


def sha256(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits. Raises CheckpointError if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(file, "rb", buffering=0) as data, progress(f"hashing {file.name}", file.stat().st_size) as done:
            while block := data.read(_BLOCK):
                digest.update(block)
                done(len(block))
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error.strerror}); fetch the file again") from None
    return digest.hexdigest()


def expect_same(record: str, expected: Mapping[str, str], files: Mapping[str, Path]) -> None:
    """Raise TranscriptError, with the name of the first that differs, if files do not have the expected SHA-256."""
    for name, file in files.items():
        if name not in expected:
            raise TranscriptError(
                f"{file.parent} has {name}, and the model of {record} had not; give that one with --model"
            )
        here = sha256(file)
        if here != expected[name]:
            raise TranscriptError(
                f"{name} in {file.parent} is not that of {record} (SHA-256 {here:.12}..., expected "
                f"{expected[name]:.12}...); give the recorded model with --model"
            )
    absent = next((name for name in expected if name not in files), None)
    if absent is not None:
        raise TranscriptError(
            f"the model of {record} had a file {quoted(absent, 80)}, which is not here; give that model with --model"
        )
