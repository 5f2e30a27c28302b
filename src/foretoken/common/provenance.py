"""Where a number comes from: machine, versions, commit, command. Every record of a measurement carries it."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def provenance() -> dict[str, Any]:
    """A JSON object about this run."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "commit": _commit(),
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            **{name: version_of(name) for name in ("foretoken", "torch", "transformers", "llguidance")},
        },
    }


def machine() -> dict[str, Any]:
    """What tells machines apart: hosts in a cloud often call different processors alike."""
    told = {"processor": processor(), "system": platform.system(), "architecture": platform.machine()}
    its = _first_processor()
    model = [its[name] for name in ("cpu family", "model", "stepping") if name in its]
    if len(model) == 3:
        told["processor_model"] = "-".join(model)
    cores, memory = os.cpu_count(), _memory_bytes()
    return {**told, "cores": cores, "memory_gib": None if memory is None else round(memory / (1 << 30), 1)}


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _command() -> str:
    """The command line, as a shell would take it again where the files are.

    Of a path only the last part, because the rest says more of a machine than of a measurement.
    """
    words = list(map(_without_folders, sys.orig_argv[1:]))
    return shlex.join(words if words[:1] == ["foretoken"] else ["python", *words])


def _without_folders(word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    is_text = any(character.isspace() for character in value) and not value.startswith(("/", ".", "~"))  # a prompt
    if "/" not in value or is_text or re.fullmatch(r"[0-9.]+ ?[A-Za-z]+/s", value):  # a speed, such as 1.4GB/s
        return word
    return option + equals + Path(value).name


def _commit() -> str | None:
    """The commit of the checkout that this code runs from; None outside of one. If code was changed since, it is marked
    with a hash of the changes, so that two changes are not taken for one."""
    try:
        here = Path(__file__).parent.parent  # the whole package: what was changed anywhere in it counts
        commit = _git(here, "rev-parse", "--short=12", "HEAD")
        changes = _git(here, "diff", "HEAD", "--", ".")
        return commit + (f"-dirty-{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *command: str) -> str:
    done = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def processor() -> str:
    """What the machine calls its processor."""
    its = _first_processor()
    return its.get("model name", "unknown") if its else platform.processor()


def cpu_features() -> list[str]:
    """What the processor has, as Linux names it; elsewhere nothing."""
    return _first_processor().get("flags", "").split()


@cache
def _first_processor() -> Mapping[str, str]:
    """What Linux says of the first processor, by name; elsewhere nothing."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    found = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in found}


def version_of(package: str) -> str | None:
    """Of an installed package; None where it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def isa_of(machine: dict[str, Any]) -> str | None:
    """Which instruction set a record was measured with; older records call it `level`. None: PyTorch's own."""
    found: str | None = machine.get("isa", machine.get("level"))
    return found
