"""Measuring under a bound of memory: each draft in a process of its own, and the same tokens as in memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from foretoken.bench import offload

ARGUMENTS = ["--memory", "1GiB", "--draft", "lookup", "--count", "1", "--tokens", "6", "--plain-tokens", "4"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["offload", *arguments])
    offload.main()


def test_a_record_has_speed_memory_and_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "record.json"
    run(monkeypatch, "stdlib-1m", *ARGUMENTS, "--out", str(out))
    record = json.loads(out.read_text(encoding="utf-8"))
    plain, lookup = record["rows"]
    assert (plain["draft"], lookup["draft"]) == ("none", "lookup")
    assert plain["times_plain"] == 1
    assert [len(row["runs"][0]["prompts"]) for row in record["rows"]] == [1, 1]
    assert all(row["identical"] for row in record["rows"])
    assert all(100e6 < row["peak_memory"] < record["bound"] == 1 << 30 for row in record["rows"])
    assert "identical: yes" in capsys.readouterr().out


def test_what_fails_in_a_process_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"draft .none. could not be measured: .*there is no"):
        run(monkeypatch, "./nowhere", *ARGUMENTS, "--out", str(tmp_path / "record.json"))
    assert not (tmp_path / "record.json").exists()
