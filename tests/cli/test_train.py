"""`foretoken train`: a drafter from the command line, used at once."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foretoken.common.source import EMBEDDED
from foretoken.drafters.trained import trained_for
from foretoken.trained.files import read_trained
from foretoken.training import drafter
from foretoken.training.kinds import Kind
from tests.cli.conftest import Cli

TARGET = ("--target", "stdlib-1m")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings of few steps, measured on little."""

    class Small(drafter.Recipe):
        def __init__(self, tokens: int, kind: Kind, **more: object) -> None:
            super().__init__(
                tokens, kind, **{**more, "batch": 2, "length": 64, "checkpoints": 2, "prompts": 2, "new_tokens": 8}
            )

    monkeypatch.setattr(drafter, "Recipe", Small)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.py"
    file.write_text("".join(f"def add_{n}(one, other):\n    return one + other + {n}\n\n\n" for n in range(400)))
    return file


def test_a_drafter_is_trained_drawn_and_used(cli: Cli, tmp_path: Path, text: Path) -> None:
    out, plot = tmp_path / "moa", tmp_path / "moa.png"
    done = cli("train", "moa", out, *TARGET, "--data", text, "--tokens", 512, "--plot", plot)
    assert done.code == 0, done.err
    assert "million parameters" in done.err
    assert "256 tokens: loss" in done.err
    assert "tokens a check on held-out text" in done.err
    assert f"use it: foretoken generate --model stdlib-1m --draft {out}" in done.err
    assert plot.stat().st_size > 10_000
    assert read_trained(out).training is not None
    assert sorted(file.name for file in tmp_path.iterdir()) == ["moa", "moa.png", "text.py"], "nothing else is left"
    used = cli(
        "generate", "def add(", "--model", "stdlib-1m", "--draft", f"{out},lookup", "--max-new-tokens", 16, "--audit"
    )
    assert used.code == 0, used.err
    assert "audit: identical" in used.err
    again = cli("train", "moa", out, *TARGET, "--data", text, "--tokens", 512)
    assert again.code
    assert "holds a trained drafter already; name a new folder, or remove it" in again.err
    alone = cli("generate", "def add(", "--model", out)
    assert "holds a drafter that was trained for a model; give it to --draft" in alone.err


def test_an_interrupted_training_goes_on(cli: Cli, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = drafter.Training._step
    command = ("train", "moa", tmp_path / "moa", *TARGET, "--data", text, "--tokens", 512)

    def stop(self: drafter.Training, at: int) -> None:
        if at == 3:
            raise KeyboardInterrupt
        step(self, at)

    monkeypatch.setattr(drafter.Training, "_step", stop)
    assert cli(*command).code
    monkeypatch.setattr(drafter.Training, "_step", step)
    done = cli(*command)
    assert done.code == 0, done.err
    assert f"going on at step 2, from {tmp_path / 'moa.part'}" in done.err


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("--preset", "bset"), "preset is 'bset', expected best or paper"),
        (("--data", "no/such/place"), "there is no file or folder"),
        (("--plot", "picture.txt"), "no name for a picture"),
        (("--tokens", "0"), "Invalid value for '--tokens'"),
    ],
)
def test_what_cannot_be_is_refused(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], match: str) -> None:
    done = cli("train", "moa", tmp_path / "moa", *TARGET, *arguments)
    assert done.code
    assert match in done.err
    assert not (tmp_path / "moa").exists()


def test_a_folder_with_other_files_and_one_without_text_are_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    assert "holds no drafter of ours; name a new folder" in cli("train", "moa", tmp_path / "mine", *TARGET).err
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda place, mode: place != tmp_path)
        closed = cli("train", "moa", tmp_path / "closed", *TARGET)  # before anything is read
    assert f"the folder {tmp_path} cannot be written to; name one elsewhere for the drafter" in closed.err
    done = cli("train", "moa", tmp_path / "moa", *TARGET, "--data", tmp_path / "mine")
    assert "holds no text to train on" in done.err


def test_without_a_place_the_drafter_lies_beside_its_model(cli: Cli, tmp_path: Path, text: Path) -> None:
    model = shutil.copytree(EMBEDDED["stdlib-1m"], tmp_path / "model")
    done = cli("train", "moa", "--target", model, "--data", text, "--tokens", 256)
    assert done.code == 0, done.err
    assert trained_for(model) == [f"{model}-moa"]
    embedded = cli("train", "moa", *TARGET, "--data", text, "--tokens", 256)
    assert embedded.code == 2
    assert "stdlib-1m is no folder of yours, beside which its drafter could lie; give OUT" in embedded.err


def test_a_block_begins_with_a_trained_mixture(cli: Cli, tmp_path: Path, text: Path) -> None:
    model = shutil.copytree(EMBEDDED["stdlib-1m"], tmp_path / "model")
    some = ("--target", model, "--data", text, "--tokens", 256)
    assert not cli("train", "moa", *some).code
    done = cli("train", "block", *some, "--from", f"{model}-moa")
    assert done.code == 0, done.err
    assert f"foretoken recommend {model} measures whether it is the fastest draft here" in done.err
    assert trained_for(model) == [f"{model}-moa", f"{model}-block"]
    refused = cli("train", "block", tmp_path / "it", *some, "--from", tmp_path / "nothing")
    assert refused.code
    assert "there is no folder" in refused.err


@pytest.mark.parametrize("seconds", [0.2, 1.1])  # the latter while PyTorch compiles the network
def test_ctrl_c_says_how_to_go_on(tmp_path: Path, text: Path, seconds: float) -> None:
    out = tmp_path / "moa"
    command = [sys.executable, "-m", "foretoken", "train", "moa", out, *TARGET, "--data", text, "-t", "1"]
    with subprocess.Popen([*command, "--tokens", "10000000"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "million parameters" in process.stderr.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == -signal.SIGINT
    assert said == "-- interrupted; the same command begins anew: nothing was kept yet\n"


@pytest.mark.parametrize(
    ("kind", "below"),
    [
        (["moa", "--tli", "1"], ",lookup"),
        (["block", "--depth", "2", "--block", "5"], ",lookup"),
        (["eagle2"], ""),
        pytest.param(["eagle3"], "", marks=pytest.mark.prove),
        pytest.param(["independent"], ",lookup", marks=pytest.mark.prove),
    ],
    ids=["tli", "block", "eagle2", "eagle3", "independent"],
)
def test_other_kinds_are_trained_and_used(cli: Cli, tmp_path: Path, text: Path, kind: list[str], below: str) -> None:
    out = tmp_path / "it"
    done = cli("train", *kind, out, *TARGET, "--data", text, "--tokens", 256)
    assert done.code == 0, done.err
    assert done.err.rstrip().endswith(f"--draft {out}{below}"), "advice that can be followed"
    used = cli(
        "generate", "def add(", "--model", "stdlib-1m", "--draft", f"{out}{below}", "--max-new-tokens", 12, "--audit"
    )
    assert used.code == 0, used.err
    assert "audit: identical" in used.err
    if not below:
        refused = cli("generate", "def add(", "--model", "stdlib-1m", "--draft", f"{out},lookup")
        assert refused.code == 2
        assert "so 'lookup' cannot speed it up; leave that out" in refused.err
