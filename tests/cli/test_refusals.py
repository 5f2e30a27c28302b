"""What cannot be done is one line on standard error, and exit code 2."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from foretoken.bench import kernels
from foretoken.cli import asking
from foretoken.common.source import EMBEDDED
from foretoken.errors import PromptError
from tests.cli.conftest import Cli

MODEL = EMBEDDED["stdlib-7m"]


def damaged(tmp_path: Path, what: str) -> Path:
    """A copy of the embedded model with one thing wrong."""
    folder = tmp_path / what
    shutil.copytree(MODEL, folder)
    weights = folder / "model.safetensors"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if what == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif what == "no-weights":
        weights.unlink()
    elif what == "architecture":
        config["model_type"] = "mamba"
    elif what == "shapes":
        config["intermediate_size"] = 900
    elif what == "vocabulary":
        config["vocab_size"] = 4000
    elif what == "nan":
        tensors = load_file(weights)
        tensors["model.norm.weight"][0] = float("nan")
        save_file(tensors, weights)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("truncated", "cannot be read as safetensors"),
        ("no-weights", "has no model.safetensors"),
        ("architecture", "model_type 'mamba' is not supported; supported: llama, mistral, qwen2, qwen3"),
        ("shapes", "has shape [896, 384], expected [900, 384] by config.json"),
        ("vocabulary", "the tokenizer in"),
        ("nan", "1 of 384 numbers in model.norm.weight"),
    ],
)
def test_a_bad_checkpoint_is_one_line_and_exit_code_2(cli: Cli, tmp_path: Path, what: str, message: str) -> None:
    ran = cli("generate", "x", "--model", damaged(tmp_path, what))
    assert ran.code == 2
    assert ran.out == ""
    assert message in ran.err
    assert ran.err.startswith("foretoken: ")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("generate", ""), "the prompt is empty; expected at least one token"),
        (("generate", "x " * 3000), "the model's context holds 2048 with what follows; shorten the prompt"),
        (("generate", "x", "--max-new-tokens", "0"), "max_new_tokens is 0, expected a whole number, 1 or more"),
        (("generate", "x", "--draft", "lokup"), "there is no draft 'lokup'; did you mean 'lookup'?"),
        (
            ("generate", "x", "--draft", "mxfp4", "--draft", "lookup"),
            "--draft came 2 times, expected once; for a draft",
        ),
        (("generate", "x", "--draft", "lookup:depth=2"), "draft 'lookup' has no option 'depth'"),
        (("generate", "x", "--draft", "lookup,lookup"), "'lookup' cannot be sped up by 'lookup'; only a decoder"),
        (("generate", "x", "--dtype", "int8"), "dtype is 'int8'"),
        (("generate", "x", "--threads", "0"), "threads is 0, expected a whole number, 1 or more"),
        (("generate", "x", "--model", "stdlib-7n"), "did you mean 'stdlib-7m'?"),
        (("generate", "x", "--model", "owner/name"), "no hub could be reached"),
        (("generate", "x", "--device", "cuda:9"), "PyTorch sees no such GPU here"),
        (("generate", "--prompt-file", "/nowhere"), "/nowhere cannot be read (No such file or directory)"),
        (
            ("generate", "x", "--prompt-file", "/nowhere"),
            "came as an argument and with --prompt-file; give one of them",
        ),
        (("generate",), "the prompt from standard input is empty; expected text"),
        (("generate", "x\udcff"), "the prompt is not text: character 1 is half a character"),
        (("generate", "x", "--bogus"), "No such option: --bogus"),
        (("generate", "x", "--max-new-tokens", "many"), "Invalid value for '--max-new-tokens'"),
        (("generat", "x"), "No such command 'generat'"),
        (("generate", "x", "--threads", "100000"), "and more threads than cores only wait; leave threads out"),
        (("bench", "kernels", "--threads", "100000"), "and more threads than cores only wait; leave threads out"),
        (("bench", "kernels", "--threads", "0"), "threads is 0, expected a whole number, 1 or more"),
        (("generate", "x", "--draft", ""), "draft is '', expected a name, such as 'lookup', or 'none' for plain"),
        (("generate", "x", "--draft", "none:tokens=5"), "draft 'none' takes no options; leave 'tokens' out"),
        (("generate", "x", "--draft", "stdlib-1m:k=65:depth=64"), "is a tree of 4160 nodes, k = 65 times depth = 64"),
        (("generate", "x", "--json", "--show-origins"), "--json and --show-origins were both given"),
        (("generate", "x", "--revision", "v1"), "revision is 'v1', but 'stdlib-7m' is on this machine"),
        (("generate", "x", "--device", "y" * 5000), "…', expected cpu, cuda or cuda:NUMBER"),
        (("generate", "x", "--revision", "y" * 5000), "…', but 'stdlib-7m' is on this machine"),
        (("generate", "x", "--draft", f"lookup:{'y' * 5000}=1"), "…' (known: earlier, from, min_match, tokens)"),
        (("generate", "x", "--plot", f"{'y' * 5000}.gif"), "yyy.gif is no name for a picture; expected one that ends"),
        (("verify", "y" * 5000), "cannot be read (File name too long); name the file of a record"),
        (("verify", "a\nb"), r"a\nb cannot be read (No such file or directory)"),
        (("generate", "x", "--plot", "\x1b[2J.json"), r"\x1b[2J.json is no name for a picture"),
        (("generate", "x", "--model", "/no/\udcff"), r"there is no folder '/no/\udcff'"),
        (
            ("generate", "--prompt-file", "/dev/zero"),
            "/dev/zero cannot be read (more than 256 MB); name a file",
        ),
        (("generate", "x", "--json-schema", "/dev/zero"), "cannot be read (more than 256 MB)"),
        (("verify", "/dev/zero"), "/dev/zero cannot be read (more than 256 MB); name the file of a record"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(cli: Cli, args: tuple[str, ...], message: str) -> None:
    ran = cli(*args)
    assert ran.code == 2
    assert ran.out == ""
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert len(ran.err) < 450
    assert "?." not in ran.err
    assert ran.err.removesuffix("\n").isprintable()  # whatever an option holds, no terminal obeys it


def test_a_message_that_is_cut_keeps_what_to_do(cli: Cli, tmp_path: Path) -> None:
    ran = cli("generate", "x", "--json-schema", json.dumps({"type": "x" * 3000}))
    assert ran.code == 2
    assert len(ran.err) < 450
    ran = cli("generate", "x", "--record", tmp_path / "/".join(["a" * 300] * 9) / "out.json")
    assert len(ran.err) < 450
    assert ran.err.startswith("foretoken: /")
    assert ran.err.endswith(" cannot hold the record (File name too long); name another file\n")


def test_a_prompt_that_is_not_utf8_is_refused(cli: Cli) -> None:
    ran = cli("generate", stdin=b"abc\xff")
    assert ran.code == 2
    assert "not UTF-8 (byte 3)" in ran.err


def test_without_standard_input_a_prompt_is_asked_for(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking.sys, "stdin", None)
    with pytest.raises(PromptError, match="there is no prompt; give it as an argument"):
        asking.read_prompt(None, None, None)


def test_help_for_a_group_is_not_an_empty_complaint(cli: Cli) -> None:
    ran = cli("bench")
    assert ran.code == 2
    assert "kernels" in ran.out + ran.err
    assert "foretoken: ." not in ran.err


def test_a_measurement_that_could_not_be_kept_does_not_begin(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "bench", lambda **options: pytest.fail("it measures"))
    ran = cli("bench", "kernels", "--json", tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"foretoken: {tmp_path} is a folder; expected the name of a file for the record\n"
