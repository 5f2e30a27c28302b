"""A record, whole and altered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import foretoken
from tests.transcript.records import COUNT, MODEL, PROMPT, Record


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of a generation in which drafting had something to do."""
    path = tmp_path_factory.mktemp("records") / "whole.json"
    done = foretoken.record(path, foretoken.load(MODEL, pace="fixed"), PROMPT, max_new_tokens=COUNT)
    assert 0 < done.stats.accepted_tokens < done.stats.draft_tokens
    return path


@pytest.fixture
def altered(whole: Path, tmp_path: Path) -> Callable[[Callable[[Record], object]], Path]:
    """The record with something changed in it."""

    def alter(change: Callable[[Record], object]) -> Path:
        content = json.loads(whole.read_text(encoding="utf-8"))
        change(content)
        path = tmp_path / "altered.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    return alter
