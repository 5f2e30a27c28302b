"""A bound of memory as a control group counts it, the pages that the system caches for the process included."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.offload.faulty import bounded, large
from tests.tiny import needs_native

__all__ = ["large"]

# by version: where groups are made, and the files of a group that hold its limit and the most that it had
VERSIONS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.peak"),
)


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
    bound, _ = bounded(large, draft)
    (place / limit).write_text(str(bound), encoding="utf-8")
    bounded(large, draft, group=place)
    assert bound / 2 < int((place / most).read_text(encoding="utf-8")) <= bound + (1 << 20), "it ran within"
