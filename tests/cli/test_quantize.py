"""`foretoken quantize`, and drafting with what it wrote."""

from __future__ import annotations

import gc
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from foretoken.api import build, offloading
from foretoken.common.source import EMBEDDED
from foretoken.copies import quantise
from foretoken.rehearsal import write
from foretoken.rehearsal.shapes import shape_of
from tests.cli.conftest import Cli

MODEL = EMBEDDED["stdlib-1m"]
PEAK = """
from foretoken.__main__ import main
from foretoken.bench.bounded import peak_memory
try:
    main()
finally:
    print(peak_memory())
"""  # the command line, which tells the most memory that it had


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "small"))


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_copy_beside_the_model_is_written_and_drafts_for_it(cli: Cli, model: Path) -> None:
    ran = cli("quantize", model, "--format", "int4", "--quantizer", "hqq")
    assert (ran.code, ran.out) == (0, "")
    first, last = ran.err.splitlines()
    assert re.fullmatch(rf"-- int4-g64, \d\.\d MB to {model}-int4-g64, where [\d.]+ [GM]B are free", first)
    assert re.fullmatch(
        r"-- \d\.\d MB became \d\.\d MB, 4\.\d\d bits a weight in linear layers, in \d+\.\d s "
        r"\(\d+\.\d s of them hqq\), \d\.\d+ GB/s",
        last,
    )
    assert left_in(model.parent) == ["small", "small-int4-g64"]
    plain = cli("generate", "def add(", "--model", model, "--draft", "none", "--max-new-tokens", 12)
    ran = cli("generate", "def add(", "--model", model, "--draft", "int4,int2,lookup", "--max-new-tokens", 12)
    assert ran.code == 0
    assert ran.out == plain.out
    read, cast = [line for line in ran.err.splitlines() if re.search(" MB, (cast|read)", line)]
    assert re.fullmatch(r"-- int2-g64: [\d.]+ MB, cast in \d+\.\d s", cast)
    assert re.fullmatch(rf"-- int4-g64: [\d.]+ MB, read from {model}-int4-g64 \(hqq\) in \d+\.\d s", read)


