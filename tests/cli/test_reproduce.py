"""`foretoken reproduce`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretoken.bench import generations
from tests.cli.conftest import Cli

SMALL = ("--scale", "embedded", "--model", "stdlib-1m", "--num-prompts", 1, "--max-new-tokens", 3)


def test_without_a_paper_it_lists_them(cli: Cli) -> None:
    done = cli("reproduce")
    assert done.code == 0
    assert done.out.startswith("fractal ")
    assert "FractalLLM" in done.out


def test_a_table_is_shown_and_written(cli: Cli, tmp_path: Path) -> None:
    done = cli("reproduce", "fractal", *SMALL, "--only", "table1", "--out", tmp_path)
    assert done.code == 0, done.err
    assert "| Llama-3 3B |" in done.out
    assert "No token differs" in done.out
    assert "-- table1: loading stdlib-1m" in done.err
    record, page = sorted(tmp_path.iterdir())
    assert [record.suffix, page.suffix] == [".json", ".md"]
    assert json.loads(record.read_text())["command"].startswith("python")
    assert page.read_text().rstrip() == done.out.rstrip()


def test_a_token_that_differs_is_an_error(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "differing", lambda own, plain: 1)
    done = cli("reproduce", "fractal", *SMALL, "--only", "table1", "--out", tmp_path)
    assert done.code == 1
    assert "9 tokens DIFFER" in done.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("fractl",), "there is no paper 'fractl' to reproduce; did you mean 'fractal'"),
        (("fractal", "--scale", "huge"), "scale is 'huge'"),
        (("fractal", "--only", "table9"), "there is no 'table9' in this paper"),
        (("fractal", "--models", "."), "models are the paper's own checkpoints"),
        (("fractal", "--scale", "paper", "--models", "."), "holds no checkpoint of this paper"),
        (("fractal", "--max-new-tokens", 1), "max-new-tokens"),
    ],
)
def test_what_cannot_be_reproduced_is_refused_in_one_line(cli: Cli, options: tuple[object, ...], said: str) -> None:
    done = cli("reproduce", *options)
    assert done.code == 2
    assert said in done.err
    assert done.err.startswith("foretoken: ")
    assert done.err.count("\n") == 1
