"""What the tests of records share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretoken
from foretoken.errors import TranscriptError
from foretoken.kernels import native
from foretoken.transcript.verify import Verification

PROMPT = "for i in range(3):\n    print(i)\nfor i in range(3):"
COUNT = 24
MODEL = "stdlib-1m"
ENGINE = "pytorch" if native.module() is None else "native"
VERIFIED = Verification(True, COUNT)

Record = dict[str, Any]
Altered = Callable[[Callable[[Record], object]], Path]


def refusal(path: Path, *args: Any, kind: type[Exception] = TranscriptError, **options: Any) -> str:
    """The one line that says why a record is not verified."""
    with pytest.raises(kind) as error:
        foretoken.verify(path, *args, **options)
    assert type(error.value) is kind
    assert "\n" not in str(error.value)
    return str(error.value)


def put(**values: Any) -> Callable[[Record], object]:
    return lambda told: told.update(values)


def run(*command: object, **env: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, in another environment."""
    words = [sys.executable, "-m", "foretoken", *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **env})