@pytest.mark.prove
def test_a_copy_from_the_models_own_text_or_from_a_text_of_ours(cli: Cli, tmp_path: Path) -> None:
    ran = cli("quantize", "stdlib-1m", "--format", "mxfp4", "--quantizer", "gptq", tmp_path / "own")
    assert ran.code == 0
    _, says, last = ran.err.splitlines()
    assert says == "-- the model writes some text, which shows what its layers read"
    about = json.loads((tmp_path / "own" / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    assert about["quantizer"] == "gptq"
    assert re.search(r"linear layers, in \d+\.\d s \(\d+\.\d s of them gptq\)$", last)
    (tmp_path / "text.txt").write_text("def add(a, b):\n    return a + b\n" * 9)
    of_ours = ("--quantizer", "gptq", "--calibrate", tmp_path / "text.txt")
    ran = cli("quantize", "stdlib-1m", "--format", "mxfp4", *of_ours, tmp_path / "ours")
    assert ran.code == 0
    said = rf"-- \d+ tokens of {tmp_path}/text.txt show what its layers read; a text of 4000 tokens or more makes a .*"
    assert re.fullmatch(said, ran.err.splitlines()[1])
    own, ours = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("own", "ours"))
    assert len(own) == len(ours)
    assert own != ours
    ran = cli("quantize", "stdlib-1m", "--format", "int4", *of_ours[:3], tmp_path / "no.txt", tmp_path / "out")
    assert (ran.code, ran.out) == (2, "")
    assert "there is no file" in ran.err
    assert left_in(tmp_path) == ["ours", "own", "text.txt"]


@pytest.mark.prove
def test_the_model_that_writes_the_text_is_gone_when_the_copy_is_made(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[weakref.ref[object]] = []
    load, write = build.load, quantise.write

    def loaded(*given: Any, **settings: Any) -> Any:
        model = load(*given, **settings)
        kept.append(weakref.ref(model))
        return model

    def written(*given: Any, **how: Any) -> Any:
        assert [model() for model in kept] == [None]
        return write(*given, **how)

    monkeypatch.setattr(build, "load", loaded)
    monkeypatch.setattr(quantise, "write", written)
    gc.disable()  # a collection by chance would prove nothing
    try:
        ran = cli("quantize", "stdlib-1m", "--format", "mxfp4", "--quantizer", "gptq", tmp_path / "out")
    finally:
        gc.enable()
    assert (ran.code, len(kept)) == (0, 1), ran.err


def test_a_model_larger_than_memory_needs_a_text_of_the_users(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offloading, "memory_left", lambda: 1_000_000)
    ran = cli("quantize", "stdlib-1m", "--format", "mxfp4", "--quantizer", "gptq", tmp_path / "out")
    assert ran.code == 2
    said = r"foretoken: the model takes \d\.\d MB of memory to write a text, and 1\.0 MB are free; give a bound with "
    assert re.search(said, ran.err)
    assert left_in(tmp_path) == []


def test_a_bound_of_memory_within_which_no_copy_can_be_made_is_refused(cli: Cli, tmp_path: Path) -> None:
    ran = cli("quantize", "stdlib-1m", "--format", "int4", "--quantizer", "gptq", "--memory", "200MB", tmp_path / "out")
    assert (ran.code, left_in(tmp_path)) == (2, [])
    said = (
        r"memory is 200.0 MB, and to make the copy by gptq may take [\d.]+ [MG]B; allow --memory [\d.]+GiB, or --quan"
    )
    assert re.search(said, ran.err)


@pytest.mark.prove
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the peak of memory")
@pytest.mark.parametrize("quantizer", ["gptq", "hqq", "direct"])
def test_a_copy_is_made_within_a_bound_of_memory(quantizer: str, tmp_path: Path) -> None:
    large = tmp_path / "large"
    vocab = 4096 if quantizer == "gptq" else 128000  # an embedding that is much larger than what is written at once
    shape = shape_of(f"hidden=1024,layers=4,heads=16,kv-heads=8,intermediate=2048,vocab={vocab}")
    write.write(write.plan(EMBEDDED["stdlib-7m"], large, write.Asked(shape)))
    command = [sys.executable, "-c", PEAK, "quantize", str(large), "--format", "int4", "--quantizer", quantizer]
    refused = subprocess.run([*command, "--memory", "100MB"], capture_output=True, text=True, check=False)
    needed = re.search(r"; allow --memory ([\d.]+)GiB", refused.stderr)
    assert needed is not None, refused.stderr
    bound = float(needed[1]) * 2**30
    done = subprocess.run([*command, "--memory", f"{needed[1]}GiB"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "large-int4-g64" / "model.safetensors").exists()
    peak = int(done.stdout.splitlines()[-1])
    assert 0.5 * bound < peak <= bound, "used, and not beyond"


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "is empty; expected the text of a prompt"), ("\0\xff", "is not UTF-8"), (None, "there is no file")],
)
def test_a_text_that_cannot_be_read_is_refused_before_a_download(
    text: str | None, said: str, cli: Cli, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "text.txt").write_bytes(text.encode("latin-1"))
    given = ("--quantizer", "gptq", "--calibrate", tmp_path / "text.txt", tmp_path / "out")
    ran = cli("quantize", "owner/name", "--format", "mxfp4", *given)
    assert ran.code == 2
    assert said in ran.err
    assert "huggingface" not in ran.err


