"""`foretoken rehearse`, and what can be done with what it wrote."""

from __future__ import annotations

import re
from pathlib import Path

import huggingface_hub
import pytest

from foretoken.common.source import EMBEDDED
from foretoken.decoder.config import read_json
from tests.cli.conftest import Cli

NUMBERS = "hidden=512,layers=4,heads=8,kv-heads=4,intermediate=640,vocab=5000,tied=yes"


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_rehearsal_says_what_the_small_model_says(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "big"
    ran = cli("rehearse", "--model", "stdlib-1m", "--shape", NUMBERS, out)
    assert (ran.code, ran.out) == (0, "")
    what, where, written, *following = ran.err.splitlines()
    assert re.fullmatch(
        rf"-- stdlib-1m, \d\.\d M parameters, in the shape of {NUMBERS}: \d\.\d M parameters, \d+\.\d MB to {out}, "
        r"where [\d.]+ [GM]B are free",
        what,
    )
    assert where == (
        "-- its 2 layers are 0, 2 of 4, its 128 channels the first of 512, its 4096 tokens the first of 5000; "
        "positions go to 2048, as in stdlib-1m"
    )
    assert re.fullmatch(r"-- written in \d+\.\d s, [\d.e-]+ GB/s\. What next:", written)
    assert [line.split()[1:3] for line in following] == [
        ["foretoken", "generate"],
        ["foretoken", "quantize"],
        ["foretoken", "bench"],
    ]
    assert all(str(out) in line for line in following)
    given = ("generate", "def add(", "--max-new-tokens", 12, "--model")
    assert cli(*given, out).out == cli(*given, "stdlib-1m").out
    ran = cli("rehearse", "--shape", "hidden=512,layers=4,heads=8,kv-heads=4,intermediate=1024,vocab=4096", out)
    assert ran.code == 2
    assert f"{out} is there, a rehearsal in the shape of {NUMBERS}; give --force to replace it" in ran.err
    assert left_in(tmp_path) == ["big"]


def test_numbers_can_be_said_apart_and_what_is_not_as_asked_is_said(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "big"
    numbers = "hidden=256,layers=2,heads=4,kv-heads=4,intermediate=384,vocab=9000"
    shape = ("--shape", numbers, "--vocab-size", 4096, "--num-layers", 3)
    assert cli("rehearse", "--model", "stdlib-1m", *shape, "--placement", "first", "--seed", 3, out).code == 0
    raw = read_json(out / "config.json")
    assert (raw["vocab_size"], raw["num_hidden_layers"], raw["tie_word_embeddings"]) == (4096, 3, False)
    assert "valid_vocab_size" not in raw
    about = raw["rehearsal"]
    assert (about["shape"], about["layers"], about["seed"]) == (numbers, [0, 1], 3)
    assert about["source"]["name"] == "stdlib-1m"
    # an output layer of its own stays one, in a shape without
    tied = f"{numbers},tied=yes"
    (out / "config.json").write_text(
        (out / "config.json").read_text(encoding="utf-8").replace('"rehearsal"', '"was_a_rehearsal"'), encoding="utf-8"
    )
    ran = cli("rehearse", "--model", out, "--shape", tied, "--num-layers", 3, tmp_path / "bigger")
    assert ran.code == 0
    assert "-- big has an output layer of its own, and so has the rehearsal; a pass reads as much" in ran.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["out"], "Missing option '--shape'. See `foretoken rehearse --help`."),
        (["--shape", "hidden=64", "out"], "the shape 'hidden=64' lacks layers, heads, kv-heads, intermediate, vocab; "),
        (["--shape", "llama-68m", "--num-layers", "0", "out"], "num_layers of a shape is 0, expected a whole number"),
        (["--shape", "llama-68m", "out"], "stdlib-7m does not fit into llama-68m: it has 4 layers, the shape has 2."),
        (
            ["--shape", "llama-3.2-1b", "--vocab-size", "99", "out"],
            "stdlib-7m does not fit into llama-3.2-1b: it has 4",
        ),
        (["--shape", "llama-3.2-1b", "--placement", "last", "out"], "the placement 'last' is not known (known: first,"),
        (["--model", "stdlib", "--shape", "llama-3.2-1b", "out"], "there is no folder 'stdlib'; expected a checkpoint"),
        (["--shape", "llama-3.2-1b", "--seed", "-1", "out"], "seed is -1, expected a whole number, 0 or more"),
    ],
)
def test_what_cannot_be_is_one_line_before_anything_is_written(
    given: list[str], message: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("rehearse", *given)
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
    assert ran.err.startswith(f"foretoken: {message.format(here=tmp_path)}")
    assert left_in(tmp_path) == []


def test_a_model_from_the_hub_that_does_not_fit_is_refused_before_its_weights_come(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def download(name: str, *, revision: str | None, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(EMBEDDED["stdlib-1m"])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    out = tmp_path / "out"
    ran = cli("rehearse", "--model", "owner/name", "--shape", "llama-68m", "--num-layers", 1, out)
    assert ran.code == 2
    assert "owner/name does not fit into llama-68m: it has 2 layers, the shape has 1. Name a larger shape" in ran.err
    assert asked == [["config.json"]]
    assert cli("rehearse", "--model", "owner/name", "--shape", NUMBERS, out).code == 0
    assert read_json(out / "config.json")["rehearsal"]["source"]["name"] == "owner/name"
