"""Where a number comes from: machine, versions, commit, command. Every record of a measurement carries it."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def provenance() -> dict[str, Any]:
    """A JSON object about this run."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "commit": _commit(),
        "machine": {"processor": processor(), "system": platform.system(), "architecture": platform.machine()},
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ("foretoken", "torch", "transformers", "llguidance")},
        },
    }


def _command() -> str:
    """The command line, as a shell would take it again.

    Of a path only the last part, because the rest says more of a machine than of a measurement.
    """
    return shlex.join(["python", *map(_without_folders, sys.orig_argv[1:])])


def _without_folders(word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    is_text = any(character.isspace() for character in value) and not value.startswith(("/", ".", "~"))  # a prompt
    if "/" not in value or is_text:
        return word
    return option + equals + Path(value).name


def _commit() -> str | None:
    """The commit of the checkout that this code runs from, marked if code was changed since; None outside of one."""
    try:
        here = Path(__file__).parent
        commit = _git(here, "rev-parse", "--short=12", "HEAD")
        return commit + ("-dirty" if _git(here, "status", "--porcelain", "-uno", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *command: str) -> str:
    done = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def processor() -> str:
    """What the machine calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
