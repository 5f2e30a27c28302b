"""Drafters trained on the same text, for a record: each once, and none that is another model's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from foretoken.bench import heads
from foretoken.training import drafter
from foretoken.training.kinds import Kind


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(drafter.Recipe):
        def __init__(self, tokens: int, kind: Kind, **more: object) -> None:
            sizes = {"batch": 2, "length": 64, "checkpoints": 2, "prompts": 2, "new_tokens": 8}
            super().__init__(tokens, kind, **{**more, **sizes})  # type: ignore[arg-type]

    monkeypatch.setattr(heads, "Recipe", Small)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["heads", "--model", "stdlib-1m", *map(str, arguments)])
    heads.main()


def test_rows_are_trained_once_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.py"
    text.write_text("".join(f"def add_{n}(one, other):\n    return one + other + {n}\n\n\n" for n in range(200)))
    work, out, plot = tmp_path / "work", tmp_path / "it.json", tmp_path / "it.png"
    common = ("--work", work, "--data", text, "--tokens", 512)
    run(monkeypatch, *common, "--rows", "moa", "moa-1-mean", "--out", out, "--plot", plot)
    record = json.loads(out.read_text())
    assert [(row["row"], len(row["points"]), row["recipe"]["seed"]) for row in record["rows"]] == [
        ("moa", 2, 0),
        ("moa-1-mean", 2, 0),
    ]
    assert plot.stat().st_size > 10_000
    assert (work / "moa-best-0" / "config.json").exists()
    assert not (work / "moa-1-mean-best-0").exists(), "a variant for comparison is not written"

    monkeypatch.setattr(heads.Training, "run", lambda *_: pytest.fail("it is trained again"))
    run(monkeypatch, *common, "--rows", "moa", "--out", out)
    assert json.loads(out.read_text())["rows"] == record["rows"][:1]
    text.write_text(text.read_text() * 2)
    with pytest.raises(SystemExit, match="is of another model, of other text or with other settings"):
        run(monkeypatch, *common, "--rows", "moa")
    with pytest.raises(SystemExit, match="there is no row 'mao'; did you mean 'moa'"):
        run(monkeypatch, *common, "--rows", "mao")
    capsys.readouterr()
