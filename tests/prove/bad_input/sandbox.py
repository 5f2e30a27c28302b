"""One command in a forked process of its own that has everything imported, within limits of time and memory."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CPU_SECONDS, WALL_SECONDS = 20, 120  # what a case may take; the second only against what waits for ever
MEMORY = 3 << 30  # bytes of address space beyond what the imports have


@dataclass(frozen=True)
class Command:
    """A command line, and what it meets: standard input, where its output goes, how large a file may become."""

    words: list[str]
    stdin: bytes | None = b""  # None: closed
    stdout: str = "file"  # or a path such as /dev/full; "closed"; "gone": a pipe that nobody reads
    file_bytes: int | None = None  # the largest file that can be written, as on a full disk
    memory: int = MEMORY
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a command ended. `code` is None where a signal ended it, and `ended_by` says which."""

    code: int | None
    ended_by: str | None
    out: bytes
    err: str
    seconds: float  # of processors' time


def warm() -> None:
    """Import what commands import, but start no thread: a fork would lose it."""
    import llguidance  # noqa: F401
    import tokenizers  # noqa: F401
    from transformers import AutoTokenizer  # noqa: F401
    from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast  # noqa: F401

    import foretoken.bench.decode
    import foretoken.bench.plots
    import foretoken.bench.report
    import foretoken.cli.app
    import foretoken.cli.show
    import foretoken.cli.table
    import foretoken.rehearsal.write
    import foretoken.timeline.draw
    import foretoken.transcript.verify  # noqa: F401

    gc.collect()
    gc.freeze()


class Running:
    """A command that was begun in a folder, with its output in files under `logs`."""

    def __init__(self, command: Command, folder: Path, logs: Path) -> None:
        self._logs = logs
        self._began = time.monotonic()
        self.outcome: Outcome | None = None
        self._late = False
        (logs / "in").write_bytes(command.stdin or b"")
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be(command, folder, logs)

    def poll(self) -> bool:
        """Whether it has ended; one that takes too long is ended."""
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            if time.monotonic() - self._began > WALL_SECONDS:
                self._late = True
                os.kill(self.pid, signal.SIGKILL)
            return False
        ended_by = None
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            ended_by = "time" if self._late or number == signal.SIGXCPU else signal.Signals(number).name
        self.outcome = Outcome(
            None if ended_by else os.waitstatus_to_exitcode(status),
            ended_by,
            (self._logs / "out").read_bytes(),
            (self._logs / "err").read_bytes().decode("utf-8", "backslashreplace"),
            usage.ru_utime + usage.ru_stime,
        )
        return True


def run(command: Command, folder: Path, logs: Path) -> Outcome:
    """One command to its end."""
    running = Running(command, folder, logs)
    while not running.poll():
        time.sleep(0.01)
    assert running.outcome is not None
    return running.outcome


def all_of(commands: Iterator[tuple[Command, Path, Path]], jobs: int) -> Iterator[tuple[int, Outcome]]:
    """Commands by number, some at a time, as they end."""
    running: dict[int, Running] = {}
    numbered = enumerate(commands)
    more = True
    while more or running:
        while more and len(running) < jobs:
            try:
                number, (command, folder, logs) = next(numbered)
            except StopIteration:
                more = False
                break
            running[number] = Running(command, folder, logs)
        ended = [number for number, process in running.items() if process.poll()]
        for number in ended:
            outcome = running.pop(number).outcome
            assert outcome is not None
            yield number, outcome
        if not ended:
            time.sleep(0.005)


def _be(command: Command, folder: Path, logs: Path) -> None:
    """Be the command, and never come back."""
    code = 70  # what a command never ends with
    try:
        os.setsid()
        os.chdir(folder)
        _limit(command)
        _connect(command, logs)
        os.environ.update({"HF_HUB_OFFLINE": "1", "COLUMNS": "120", "NO_COLOR": "1", **command.env})
        sys.argv = ["foretoken", *command.words]
        from foretoken.cli.app import main

        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException:
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)


def _limit(command: Command) -> None:
    import resource  # which not every system has

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    space = pages * resource.getpagesize() + command.memory
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    if command.file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (command.file_bytes, command.file_bytes))


def _connect(command: Command, logs: Path) -> None:
    """Standard streams as a shell would connect them, and Python's own over them, anew."""
    out = logs / "out"
    out.touch()
    if command.stdin is None:
        os.close(0)
        sys.stdin = None  # type: ignore[assignment]
    else:
        os.dup2(os.open(logs / "in", os.O_RDONLY), 0)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    os.dup2(os.open(logs / "err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    if command.stdout == "closed":
        os.close(1)
        sys.stdout = None  # type: ignore[assignment]
        return
    if command.stdout == "gone":
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
    else:
        os.dup2(os.open(out if command.stdout == "file" else command.stdout, os.O_WRONLY), 1)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
