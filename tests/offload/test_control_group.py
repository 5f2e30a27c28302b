"""A bound of memory as a control group counts it, the pages that the system caches for the process included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import foretoken
from tests.offload.faulty import PROMPT, generated, large
from tests.offload.test_faults import MEMORY
from tests.tiny import needs_native

__all__ = ["large"]

# by version: where groups are made, and the files of a group that hold its limit and the most that it had
VERSIONS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.peak"),
)
WITHIN = """
import os, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as procs:
    procs.write("0")
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[2:]])
"""


@pytest.fixture
def group() -> Iterator[tuple[Path, str, str]]:
    """A control group of the memory's, and its two files."""
    for place, limit, most in VERSIONS:
        made = place / f"foretoken-test-{os.getpid()}"
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            if (made / limit).exists() and (made / most).exists():
                yield made, limit, most
                return
        finally:
            made.rmdir()
    pytest.skip("no control group of the memory's can be made here")


@pytest.mark.prove
@needs_native
@pytest.mark.parametrize("draft", ["subspec,lookup", "none"])
def test_a_group_of_exactly_the_bound_is_enough(draft: str, group: tuple[Path, str, str], large: Path) -> None:
    place, limit, most = group
    lacking = 40_000_000  # bytes of the model for which there is no room
    asked = json.dumps([lacking, draft, PROMPT, 40, False])
    bound = json.loads(_run(["-c", MEMORY, str(large), asked]))[0]
    (place / limit).write_text(str(bound), encoding="utf-8")
    _, _, home, tokens = json.loads(_run(["-c", WITHIN, str(place), MEMORY, str(large), asked]))
    assert home == "copied and streamed"
    assert tokens == [list(generated(foretoken.load(large, draft="none"))[:40])] * 2
    assert bound / 2 < int((place / most).read_text(encoding="utf-8")) <= bound + (1 << 20), "it ran within"


def _run(arguments: list[str]) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]
