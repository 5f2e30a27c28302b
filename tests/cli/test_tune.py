"""`foretoken tune`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretoken.bench.tuning import trials
from tests.bench.test_tuning_runs import WithOneWrong
from tests.cli.conftest import Cli

SMALL = ("stdlib-1m", "--num-prompts", 2, "--max-new-tokens", 6, "--repeats", 1, "--window", 1, "--format", "int8")


def test_what_to_take_is_said_and_written(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    place, picture = tmp_path / "tuning.json", tmp_path / "tuning.png"
    done = cli("tune", "fractal", *SMALL, "--slots", "fixed", "--json", place, "--plot", picture)
    assert done.code == 0, done.err
    record = json.loads(place.read_text())
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert record["model"] == "stdlib-1m"
    assert record["command"].startswith("python")
    assert record["asked"]["formats"] == ["int8"]
    lines = done.out.splitlines()
    assert lines[0].startswith("stdlib-1m (2 layers) on ")
    assert lines[0].endswith("chosen on 1 prompt of heldout-20, measured on 1 other, 1 time")
    assert any(line.startswith(f"fastest here: --draft {record['recommended']}") for line in lines)
    assert any(record["best_fractal"] in line for line in lines)
    assert lines[-1] == "no token differs from plain decoding (promise exact)"
    assert not any(line != line.rstrip() for line in lines)
    assert "-- trying lookup (0 tried, " in done.err
    again = cli("tune", "fractal", *SMALL, "--json", place)
    assert again.code == 2
    assert "is there already" in again.err


def test_a_token_that_differs_is_an_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "Generation", WithOneWrong)
    done = cli("tune", "fractal", *SMALL, "--minutes", 1e-9)
    assert done.code == 1
    assert "3 tokens DIFFER from plain decoding: lookup, int8:tokens=4, fractal:" in done.out
    assert "fastest here: --draft none" in done.out


def test_without_a_method_it_lists_them(cli: Cli) -> None:
    done = cli("tune", "--help")
    assert "fractal" in done.out
    assert cli("tune").code == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--format", "mxfp5"), "format is 'mxfp5'; did you mean 'mxfp4'"),
        (("--slots", "same"), "slots is 'same'"),
        (("--window", 0), "window is 0, expected a whole number"),
        (("--minutes", 0), "minutes is 0.0, expected a number above 0"),
        (("--num-prompts", 0), "num-prompts"),
        (("--prompts", "heldout-21"), "there is no suite 'heldout-21'"),
        (("--max-new-tokens", 5000), "the model has room for"),
        (("--plot", "picture.bmp"), "picture.bmp is no name for a picture"),
        (("--json", "/dev/null/file.json"), "/dev/null/file.json cannot hold the record (Not a directory)"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_one_line(cli: Cli, options: tuple[object, ...], said: str) -> None:
    done = cli("tune", "fractal", "stdlib-1m", *options)
    assert done.code == 2
    assert said in done.err
    assert done.err.startswith("foretoken: ")
    assert done.err.count("\n") == 1
