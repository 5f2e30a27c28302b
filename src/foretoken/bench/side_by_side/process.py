"""A peer's program while it runs: it answers lines of JSON, and is stopped between its turns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import Any

from foretoken.bench.side_by_side.environments import Environment
from foretoken.errors import cut

_PATIENCE = 20.0  # seconds that a program has to end on request


class PeerError(Exception):
    """A peer gave no answer that can be used. `is_over`: the peer will not answer again."""

    def __init__(self, why: str, *, is_over: bool = True) -> None:
        super().__init__(why)
        self.is_over = is_over


@dataclass(frozen=True)
class Start:
    """A program's arguments. timeout: seconds that it may take to get ready, and to answer. within: a command that runs
    the program."""

    checkpoint: Path
    work: Path
    threads: int
    draft: Path | None
    timeout: float
    within: Sequence[str] = ()


class PeerProcess:
    """A peer's program. Use it as a context, which ends the program and all processes that it started.

    While the program has nothing to do, it and everything that it started are stopped (SIGSTOP), so that none of its
    threads takes time from others by busy waiting. Its process group is in our session: if we end abruptly, the system
    resumes the group and sends it SIGHUP.
    """

    def __init__(self, environment: Environment, start: Start) -> None:
        self.name = environment.peer.name
        self._timeout = start.timeout
        self._log = start.work / f"{self.name}.log"
        program, draft = environment.peer.program, [] if start.draft is None else [start.draft]
        command = [*start.within, environment.python, program, start.checkpoint, start.work, start.threads, *draft]
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    list(map(str, command)),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    encoding="utf-8",
                    errors="replace",
                    process_group=0,
                    env=variables(environment, start.threads),
                )
        except OSError as error:
            raise PeerError(f"{environment.python} does not run ({error.strerror})") from None
        assert self._process.stdout is not None
        self._answers = self._process.stdout
        try:
            self.about = self._heard()
            if not isinstance(self.about.get("modes"), dict):
                raise PeerError(f"said {json.dumps(self.about):.80}, expected its modes")
        except BaseException:
            self.end(0.1)
            raise
        self._send(signal.SIGSTOP)

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # nobody wants to wait for a regular end after an interrupt, and after a failure it may never come
        self.end(_PATIENCE if kind is None else 0.1)

    @property
    def process(self) -> int:
        """The number of the process that was started."""
        return self._process.pid

    def ask(self, mode: str, tokens: tuple[int, ...], count: int) -> tuple[list[int], float]:
        """The next `count` tokens, and the seconds they took. Raises PeerError."""
        heard = self.told({"mode": mode, "tokens": tokens, "max_new_tokens": count})
        match heard:
            case {"tokens": list(new), "seconds": int() | float() as seconds} if len(new) == count and seconds > 0:
                if all(isinstance(token, int) for token in new):
                    return new, float(seconds)
        raise PeerError(f"said {json.dumps(heard):.80}, expected {count} tokens and the seconds")

    def told(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The program's answer. Raises PeerError."""
        self._send(signal.SIGCONT)
        try:
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            heard = self._heard()
        except OSError:
            raise PeerError(self._how_it_ended()) from None
        finally:
            self._send(signal.SIGSTOP)
        if "error" in heard:
            raise PeerError(_short(heard["error"]), is_over=False)
        return heard

    def end(self, patience: float) -> None:
        """End the program, and whatever it started. patience: seconds that it has before it is killed."""
        self._send(signal.SIGCONT)
        process = self._process
        with suppress(OSError, subprocess.TimeoutExpired):
            if process.stdin is not None:
                process.stdin.close()  # this asks the program to end
            process.wait(patience)
        self._send(signal.SIGKILL)
        process.wait()
        self._answers.close()

    def _heard(self) -> dict[str, Any]:
        if not select([self._answers], [], [], self._timeout)[0]:
            raise PeerError(f"said nothing for {self._timeout:g} seconds")
        line = self._answers.readline()
        if not line:
            raise PeerError(self._how_it_ended())
        with suppress(ValueError):
            heard = json.loads(line)
            if isinstance(heard, dict):
                return heard
        raise PeerError(f"said {_short(line)!r}, which is no JSON object")

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            return "closed its output, and goes on"
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        said = [line for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return f"{how}: {_short(said[-1])}" if said else how

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def variables(environment: Environment, threads: int) -> dict[str, str]:
    """The environment variables of a peer's program: none of Python's or Foretoken's, and our number of threads."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FORETOKEN", "VIRTUAL_"))}
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
    preload = ":".join(environment.preloaded)
    return {**kept, **counts, **offline, **({"LD_PRELOAD": preload} if preload else {})}


def _short(text: object) -> str:
    return cut(" ".join(str(text).split()), 200)
