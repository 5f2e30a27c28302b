"""Files that are written whole or not at all, at places that are looked at before minutes of work; and files that were
read, as they were then."""

from __future__ import annotations

import errno
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from foretoken.errors import CheckpointError, ForetokenError, InputError, quoted

if os.name != "nt":
    import fcntl

MOST_READ = 1 << 28  # bytes of a text or a record: whoever gives more gives something else, or what never ends


def read_bytes(path: str | Path) -> bytes:
    """What a file holds. Raises OSError where it cannot be read, and where it has no end, or none within reason."""
    with open(path, "rb") as file:
        return read_stream(file)


def read_stream(stream: BinaryIO) -> bytes:
    """What is left of a stream, as `read_bytes` reads a file."""
    blocks, length = [], 0
    while block := stream.read(1 << 20):
        blocks.append(block)
        length += len(block)
        if length > MOST_READ:
            raise OSError(errno.EFBIG, f"more than {MOST_READ >> 20} MB")
    return b"".join(blocks)


@contextmanager
def readable(path: str | Path, advice: str) -> Iterator[None]:
    """Within it, what the system refuses is an InputError, with an advice: a file or folder that cannot be read."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); {advice}") from None


def read_json(path: str | Path, advice: str) -> Any:
    """What a file of JSON holds. Raises InputError, with an advice, for one that cannot be read, or is none."""
    with readable(path, advice):
        data = read_bytes(path)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({quoted(str(error), 80)}); {advice}") from None


Mark = tuple[int, int, int]  # of a file: its size, the time of its last change in nanoseconds, its inode


@dataclass(frozen=True)
class FilesAsRead:
    """Files as they were just before they were read: to see later, without reading them again, whether they still are.

    `files` has the mark of each; None of one that was not there.
    """

    files: Mapping[Path, Mark | None]

    @classmethod
    def note(cls, files: Iterable[Path]) -> Self:
        """Note files that are about to be read, so that a change on the way is one, too."""
        return cls({file: _mark(file) for file in files})

    def changed(self) -> Path | None:
        """The first file that is another by now, has been written to, has come or has gone."""
        return next((file for file, mark in self.files.items() if _mark(file) != mark), None)

    def expect_unchanged(self, what: str, error: type[ForetokenError] = CheckpointError) -> None:
        """Refuse, with an `error`, files of which one has changed. what: the message behind the file's name."""
        file = self.changed()
        if file is not None:
            raise error(f"{file} {what}")


def _mark(file: Path) -> Mark | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def expect_place(
    path: str | Path,
    error: type[InputError] = InputError,
    what: str = "record",
    is_one: Callable[[bytes], bool] | None = None,
) -> None:
    """Refuse, with an `error`, a place where no record (or `what`) can be written. Its folder need not be there. What
    is there may be replaced: by default whatever it is, else what `is_one`, which is shown its first 1000 bytes, or is
    empty."""
    path = Path(path)
    folder = existing(behind_links(path).parent)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        pass  # it and its folder are made
    except (OSError, ValueError) as reason:
        raise error(f"{path} cannot hold the {what} ({words_of(reason)}); name another file") from None
    else:
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "no ordinary file"
            raise error(f"{path} is {kind}; expected the name of a file for the {what}")
    expect_writable(folder, f"name a file elsewhere for the {what}", error)
    if is_one is not None and (start := beginning(path, error, what)) and not is_one(start):
        raise error(f"{path} is there, and is no {what}; name another file, or remove it")


def expect_writable(folder: Path, advice: str, error: type[InputError] = InputError) -> None:
    """Raise the error, with an advice, for a folder in which nothing can be made."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise error(f"the folder {folder} cannot be written to; {advice}")


def existing(folder: Path) -> Path:
    """The folder, or where it is not there, the nearest one above it that is: in which it would be made."""
    return next(place for place in (folder, *folder.absolute().parents) if os.path.isdir(place))


def expect_new(path: str | Path, error: type[InputError] = InputError, what: str = "record") -> None:
    """Refuse, as `expect_place` does, and also where something lies: minutes of another measurement, perhaps."""
    expect_place(path, error, what)
    if os.path.lexists(path):
        raise error(f"{path} is there already; name another file for the {what}, or remove it")


def beginning(path: str | Path, error: type[InputError] = InputError, what: str = "record") -> bytes:
    """The first bytes of what lies at the place of a record (or `what`), to see what would be replaced."""
    try:
        with open(path, "rb") as there:
            return there.read(1000)
    except FileNotFoundError:
        return b""
    except OSError as reason:
        raise error(f"{path} cannot hold the {what} ({words_of(reason)}); name another file") from None


def write_json(path: str | Path, record: dict[str, Any], error: type[InputError] = InputError) -> None:
    """Write a record, as `write_bytes` does: a field a line, and of lists of objects an object a line."""
    write_bytes(path, as_json(record).encode(), error)


def as_json(record: dict[str, Any]) -> str:
    """A record as text for people and for `diff`."""
    fields = [f" {json.dumps(name)}: {_as_json(value)}" for name, value in record.items()]
    return "{\n" + ",\n".join(fields) + "\n}\n" if fields else "{}\n"


def _as_json(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return "[\n" + ",\n".join(f"  {json.dumps(each)}" for each in value) + "\n ]"
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in value.items()) + "\n }"
    return json.dumps(value)


def write_bytes(path: str | Path, data: bytes, error: type[InputError] = InputError, what: str = "record") -> None:
    """Write a file. Whatever happens, it is what it was before, or holds all of the data. Its folder is made, if it is
    not there.

    Raises an `error` if it cannot be written. A link keeps leading to the file.
    """
    place = behind_links(Path(path))
    partial = place.with_name(f".foretoken-{uuid.uuid4().hex}.partial")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else a machine that loses power could keep the name and lose what it names
        partial.replace(place)
    except (OSError, ValueError) as reason:
        _remove(partial)
        raise error(
            f"the {what} cannot be written to {path} ({words_of(reason)}); {more_room(reason)}name a file elsewhere"
        ) from None
    except BaseException:
        _remove(partial)
        raise


def _remove(partial: Path) -> None:
    with suppress(OSError, ValueError):  # it may never have been there, or not even its folder
        partial.unlink()


def behind_links(path: Path) -> Path:
    """Where the file lies, or will: a link on the way is left as it is, and no folder is made for a `..` to leave."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a name that no file can have, which is told where it is used
        return path


def more_room(reason: OSError | ValueError) -> str:
    """What to try first, where room is what is missing."""
    full = isinstance(reason, OSError) and reason.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return "free some space, or " if full else ""


def words_of(reason: OSError | ValueError) -> str:
    """What the system says of a place or a file that cannot be used."""
    return (reason.strerror if isinstance(reason, OSError) else None) or str(reason)


def lock(descriptor: int) -> bool | None:
    """Lock an open file or folder for this process, until it is closed or the process ends, however it ends. False: it
    is another's. None: there are no locks here."""
    if os.name == "nt":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # not on this file system
        return None
    return True


def cache_folder(name: str) -> Path:
    """Where what can be made again is kept for a user: a folder that may not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foretoken" / name
