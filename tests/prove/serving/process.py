"""A server in a process of its own, its address, and how much memory it takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import psutil

_STARTS = 120.0  # seconds in which a server must listen
_ENDS = 60.0
_LOOKS = 0.1  # seconds between two looks at its memory


@dataclass
class Process:
    """A server. log: what it has said, in a file."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    samples: list[tuple[int, int]] = field(default_factory=list)  # how far it was, bytes

    @property
    def place(self) -> tuple[str, int]:
        """Its address and port."""
        its = urlparse(self.url)
        return str(its.hostname), int(its.port or 0)

    @property
    def rss(self) -> int:
        """Bytes that it holds in memory now."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    @property
    def said(self) -> str:
        """All that it has said."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def get(self, path: str) -> Any:
        """What it answers to a GET, which is JSON."""
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.loads(answer.read())

    def wait_until_idle(self, seconds: float = 60.0) -> dict[str, Any]:
        """Its status once nothing is under way; the last one if that does not come to pass."""
        end = time.monotonic() + seconds
        status: dict[str, Any] = self.get("/v1/foretoken/status")
        while (status["running"] or status["waiting"]) and time.monotonic() < end:
            time.sleep(0.05)
            status = self.get("/v1/foretoken/status")
        return status

    @contextmanager
    def watched(self, how_far: Callable[[], int] = lambda: 0) -> Iterator[list[tuple[int, int]]]:
        """Its memory, looked at again and again: pairs of how far the work was, and bytes."""
        samples: list[tuple[int, int]] = []
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(_LOOKS) and self.process.poll() is None:
                samples.append((how_far(), self.rss))

        looking = threading.Thread(target=look)
        looking.start()
        try:
            yield samples
        finally:
            ended.set()
            looking.join()


@contextmanager
def started(model: str | Path, options: Sequence[str] = ()) -> Iterator[Process]:
    """A server of a model. It is ended as Ctrl-C ends it, and must then have ended by itself."""
    with tempfile.TemporaryDirectory(prefix="foretoken-serving-") as name:
        log = Path(name) / "log"
        command = [sys.executable, "-m", "foretoken", "serve", str(model), "--port", "0", "--drain", "1", *options]
        with log.open("wb") as out:
            environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "500"}
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        try:
            yield Process(_address(process, log), process, log)
            if process.poll() is not None:
                raise AssertionError(f"the server has ended with code {process.returncode}: {log.read_text()[-2000:]}")
        finally:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(_ENDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise AssertionError("the server did not end") from None


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + _STARTS
    while time.monotonic() < end and process.poll() is None:
        found = re.search(r"(http://\S+:\d+)/v1", log.read_text(encoding="utf-8", errors="replace"))
        if found:
            return found[1]
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"the server did not start: {log.read_text()[-2000:]}")
