"""Ctrl-C, at whichever line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import foretoken
from foretoken.decoder.cache import Cache

PACKAGE = Path(foretoken.__file__).parent


class Interrupts:
    """Raises KeyboardInterrupt before one of the lines that a call runs, in files of the package, as a signal would.

    files: relative to the package, such as "decoder/cache.py".
    """

    def __init__(self, *files: str) -> None:
        self._files = {str(PACKAGE / name) for name in files}
        assert all(Path(file).exists() for file in self._files)
        self._known: dict[CodeType, bool] = {}

    def count(self, call: Callable[[], object]) -> int:
        """How many such lines the call runs."""
        return self._run(call, -1)

    def during(self, call: Callable[[], object], at: int) -> None:
        """The call, interrupted before line `at`, counted from 0."""
        try:
            ran = self._run(call, at)
        except KeyboardInterrupt:
            return
        raise AssertionError(f"the call ran {ran} lines, so that it was not interrupted before line {at}")

    def _run(self, call: Callable[[], object], at: int) -> int:
        ran = 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal ran
            if event == "line":
                ran += 1
                if ran == at + 1:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return line

        def entered(frame: FrameType, event: str, argument: Any) -> Any:
            code = frame.f_code
            if code not in self._known:
                self._known[code] = code.co_filename in self._files
            return line if self._known[code] else None

        before = sys.gettrace()
        sys.settrace(entered)
        try:
            call()
        finally:
            sys.settrace(before)
        return ran


@contextmanager
def interrupted_behind_the_commit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within it, a Ctrl-C comes after rows were committed to a cache, and before anybody has noted it."""
    commit = Cache.commit

    def interrupted(self: Cache, path: Sequence[int], writer: int) -> None:
        commit(self, path, writer)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Cache, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            yield
