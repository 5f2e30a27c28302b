"""`generate --plot` and `--stats`: a picture of the rounds, and a table of levels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import foretoken
from foretoken.cli.table import print_stats
from tests.cli.conftest import Cli

pytest.importorskip("matplotlib")

LADDER = ("--draft", "stdlib-1m,lookup", "--max-new-tokens", 24, "--threads", 1, "--pace", "fixed")


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_is_drawn_and_said_to_be_there(cli: Cli, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rounds.{ending}"
    ran = cli("generate", "def add(", *LADDER, "--plot", path)
    assert ran.code == 0
    assert ran.err.splitlines()[-1] == f"-- picture: {path}"
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_picture_leaves_the_output_as_it_is(cli: Cli, tmp_path: Path) -> None:
    plain = cli("generate", "def add(", *LADDER)
    drawn = cli("generate", "def add(", *LADDER, "--plot", tmp_path / "rounds.png")
    assert drawn.out == plain.out
    as_json = cli("generate", "def add(", *LADDER, "--plot", tmp_path / "rounds.png", "--json")
    assert as_json.err == ""
    assert "rounds" not in json.loads(as_json.out)


def test_what_cannot_be_drawn_is_refused_before_anything_is_loaded(cli: Cli, tmp_path: Path) -> None:
    for name, complaint in (
        ("rounds.pdf", "is no name for a picture; expected one that ends in .png or .svg"),
        (f"{'x' * 300}/rounds.png", "cannot hold the picture (File name too long); name another file"),
    ):
        ran = cli("generate", "def add(", "--model", "/no/such/model", "--plot", tmp_path / name)
        assert (ran.code, ran.out) == (2, "")
        assert complaint in ran.err
        assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_replaces_a_picture_and_no_other_file(cli: Cli, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rounds.{ending}"
    for content in (b"notes", b"<?xml version='1.0'?><html/>", b"<p><svg/></p>"):
        path.write_bytes(content)
        ran = cli("generate", "def add(", "--model", "/no/such/model", "--plot", path)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == f"foretoken: {path} is there, and is no picture; name another file, or remove it\n"
        assert path.read_bytes() == content
    path.write_bytes(b"")
    for tokens in (4, 6):
        assert cli("generate", "def add(", "--max-new-tokens", tokens, "--plot", path).code == 0


def test_a_record_and_a_picture_are_two_files(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    path, same = tmp_path / "both.svg", tmp_path / "link" / "both.svg"
    ran = cli("generate", "x", "--model", "/no/such/model", "--record", path, "--plot", same)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"foretoken: --record and --plot both name {same}; give each a file of its own\n"


def test_the_table_has_a_line_for_each_level(cli: Cli) -> None:
    ran = cli("generate", "def add(", *LADDER, "--stats")
    table, meaning = ran.err.split("rows: tokens that the passes computed. length: tokens gained in a check")
    assert "accepted" in meaning
    lines = {line[:12].strip(): line.split() for line in table.splitlines() if not line.startswith("--")}
    assert list(lines) == ["", "target", "stdlib-1m", "lookup", "between them", "all decoding", "the prompt"]
    numbers = json.loads(cli("generate", "def add(", *LADDER, "--json").out)["stats"]
    small, lookup = numbers["levels"]
    accepted = " ".join(map(str, small["accepted_per_position"]))
    counts = [small["passes"], small["rows"], small["draft_tokens"], small["accepted_tokens"]]
    assert lines["stdlib-1m"][3:7] == [str(n) for n in counts]
    assert " ".join(lines["stdlib-1m"]).endswith(f"{small['mean_acceptance_length']:.2f} {accepted}")
    assert lines["lookup"][3:5] == [str(lookup["draft_tokens"]), str(lookup["accepted_tokens"])]
    rounds = int(lines["target"][3])
    assert int(lines["target"][4]) == rounds + numbers["draft_tokens"]
    assert rounds * numbers["mean_acceptance_length"] == pytest.approx(23)  # the first token is the prompt's


def test_plain_decoding_has_a_table_too(cli: Cli) -> None:
    ran = cli("generate", "def add(", "--draft", "none", "--max-new-tokens", 1, "--stats")
    assert ran.code == 0
    assert "target" in ran.err


def test_each_level_keeps_its_colour(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    repeats = "import os\nimport sys\n" * 2 + "import os\nimport"  # both propose, with either arithmetic
    legend = cli("generate", repeats, *LADDER, "--max-new-tokens", 100, "--show-origins").err.splitlines()[0]
    assert legend == "-- proposed by: target, \x1b[32mstdlib-1m\x1b[0m, \x1b[36mlookup\x1b[0m"
    alone = cli("generate", repeats, "--draft", "lookup", "--max-new-tokens", 40, "--show-origins").err
    assert "\x1b[32mlookup\x1b[0m" in alone


def test_what_is_drafted_while_the_target_checks_is_said_and_is_no_negative_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = foretoken.load("stdlib-1m", draft="lookup").generate("def add(", max_new_tokens=24, ignore_eos=True)
    overlapping = replace(done.stats, draft_seconds=0.0)
    assert sum(level.seconds for level in overlapping.levels) > 0
    print_stats(replace(done, stats=overlapping))
    said = capsys.readouterr().err
    assert "both at once" in said
    assert "between them" not in said
    assert "-0" not in said.replace("--", "")
