"""A folder that is written whole or not at all."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretoken.common.files import behind_links, existing, expect_writable, lock, more_room, words_of
from foretoken.decoder.config import QUANT_METHOD, read_json
from foretoken.errors import ForetokenError, InputError, ModelError, quoted

# The work folder beside a place, while a copy is made. It holds `new`, which gets the place's name at the end;
# `old/NAME`, which had that name before; and `gone`, which is to be removed. The process that writes locks it. Until it
# is locked, its name ends in .new.
_WORK = ".foretoken-{}.partial"
_YOUNG = 60  # seconds after which a folder called .new counts as left by a killed run


@dataclass(frozen=True)
class Kind:
    """What is written. name, full_name: for messages. is_one: describes the checkpoint of a config.json, such as
    "a copy in int8"; None for a checkpoint that is not of this kind."""

    name: str
    full_name: str
    is_one: Callable[[Mapping[str, Any]], str | None]


def _quantised_as(raw: Mapping[str, Any]) -> str | None:
    about = raw.get("quantization_config")
    if not isinstance(about, dict) or about.get("quant_method") != QUANT_METHOD:
        return None
    return f"a copy in {about.get('format')}"


COPY = Kind("copy", "low-bit copy of a model", _quantised_as)


def expect_place(out: Path, *, replace: bool, ours: Container[str], kind: Kind = COPY) -> None:
    """Raise InputError for a place where no folder for a copy (or another `kind`) can be made. With `replace`, the
    place may hold such a folder of ours, with no files but shards and those in `ours`."""
    place = behind_links(out)
    try:
        place.stat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as reason:
        raise InputError(f"{_cut(out)} cannot hold the {kind.name} ({words_of(reason)}); name another folder") from None
    else:
        _expect_replaceable(out, place, replace, ours, kind)
    expect_writable(existing(place.parent), f"name one elsewhere for the {kind.name}")


def _expect_replaceable(out: Path, place: Path, replace: bool, ours: Container[str], kind: Kind) -> None:
    if not place.is_dir():
        raise InputError(f"{out} is there, and is no folder; expected the name of a new one for the {kind.name}")
    about = _said_of(place, kind)
    if about is None:
        raise InputError(
            f"{out} is there, and is no {kind.full_name}; expected the name of a new folder, or of such a {kind.name} "
            "with --force"
        )
    if not replace:
        raise InputError(f"{out} is there, {about}; give --force to replace it, or name another folder")
    others = sorted(path.name for path in place.iterdir() if path.name not in ours and not _is_shard(path))
    if others:
        raise InputError(
            f"{out} holds {quoted(others[0])}, which no {kind.name} of ours has, and replacing it would lose it; take "
            "it away, or name another folder"
        )


def _is_shard(path: Path) -> bool:
    return path.name.startswith("model") and path.suffix == ".safetensors"


def _said_of(folder: Path, kind: Kind) -> str | None:
    try:
        return kind.is_one(read_json(folder / "config.json"))
    except ModelError:
        return None


def free_bytes(out: Path) -> int:
    """The free bytes on the disk of a place."""
    return shutil.disk_usage(existing(behind_links(out).parent)).free


def tidy(out: Path) -> None:
    """Clean up what killed runs left beside a place: a folder that was being replaced gets its name back, if nothing
    else has the name, and the rest is removed."""
    parent = behind_links(out).parent
    with suppress(OSError, ValueError):
        for work in parent.glob(_WORK.format("*")):
            with suppress(OSError):
                if work.is_dir() and not work.is_symlink():
                    with locked(work) as left:
                        if left:
                            _take_away(work)
        for fresh in parent.glob(_WORK.format("*").replace(".partial", ".new")):
            with suppress(OSError):
                if time.time() - fresh.stat().st_mtime > _YOUNG:
                    fresh.rmdir()


@contextmanager
def written_whole(out: Path, *, replace: bool, ours: Container[str], kind: Kind = COPY) -> Iterator[Path]:
    """Yields a new folder with a temporary name, which is renamed to `out` at the end.

    If anything fails before, the new folder is removed, and what was at `out` stays. Raises InputError if the disk
    fails, or if something has appeared at `out` meanwhile that `expect_place` refuses.
    """
    place = behind_links(out)
    work = place.with_name(_WORK.format(uuid.uuid4().hex))
    fresh, new = work.with_suffix(".new"), work / "new"
    try:
        fresh.mkdir(parents=True)
        with locked(fresh):
            try:
                fresh.rename(work)
                new.mkdir()
                yield new
                _sync(new)
                expect_place(out, replace=replace, ours=ours, kind=kind)
                _put(work, place)
            finally:
                _take_away(work)
        _sync(place.parent)
    except ForetokenError:  # some of these are OSErrors
        raise
    except OSError as reason:
        advice = f"{more_room(reason)}name a folder elsewhere"
        raise InputError(f"the {kind.name} cannot be written to {out} ({words_of(reason)}); {advice}") from None
    finally:
        with suppress(OSError):
            fresh.rmdir()


def _put(work: Path, place: Path) -> None:
    """Give the new folder its name. Not every system can exchange two folders in one step: if the process is killed
    between the first two renames, no folder is at the place, and `tidy` puts the old one back."""
    old = work / "old"
    if place.exists():
        old.mkdir()
        place.rename(old / place.name)
    (work / "new").rename(place)
    if old.exists():
        (old / place.name).rename(work / "gone")  # in one step, before any of it is removed


def _take_away(work: Path) -> None:
    """Remove a work folder. A replaced folder in it goes back to its place if nothing else is there."""
    old = work / "old"
    with suppress(OSError):
        for folder in list(old.iterdir()) if old.is_dir() else ():
            place = work.parent / folder.name
            folder.rename(work / "gone" if os.path.lexists(place) else place)
        shutil.rmtree(work, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Write a folder's list of names to the disk, if the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[bool | None]:
    """Yields whether this process could lock the folder, and keeps it locked. None where there are no locks: then the
    rest of a killed run stays. A killed process loses its locks."""
    if os.name == "nt":
        yield None
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield lock(descriptor)
    finally:
        os.close(descriptor)


def _cut(path: Path) -> str:
    return str(path) if len(str(path)) < 200 else f"{str(path)[:199]}…"
