"""A command on a terminal of its own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

import pytest

ON_A_TERMINAL = pytest.mark.skipif(sys.platform == "win32", reason="no terminals to make")


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *args: str, stdout: int | None = None, term: str = "dumb") -> None:
        import fcntl
        import pty
        import termios

        self.here, there = pty.openpty()
        self.seen = ""
        self.running = subprocess.Popen(
            [sys.executable, "-m", "foretoken", *args],
            stdin=there,
            stdout=there if stdout is None else stdout,
            stderr=there,
            start_new_session=True,
            env={**os.environ, "TERM": term},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
        )
        os.close(there)

    def expect(self, text: str, seconds: float = 60.0) -> None:
        """Wait until a text comes, after what was seen before."""
        until = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.here], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"{text!r} did not come; there came {self.seen!r}"
            self.seen += os.read(self.here, 65536).decode(errors="replace")
        self.seen = self.seen[self.seen.index(text) + len(text) :]

    def expect_some(self, count: int = 1, seconds: float = 60.0) -> None:
        """Wait until so many characters have come."""
        until = time.monotonic() + seconds
        while len(self.seen) < count:
            ready, _, _ = select.select([self.here], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"{count} characters did not come; there came {self.seen!r}"
            self.seen += os.read(self.here, 100).decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self.here, text.encode())
