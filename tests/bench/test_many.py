"""The measurement of several texts side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from foretoken.bench import many


def test_each_draft_has_a_row_beside_plain_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "record.json"
    asked = ["--model", "stdlib-1m", "--suite", "everyday-20", "--draft", "lookup", "--at-once", "2", "--repeats", "2"]
    monkeypatch.setattr(sys, "argv", ["many", *asked, "--max-new-tokens", "24", "--out", str(out)])
    many.main()
    record = json.loads(out.read_text(encoding="utf-8"))
    plain, lookup = record["rows"]
    assert (plain["draft"], plain["times_plain"], plain["draft_tokens"]) == ("none", 1, 0)
    assert lookup["draft"] == "lookup"
    assert len(lookup["times_plain_by_repeat"]) == 2
    assert lookup["draft_tokens"] > 0, "drafts were made"
    assert [row["texts_with_other_tokens"] for row in record["rows"]] == [0, 0]


def test_more_texts_than_prompts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["many", "--model", "stdlib-1m", "--suite", "everyday-20", "--at-once", "21"])
    with pytest.raises(SystemExit, match="many: at_once is 21, and everyday-20 has 20 prompts; ask for fewer"):
        many.main()
