"""The measurement of a draft in a program that uses transformers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from foretoken.bench import attached


def test_all_ways_are_measured_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "record.json"
    asked = "--model stdlib-1m --dtype float32 --num-prompts 2 --max-new-tokens 12 --draft lookup --draft int8"
    monkeypatch.setattr(sys, "argv", ["attached", *asked.split(), "--out", str(out)])
    attached.main()
    record = json.loads(out.read_text(encoding="utf-8"))
    rows = {row["way"]: row for row in record["rows"]}
    assert list(rows) == [
        "transformers",
        "transformers, prompt lookup",
        "attached, none",
        "attached, lookup",
        "attached, int8",
    ]
    assert rows["transformers"]["times_transformers"] == 1.0
    assert all(row["tokens_per_second"] > 0 and len(row["speeds"]) == 2 for row in rows.values())
    assert {row["texts_as_ours"] for row in rows.values()} == {2}
    assert record["their_dtype"] == record["dtype"] == "float32"
    assert record["memory_added_by_lookup"] < 100 << 20


def test_a_wrong_draft_ends_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["attached", "--model", "stdlib-1m", "--draft", "lokup"])
    with pytest.raises(SystemExit, match="there is no draft 'lokup'"):
        attached.main()