def test_a_copy_of_an_embedded_model_goes_where_it_is_told_and_is_a_model(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("quantize", "stdlib-1m", "--format", "int4-g128", out).code == 0
    about = json.loads((out / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    assert (about["format"], about["quantizer"]) == ("int4-g128", "direct")
    ran = cli("generate", "def add(", "--model", out, "--max-new-tokens", 8, "--audit")
    assert ran.code == 0
    assert "audit: identical, 8 tokens" in ran.err
    again = cli("quantize", "stdlib-1m", "--format", "int4", "--group", 32, out)
    assert (again.code, again.err) == (
        2,
        f"foretoken: {out} is there, a copy in int4-g128; give --force to replace it, or name another folder\n",
    )
    assert cli("quantize", "stdlib-1m", "--format", "int4", "--group", 32, out, "--force").code == 0
    assert "int4-g32" in (out / "config.json").read_text(encoding="utf-8")
    assert left_in(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["stdlib-1m"], "Missing option '--format'. See `foretoken quantize --help`."),
        (
            ["stdlib-1m", "--format", "mxfp5", "out"],
            "the format 'mxfp5' is not known; did you mean 'mxfp4'? (known: int2, int3, int4, int8, mxfp4)",
        ),
        (["stdlib-1m", "--format", "int4-g48", "out"], "int4 got groups of 48; expected 32 or 64 or 128"),
        (
            ["stdlib-1m", "--format", "mxfp4", "--group", "64", "out"],
            "mxfp4 got groups of 64; expected 32, which is all that mxfp4 has",
        ),
        (
            ["stdlib-1m", "--format", "int4-g64", "--group", "32", "out"],
            "the format 'int4-g64' says another group than 32; say one of them",
        ),
        (
            ["stdlib-1m", "--format", "int8", "--quantizer", "hqq", "out"],
            "hqq looks for zero points, and int8 has none; quantise it with 'direct'",
        ),
        (
            ["stdlib-1m", "--format", "int8", "--quantizer", "gptq", "out"],
            "gptq chooses a scale for each group, and int8 has no groups; quantise it with 'direct'",
        ),
        (
            ["stdlib-1m", "--format", "int4", "--calibrate", "text.txt", "out"],
            "--calibrate is for --quantizer gptq, and the quantizer is direct; leave one out",
        ),
        (
            ["stdlib-1m", "--format", "int4", "--quantizer", "best", "out"],
            "the quantiser 'best' is not known (known: direct, gptq, hqq)",
        ),
        (
            ["stdlib-1m", "--format", "int4"],
            "there is no folder 'stdlib-1m' that a copy could lie beside; check the name, or give the copy's "
            "folder, OUT",
        ),
        (
            ["owner/name", "--format", "int4"],
            "there is no folder 'owner/name' that a copy could lie beside; check the name, or give the copy's "
            "folder, OUT",
        ),
        (
            ["stdlib-1m", "--format", "int4", "out", "--threads", "0"],
            "threads is 0, expected a whole number, 1 or more",
        ),
        (
            ["stdlib", "--format", "int4", "out"],
            "there is no folder 'stdlib'; expected a checkpoint's folder, a hub id (owner/name) or an embedded "
            "model; did you mean 'stdlib-7m'? (known: stdlib-1m, stdlib-7m)",
        ),
    ],
)
def test_what_cannot_be_is_one_line_before_anything_is_written(
    given: list[str], message: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("quantize", *given)
    assert ran.code == 2
    assert ran.err == f"foretoken: {message.format(here=tmp_path)}\n"
    assert left_in(tmp_path) == []


def test_what_is_low_bit_or_quantised_by_others_is_refused(cli: Cli, model: Path) -> None:
    assert cli("quantize", model, "--format", "int2").code == 0
    ran = cli("quantize", f"{model}-int2-g64", "--format", "int8")
    assert ran.code == 2
    assert ran.err == (
        f"foretoken: {model}-int2-g64 is in a low-bit format already, int2-g64; quantise the model that it was made "
        "of\n"
    )
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "gptq"}
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ran = cli("quantize", model, "--format", "int8")
    assert ran.code == 2
    assert "the checkpoint is quantised ('gptq'); use the bf16, fp16 or fp32 original" in ran.err
    assert left_in(model.parent) == ["small", "small-int2-g64"]


def test_a_model_from_the_hub_goes_where_it_is_told_and_is_refused_before_its_weights_come(
    cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def download(name: str, *, revision: str | None, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        assert (name, revision) == ("owner/name", "v2")
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    out, folder = model.with_name("out"), model
    hub = ("quantize", "owner/name", "--revision", "v2", "--format", "int8")
    assert cli(*hub, out).code == 0
    assert asked[0] == ["config.json"]
    assert len(asked) == 2
    folder = out
    ran = cli(*hub, model.with_name("again"))
    assert ran.code == 2
    assert "is in a low-bit format already, int8" in ran.err
    assert asked[2:] == [["config.json"]]
    assert cli(*hub, out).code == 2
    assert len(asked) == 3, "a place that cannot be is refused before anything is asked for"
    for quantizer in ("hqq", "best"):
        ran = cli(*hub, model.with_name("again"), "--quantizer", quantizer)
        assert ran.code == 2
        assert "quantise it with 'direct'" in ran.err or "the quantiser 'best' is not known" in ran.err
        assert len(asked) == 3, "and so is a quantiser"
    assert left_in(model.parent) == ["out", "small"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_as_signals_do_and_nothing_is_left(number: int, model: Path) -> None:
    code = """
import sys, time
from foretoken.copies import quantise
from foretoken.cli.app import main
shutil = quantise.shutil
def wait(*given):
    print("waiting", flush=True)
    time.sleep(60)
shutil.copyfile = wait  # when the weights are written
sys.argv = ["foretoken", "quantize", sys.argv[1], "--format", "int8"]
main()
"""
    process = subprocess.Popen([sys.executable, "-c", code, model], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"waiting\n"
    (partial,) = model.parent.glob(".foretoken-*")
    assert (partial / "new" / "model.safetensors").stat().st_size > 1_000_000
    began = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 20
    assert process.returncode == -number
    assert len(err.splitlines()) == 1, err
    assert left_in(model.parent) == ["small"]
