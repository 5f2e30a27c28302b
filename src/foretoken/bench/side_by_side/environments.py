"""A virtual environment for each peer: peers need versions of packages that contradict each other's and our own."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from foretoken.bench.side_by_side.peers import PEERS, Peer, named
from foretoken.common.files import cache_folder, write_json
from foretoken.common.provenance import cpu_features
from foretoken.errors import InputError

MARK = "foretoken-peer.json"  # in a complete environment: the packages that it was installed from
Run = Callable[[list[str], dict[str, str]], int]


@dataclass(frozen=True)
class Environment:
    """A peer and the Python that has it. `installed` are the packages it was installed from; None: not installed."""

    peer: Peer
    python: Path
    installed: tuple[str, ...] | None

    @property
    def is_ready(self) -> bool:
        """Whether the packages of the table of peers are installed."""
        return self.installed == self.peer.packages

    @property
    def preloaded(self) -> list[str]:
        """Of each group of the peer's `preload`, the first library that exists."""
        folder = self.python.parent.parent
        groups = [[path for each in group for path in sorted(glob(str(folder / each)))] for group in self.peer.preload]
        return [found[0] for found in groups if found]


def default_place() -> Path:
    """The default folder of environments."""
    return cache_folder("peers")


def environments(place: Path) -> list[Environment]:
    """The environments of all peers in a folder."""
    return [environment(peer.name, place) for peer in PEERS.values()]


def environment(name: str, place: Path) -> Environment:
    """A peer's environment, installed or not."""
    peer = named(name)
    if not peer.packages:
        return Environment(peer, Path(sys.executable), ())
    python, installed = place / name / "bin" / "python", None
    with suppress(OSError, ValueError, KeyError, TypeError):
        if python.exists():
            installed = tuple(json.loads((place / name / MARK).read_bytes())["packages"])
    return Environment(peer, python, installed)


def expect_ready(name: str, place: Path) -> Environment:
    """A peer's environment, if it is complete. Raises InputError."""
    found = environment(name, place)
    if not found.is_ready:
        state = "is not there" if found.installed is None else "was installed from other versions"
        raise InputError(f"peer {name!r} {state} in {place}; run: foretoken bench peers install {name}")
    return found


def install(name: str, place: Path, *, say: Callable[[str], None], run: Run | None = None) -> Environment:
    """Make a peer's environment, or complete it. say: called with each command before it runs. Raises InputError if a
    command fails; `expect_ready` refuses what is there then, and the same call continues from it."""
    found = environment(name, place)
    peer = found.peer
    if not peer.packages:
        say(f"{name}: runs in Foretoken's own environment")
        return found
    if found.is_ready:
        say(f"{name}: already there, {found.python.parent.parent}")
        return found
    folder = place / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot hold an environment ({error.strerror}); name another with --into") from None
    pip = [str(found.python), "-m", "pip"]
    commands = [] if found.python.exists() else [[sys.executable, "-m", "venv", str(folder)]]
    commands.append([*pip, "install", *peer.packages])
    if peer.unwanted:
        commands.append([*pip, "uninstall", "--yes", *peer.unwanted])
    more = {} if peer.flags is None else {"CMAKE_ARGS": peer.flags(cpu_features())}
    for command in commands:
        say(" ".join([*(f"{key}={shlex.quote(value)}" for key, value in more.items()), shlex.join(command)]))
        code = (run or _run)(command, {**os.environ, **more})
        if code:
            raise InputError(f"{name}: {shlex.join(command)} ended with exit code {code}; what it says is above")
    write_json(folder / MARK, {"packages": list(peer.packages), **more})
    return environment(name, place)


def _run(command: list[str], variables: dict[str, str]) -> int:
    try:
        return subprocess.run(command, env=variables, check=False).returncode
    except OSError as error:
        raise InputError(
            f"{command[0]} does not run ({error.strerror}); remove its environment, install again"
        ) from None
