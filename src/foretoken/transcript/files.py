"""Compares the files that decide a checkpoint's output with a record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from foretoken.common.hashes import sha256
from foretoken.errors import TranscriptError, quoted


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
