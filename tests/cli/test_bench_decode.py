"""`foretoken bench decode` and `foretoken bench report`, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretoken.bench import ceilings
from tests.cli.conftest import Cli


def test_a_measurement_and_its_report(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "SIZE", 1 << 24)
    (tmp_path / "prompt.txt").write_text("def add(self, other):\n    return self.")
    place, other = tmp_path / "new" / "a.json", tmp_path / "other.json"  # folders are made
    done = cli(
        *("bench", "decode", "--model", "stdlib-1m", "--draft", "lookup", "--draft", "mxfp4"),
        *("--prompts", tmp_path / "prompt.txt", "--max-new-tokens", 8, "--repeats", 1),
        *("--json", place, "--answers", tmp_path / "new" / "texts"),
    )
    assert done.code == 0, done.err
    assert "| mxfp4 " in done.out
    assert done.out.count("yes |") == 3
    record = json.loads(place.read_text())
    assert [run["draft"] for run in record["runs"]] == ["none", "lookup", "mxfp4"]
    assert {"machine", "model", "commit", "runs", "versions", "suite", "command"} <= set(record)
    assert not list(tmp_path.glob("*/*.part"))
    assert (tmp_path / "new" / "texts" / "mxfp4-temperature-0.jsonl").exists()
    assert "-- warming up none" in done.err

    done = cli("bench", "report", place)
    assert done.code == 0, done.err
    assert "## stdlib-1m" in done.out
    place.write_text(json.dumps({**record, "commit": "111111111111"}))  # in a test's checkout there may be changes
    other.write_text(json.dumps({**record, "commit": "000000000000"}))
    done = cli("bench", "report", place, other)
    assert done.code == 2
    assert "differ in commit" in done.err
    other.write_text("{}")
    done = cli("bench", "report", other)
    assert done.code == 2
    assert "no record of a measurement" in done.err

    (tmp_path / "thesis.md").write_text("# My thesis\n")
    done = cli("bench", "report", place, "--out", tmp_path / "thesis.md")
    assert done.code == 2
    assert "thesis.md is there, and is no report; name another file, or remove it" in done.err
    assert (tmp_path / "thesis.md").read_text() == "# My thesis\n"

    pytest.importorskip("matplotlib")
    for _ in range(2):  # a report may be replaced
        done = cli("bench", "report", place, "--out", tmp_path / "report.md")
    done = cli("bench", "report", place, "--out", tmp_path / "report.md")
    assert done.code == 0, done.err
    assert "![stdlib-1m](report-a.png)" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "report-a.png").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--draft", "lokup"), "did you mean 'lookup'"),
        (("--repeats", 0), "repeats"),
        (("--json", __file__), "is there already; name another file for the record, or remove it"),
        (("--temperature", "hot"), "temperature"),
        (("--json", "/dev/null/record.json"), "/dev/null/record.json cannot hold the record (Not a directory)"),
        (("--answers", "/dev/null/answers"), "/dev/null/answers cannot hold the answers (Not a directory)"),
        (("--answers", Path(__file__).parent), "holds files already; name another folder for the answers, or empty it"),
        (("--prompts", "no-such-suite"), "no-such-suite"),
        (("--plot", "picture.txt"), "picture.txt"),
        (("--threads", 0), "threads is 0"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(cli: Cli, options: tuple[object, ...], said: str) -> None:
    done = cli("bench", "decode", "--model", "stdlib-1m", *options)
    assert done.code == 2
    assert said in done.err
    assert done.err.startswith("foretoken: ")
    assert done.err.count("\n") == 1
