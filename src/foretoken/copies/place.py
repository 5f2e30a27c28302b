"""A folder that is written whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from foretoken.decoder.config import QUANT_METHOD, read_json
from foretoken.errors import ForetokenError, InputError, ModelError, quoted

if os.name != "nt":
    import fcntl

_PARTIAL = ".foretoken-{}.partial"


def expect_place(out: Path, *, replace: bool, ours: Container[str]) -> None:
    """Refuse a place where no folder for a copy can be made. With `replace`, there may be a low-bit copy that we wrote,
    with files of our names (`ours`) and no others. Raises InputError."""
    place = _behind_links(out)
    try:
        place.stat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as reason:
        raise InputError(f"{_cut(out)} cannot hold the copy ({_words(reason)}); name another folder") from None
    else:
        _expect_replaceable(out, place, replace, ours)
    if not place.parent.is_dir():
        raise InputError(f"there is no folder {place.parent} for the copy; make it first")
    if not os.access(place.parent, os.W_OK | os.X_OK):
        raise InputError(f"the folder {place.parent} cannot be written to; name one elsewhere for the copy")


def _expect_replaceable(out: Path, place: Path, replace: bool, ours: Container[str]) -> None:
    if not place.is_dir():
        raise InputError(f"{out} is there, and is no folder; expected the name of a new one for the copy")
    about = _quantised_as(place)
    if about is None:
        raise InputError(
            f"{out} is there, and is no low-bit copy of a model; expected the name of a new folder, or of such a copy "
            "with --force"
        )
    if not replace:
        raise InputError(f"{out} is there, a copy in {about}; give --force to replace it, or name another folder")
    others = sorted(path.name for path in place.iterdir() if path.name not in ours and not _is_shard(path))
    if others:
        raise InputError(
            f"{out} holds {quoted(others[0])}, which no copy of ours has, and replacing it would lose it; take it "
            "away, or name another folder"
        )


def _is_shard(path: Path) -> bool:
    return path.name.startswith("model") and path.suffix == ".safetensors"


def _quantised_as(folder: Path) -> str | None:
    try:
        about = read_json(folder / "config.json").get("quantization_config")
    except ModelError:
        return None
    return str(about.get("format")) if isinstance(about, dict) and about.get("quant_method") == QUANT_METHOD else None


def free_bytes(out: Path) -> int:
    """What the disk of a place has free, when what killed runs left beside it has been removed."""
    parent = _behind_links(out).parent
    _remove_left(parent)
    return shutil.disk_usage(parent).free


@contextmanager
def written_whole(out: Path, *, replace: bool, ours: Container[str]) -> Iterator[Path]:
    """Within it, a new folder under another name, which gets the name of `out` at the end.

    If anything breaks off, nothing of it stays, and what was there does. Raises InputError where the disk fails, and
    where something has come to lie at `out` meanwhile that `expect_place` refuses.
    """
    place = _behind_links(out)
    partial = place.with_name(_PARTIAL.format(uuid.uuid4().hex))
    try:
        partial.mkdir()
        with _locked(partial):
            yield partial
            _sync(partial)
            expect_place(out, replace=replace, ours=ours)
            _put(partial, place)
            _sync(place.parent)
    except ForetokenError:  # some of them are OSErrors
        raise
    except OSError as reason:
        raise InputError(
            f"the copy cannot be written to {out} ({_words(reason)}); free some space, or name a folder elsewhere"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put(partial: Path, place: Path) -> None:
    if not place.exists():
        partial.rename(place)
        return
    # two folders cannot be exchanged in one step everywhere; who is killed between these two has the old one as .old
    old = partial.with_suffix(".old")
    try:
        place.rename(old)
        partial.rename(place)
    finally:
        if old.exists() and not place.exists():
            old.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Put the names in a folder onto the disk, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether nobody else has the folder locked; it is, within. A process that is killed loses its locks."""
    if os.name == "nt":  # no locks of this kind: what a run that was killed has left stays
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except OSError:
            alone = False
        yield alone
    finally:
        os.close(descriptor)


def _remove_left(parent: Path) -> None:
    """Remove the folders of runs that were killed: those that no process has locked."""
    for folder in parent.glob(_PARTIAL.format("*")):
        with suppress(OSError):
            if folder.is_dir() and not folder.is_symlink():
                with _locked(folder) as left:
                    if left:
                        shutil.rmtree(folder, ignore_errors=True)


def _behind_links(path: Path) -> Path:
    """Where the folder lies or is to lie: absolute, so that it has a name; a link stays one."""
    return Path(os.path.realpath(path) if os.path.islink(path) else os.path.abspath(path))


def _cut(path: Path) -> str:
    return str(path) if len(str(path)) < 200 else f"{str(path)[:199]}…"


def _words(reason: OSError | ValueError) -> str:
    return (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
