"""The answers of a batch, a line each, in a file that nothing but one run writes to.

A line is written at once, when its texts have ended. A run that is killed leaves whole lines, and perhaps the beginning
of one more. The next run keeps the whole lines, and goes on.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from foretoken.common.files import behind_links, expect_place, lock, words_of
from foretoken.errors import SettingError, quoted
from foretoken.serve.batch_lines import Index, Line

_PREFIX = "batch_req_"
_BEGINNING = f'{{"id": "{_PREFIX}'.encode()
_REFUSED = 400  # from this status on, it is no answer
_FAULT = 500  # from this status on, it was not the request's fault
_SYNC = 1.0  # seconds after which what was written is on the disk


def as_line(line: Line, name: str, status: int, body: dict[str, Any]) -> str:
    """An answer as OpenAI's batches have it. name: of the request. It is ASCII, so that no reader finds an end of a
    line in it. Raises ValueError for numbers that JSON does not have."""
    response = {"status_code": status, "request_id": name, "body": body}
    whole = {"id": f"{_PREFIX}{line.mark:016x}", "custom_id": line.name, "response": response, "error": None}
    return json.dumps(whole, allow_nan=False) + "\n"


@dataclass(frozen=True)
class Kept:
    """What a file of answers had already. model: whose answers they are; None if there are none. refused: how many
    lines have an error for an answer."""

    place: str
    model: str | None = None
    refused: int = 0

    def expect_model(self, name: str) -> None:
        """Raise SettingError if another model has answered."""
        if self.model not in (None, name):
            raise SettingError(
                f"{self.place} has answers of {self.model}, and this model is {name}; name another file for its answers"
            )


class Output(Protocol):
    """Where answers go."""

    def write(self, line: str) -> None:
        """Write a line, at once and whole."""
        ...

    def sync(self) -> None:
        """See to it that what was written a while ago is on the disk."""
        ...

    def close(self) -> None:
        """Nothing more is written."""
        ...


class Printed:
    """Answers on standard output: nothing is kept of them."""

    def write(self, line: str) -> None:
        """Write a line."""
        sys.stdout.write(line)
        sys.stdout.flush()

    def sync(self) -> None:
        """Nothing is on a disk."""

    def close(self) -> None:
        """It stays open."""


class File:
    """Answers in a file, which this process has alone."""

    def __init__(self, path: Path) -> None:
        """Raises SettingError if it cannot be written, or another run is writing it."""
        expect_place(path, SettingError, "answers")
        self._name, self._path = str(path), behind_links(path)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = self._locked()
        except OSError as error:
            raise SettingError(f"{path} cannot hold the answers ({words_of(error)}); name another file") from None
        self._synced, self._is_new = time.monotonic(), False

    def _locked(self) -> int:
        while True:
            descriptor = _opened(self._path)
            if lock(descriptor) is False:
                os.close(descriptor)
                raise SettingError(f"another run is writing {self._name}; wait for it, or name another file")
            if self._is_there(descriptor):
                return descriptor
            os.close(descriptor)  # the run that had it has just put another one in its place

    def _is_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

    def keep(self, index: Index, requests: str) -> Kept:
        """Note in the index what is done already. An answer that was not finished is taken away, and so is what failed
        by a fault that was not the request's, and what was refused of a request that was corrected since. requests: the
        name of their file. Raises SettingError for a file of something else."""
        model: str | None = None
        refused = 0
        dropped: set[int] = set()
        with open(self._path, "rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):
                    self._expect_torn(number, raw)
                    dropped.add(number)
                    break
                entry = self._entry(number, raw)
                if self._is_other(entry, index, requests) or entry.status >= _FAULT:
                    dropped.add(number)
                    continue
                index.note(entry.name)
                refused += entry.status >= _REFUSED
                model = model or entry.model
        if dropped:
            self._rewrite(dropped)
        return Kept(self._name, model, refused)

    def _entry(self, number: int, raw: bytes) -> _Entry:
        entry = _entry_of(raw)
        if entry is None:
            raise self._foreign(number)
        return entry

    def _foreign(self, number: int) -> SettingError:
        return SettingError(
            f"line {number} of {self._name} is no answer that this command has written; name another file for the "
            "answers"
        )

    def _expect_torn(self, number: int, raw: bytes) -> None:
        """A last line without an end may be the beginning of an answer; or zeros, after a loss of power."""
        if raw[: len(_BEGINNING)] != _BEGINNING[: len(raw)] and raw.strip(b"\0"):
            raise self._foreign(number)

    def _is_other(self, entry: _Entry, index: Index, requests: str) -> bool:
        """Whether an answer refuses a request that was corrected since."""
        mark = index.mark_of(entry.name)
        if mark is None:
            raise SettingError(
                f"{self._name} has an answer to {quoted(entry.name)}, which is no custom_id in {requests}: it belongs "
                "to other requests; name another file for the answers"
            )
        if mark == entry.mark or entry.status >= _REFUSED:
            return mark != entry.mark
        raise SettingError(
            f"{self._name} has an answer to {quoted(entry.name)}, and the request or the options have changed since; "
            "change them back, or name another file for the answers"
        )

    def _rewrite(self, dropped: set[int]) -> None:
        """Leave whole answers only: in another file, which takes this one's place."""
        partial = self._path.with_name(f".{self._path.name}.partial")  # a killed run's is overwritten
        partial.unlink(missing_ok=True)
        descriptor = _opened(partial)
        lock(descriptor)
        with open(self._path, "rb") as file:
            for number, line in enumerate(file, 1):
                if number not in dropped:
                    _write(descriptor, line)
        os.fsync(descriptor)
        if os.name == "nt":  # where nothing that is open is replaced
            os.close(self._descriptor)
            os.close(descriptor)
            partial.replace(self._path)
            self._descriptor = _opened(self._path)
            return
        partial.replace(self._path)
        os.close(self._descriptor)
        self._descriptor = descriptor

    def write(self, line: str) -> None:
        """Write a line at the end."""
        _write(self._descriptor, line.encode("ascii"))
        self._is_new = True
        self.sync()

    def sync(self) -> None:
        """Bring it to the disk if that has not been done for a while."""
        if self._is_new and time.monotonic() - self._synced > _SYNC:
            os.fsync(self._descriptor)
            self._synced, self._is_new = time.monotonic(), False

    def close(self) -> None:
        """Bring it to the disk. Another run may have it."""
        try:
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)


def _write(descriptor: int, data: bytes) -> None:
    while data:  # one call, unless the disk is full
        data = data[os.write(descriptor, data) :]


@dataclass(frozen=True)
class _Entry:
    name: str
    mark: int
    status: int
    model: str | None


def _entry_of(raw: bytes) -> _Entry | None:
    """What a line of answers says; None if it is none."""
    try:
        given = json.loads(raw)
        found = re.fullmatch(f"{_PREFIX}([0-9a-f]{{16}})", given["id"])
        name, response = given["custom_id"], given["response"]
        status, body = response["status_code"], response["body"]
        model = body.get("model")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
    if found is None or not isinstance(name, str) or not isinstance(status, int):
        return None
    return _Entry(name, int(found[1], 16), status, model if isinstance(model, str) else None)
