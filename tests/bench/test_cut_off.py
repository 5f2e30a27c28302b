"""What a client writes alone, measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from foretoken.bench import cut_off

pytest.importorskip("websockets")


def test_a_draft_that_is_the_model_itself_is_worth_what_the_model_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "record.json"
    told = ["--model", "stdlib-1m", "--draft", "stdlib-1m", "--cut", "1", "9", "--num-prompts", "1"]
    monkeypatch.setattr(sys, "argv", ["cut_off", *told, "--max-new-tokens", "16", "--out", str(out)])
    cut_off.main()
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [(row["draft"], row["cut"]) for row in rows] == [("stdlib-1m", 1), ("stdlib-1m", 9)]
    for row in rows:
        assert row["checked"] >= row["cut"]
        assert row["right_from_the_cut_on"] == row["behind"] > 0
        assert row["log_probability"] == row["log_probability_of_the_models_own"] < 0


def test_a_worse_draft_is_worth_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "record.json"
    told = ["--model", "stdlib-7m", "--draft", "stdlib-1m", "--cut", "1", "--num-prompts", "2"]
    monkeypatch.setattr(sys, "argv", ["cut_off", *told, "--max-new-tokens", "24", "--out", str(out)])
    cut_off.main()
    (row,) = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert row["texts"] == 2
    assert row["right_from_the_cut_on"] < row["behind"]
    assert row["log_probability"] < row["log_probability_of_the_models_own"]
