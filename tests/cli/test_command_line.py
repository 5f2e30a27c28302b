"""The command line as a user meets it. Most run in this process, which has torch in memory already."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import foretoken
from foretoken.bench import kernels
from foretoken.cli import generate
from foretoken.cli.show import print_with_origins
from foretoken.errors import PromptError
from foretoken.output import Piece
from foretoken.source import EMBEDDED
from tests.cli.conftest import Cli

MODEL = EMBEDDED["stdlib-7m"]


def test_json_is_one_object_with_the_promised_keys(cli: Cli) -> None:
    ran = cli("generate", "def add(", "--max-new-tokens", 24, "--json")
    assert ran.code == 0
    result = json.loads(ran.out)
    assert list(result) == [
        "tokens",
        "text",
        "finish_reason",
        "stop_string",
        "seed",
        "prompt_tokens",
        "promise",
        "draft",
        "arithmetic",
        "threads",
        "origins",
        "stats",
        "logprobs",
        "audit",
    ]
    assert list(result["stats"]) == [
        "passes",
        "drafts",
        "draft_tokens",
        "accepted_tokens",
        "draft_acceptance_rate",
        "mean_acceptance_length",
        "accepted_per_position",
        "tokens_per_second",
        "tokens_per_second_with_prefill",
        "prefill_seconds",
        "decode_seconds",
        "draft_seconds",
        "check_seconds",
        "levels",
    ]
    assert len(result["tokens"]) == len(result["origins"]) == 24
    assert (result["seed"], result["stop_string"], result["logprobs"], result["prompt_tokens"]) == (None, None, None, 3)
    assert (result["finish_reason"], result["promise"], result["draft"]) == ("length", "exact", "lookup")


def test_the_prompt_may_come_from_argument_file_or_stdin_and_the_text_is_the_same(cli: Cli, tmp_path: Path) -> None:
    text = "class Stack:\n    def push(self"
    file = tmp_path / "prompt.txt"
    file.write_text(text + "\n", encoding="utf-8")
    runs = [
        cli("generate", text, "--max-new-tokens", 8),
        cli("generate", "--prompt-file", file, "--max-new-tokens", 8),
        cli("generate", "--max-new-tokens", 8, stdin=(text + "\n").encode()),
    ]
    assert [ran.code for ran in runs] == [0, 0, 0]
    assert runs[0].out.strip()
    assert runs[0].out == runs[1].out == runs[2].out
    assert "8 tokens" in runs[0].err
    assert "promise: exact" in runs[0].err


def test_drafting_changes_nothing_but_the_way_there(cli: Cli) -> None:
    prompt = "for i in range(3):\n    print(i)\nfor i in range(3):"
    drafted = json.loads(cli("generate", prompt, "--json", "--max-new-tokens", 60).out)
    plain = json.loads(cli("generate", prompt, "--json", "--max-new-tokens", 60, "--draft", "none").out)
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["text"] == plain["text"]
    assert drafted["stats"]["accepted_tokens"] > 0
    assert plain["stats"]["draft_tokens"] == 0
    assert plain["stats"]["mean_acceptance_length"] == 1


def test_a_generation_that_fills_the_context_says_so(cli: Cli) -> None:
    model = foretoken.load(MODEL)
    prompt = "x = 1\n" * 508
    assert 1 < model.context_length - len(model.tokens_of(prompt)) < 128
    full = cli("generate", prompt, "--ignore-eos")
    assert f"ended by length (the context of {model.context_length} tokens is full); promise" in full.err
    as_json = cli("generate", prompt, "--ignore-eos", "--json")
    assert json.loads(as_json.out)["finish_reason"] == "length"
    asked = cli("generate", prompt, "--ignore-eos", "--max-new-tokens", 2)
    assert "ended by length; promise" in asked.err


def test_every_option_that_is_left_open_says_what_it_is_then(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = cli("generate", "--help").out
    for default in ("what suits the draft", "as many as PyTorch takes", "stdlib-7m", "128"):
        assert f"[default: ({default})]" in told or f"[default: {default}]" in told


def test_origins_are_coloured_and_explained(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    prompt = "x = 1\nx = 1\nx = 1\nx ="
    ran = cli("generate", prompt, "--max-new-tokens", 12, "--show-origins")
    assert ran.code == 0
    assert "\x1b[32m" in ran.out, "a looked-up token is green"
    assert "lookup" in ran.err
    assert "target" in ran.err
    plain = cli("generate", prompt, "--max-new-tokens", 12)
    assert "\x1b[" not in plain.out
    assert re.sub(r"\x1b\[[0-9;]*m", "", ran.out) == plain.out, "colours change nothing else"
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in cli("generate", prompt, "--max-new-tokens", 12, "--show-origins").out


def test_coloured_text_keeps_its_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    print_with_origins([Piece(1, "a\tb", "target"), Piece(2, "\tc [bold]", "lookup")])
    assert capsys.readouterr().out == "a\tb\x1b[32m\tc [bold]\x1b[0m\n"


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
        (("generate", "x", "--draft", "lookup:depth=2"), "draft 'lookup' has no option 'depth'"),
        (("generate", "x", "--draft", "lookup,lookup"), "'lookup' cannot be sped up by 'lookup'; only a decoder"),
        (("generate", "x", "--dtype", "int8"), "dtype is 'int8'"),
        (("generate", "x", "--threads", "0"), "threads is 0, expected a whole number, 1 or more"),
        (("generate", "x", "--model", "stdlib-7n"), "did you mean 'stdlib-7m'?"),
        (("generate", "x", "--model", "owner/name"), "no hub could be reached"),
        (("generate", "x", "--device", "cuda:9"), "PyTorch sees no such GPU here"),
        (("generate", "--prompt-file", "/nowhere"), "/nowhere cannot be read (No such file or directory)"),
        (("generate", "x", "--prompt-file", "/nowhere"), "came as an argument and as --prompt-file; give one of them"),
        (("generate",), "the prompt is empty"),
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
    assert len(ran.err) < 1500
    assert "?." not in ran.err
    assert ran.err.removesuffix("\n").isprintable()  # whatever an option holds, no terminal obeys it


def test_a_message_that_is_cut_keeps_what_to_do(cli: Cli, tmp_path: Path) -> None:
    ran = cli("generate", "x", "--json-schema", json.dumps({"type": "x" * 3000}))
    assert ran.code == 2
    assert len(ran.err) < 1500
    ran = cli("generate", "x", "--record", tmp_path / "/".join(["a" * 200] * 9) / "out.json")
    assert len(ran.err) < 1500
    assert ran.err.startswith("foretoken: there is no folder /")
    assert ran.err.endswith(" for the record; make it first\n")


def test_a_prompt_that_is_not_utf8_is_refused(cli: Cli) -> None:
    ran = cli("generate", stdin=b"abc\xff")
    assert ran.code == 2
    assert "not UTF-8 (byte 3)" in ran.err


def timed(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - began


def test_the_version_is_told_without_a_command(cli: Cli) -> None:
    ran = cli("--version")
    assert (ran.code, ran.out) == (0, f"foretoken {foretoken.__version__}\n")


def test_python_m_foretoken_is_the_command() -> None:
    command = [sys.executable, "-m", "foretoken", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("foretoken ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_output_that_cannot_be_written_is_one_line_and_exit_code_2() -> None:
    command = [sys.executable, "-m", "foretoken", "generate", "x", "--max-new-tokens", "4"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "foretoken: the output cannot be written (No space left on device); free some space, or write elsewhere\n"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
@pytest.mark.parametrize("after", [0.5, 0.9, 1.4])  # seconds: while heavy modules are imported, and later
def test_ctrl_c_ends_it_whenever_it_comes_and_without_a_traceback(after: float) -> None:
    command = [sys.executable, "-m", "foretoken", "generate", "x", "--max-new-tokens", "100000", "--ignore-eos"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(after)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == -signal.SIGINT
    assert err == ""


def test_without_a_command_the_help_is_shown(cli: Cli) -> None:
    ran = cli()
    assert ran.code == 0
    assert "generate" in ran.out


def test_without_standard_input_a_prompt_is_asked_for(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate.sys, "stdin", None)
    with pytest.raises(PromptError, match="there is no prompt; give it as an argument"):
        generate._read_prompt(None, None)


def test_help_and_import_are_quick_and_take_no_torch() -> None:
    code = """
import sys
sys.argv = ["foretoken", "--help"]
from foretoken.cli.app import app
try:
    app()
except SystemExit:
    pass
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "generate" in done.stdout
    times = [timed([sys.executable, "-c", code]) for _ in range(5)]
    # against Python itself, so that a busy machine does not count; 0.13 s more where this was written
    bare = min(timed([sys.executable, "-c", "pass"]) for _ in range(5))
    assert min(times) - bare < 0.3


def test_the_demo_says_identical(cli: Cli) -> None:
    ran = cli("demo")
    assert ran.code == 0
    assert ran.out.rstrip().endswith("identical: yes")
    assert "draft tokens accepted" in ran.out
    assert "nothing drafted" in ran.out


LONG = "generate 'def add(' --model stdlib-1m --max-new-tokens 1000 --ignore-eos"


def in_bash(command: str) -> subprocess.CompletedProcess[str]:
    """Runs `foretoken` as a shell does, with pipes; the exit code is the command's own."""
    script = f"{sys.executable} -m foretoken {command}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash to make pipes")


@needs_bash
@pytest.mark.parametrize(
    "command",
    [
        f"{LONG} | head -c 5 >/dev/null",
        f"{LONG} 2>&1 | head -c 5 >/dev/null",
        f"{LONG} --json | true",
        f"{LONG} --show-origins | head -c 5 >/dev/null",
        "--help | true",  # rich has its own way with broken pipes
        "doctor --quick | true",  # and what is printed without a flush fails at the end
    ],
)
def test_whoever_reads_may_go_away(command: str) -> None:
    done = in_bash(command)
    assert done.returncode == 141
    assert done.stderr == ""


@needs_bash
def test_standard_output_may_be_closed() -> None:
    done = in_bash("generate 'def add(' --model stdlib-1m --max-new-tokens 5 >&-")
    assert done.returncode == 0
    assert re.fullmatch(r"-- 5 tokens, .*\n", done.stderr)
    doctor = in_bash("doctor --quick >&-")
    assert (doctor.returncode, doctor.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="this system has no broken pipes")
def test_a_hub_that_hangs_up_is_told_and_does_not_end_the_process_without_a_word() -> None:
    code = """
import socket, sys
import huggingface_hub
from foretoken.cli.app import main

def hangs_up(*args, **options):
    here, there = socket.socketpair()
    there.close()
    here.sendall(b"GET")

huggingface_hub.snapshot_download = hangs_up
sys.argv = ["foretoken", "generate", "x", "--model", "owner/name"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no hub could be reached to download it (BrokenPipeError)" in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_for_a_group_is_not_an_empty_complaint(cli: Cli) -> None:
    ran = cli("bench")
    assert ran.code == 2
    assert "kernels" in ran.out + ran.err
    assert "foretoken: ." not in ran.err


def test_a_measurement_that_could_not_be_kept_does_not_begin(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "bench", lambda **options: pytest.fail("it measures"))
    ran = cli("bench", "kernels", "--json", tmp_path / "nowhere" / "record.json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"foretoken: there is no folder {tmp_path}/nowhere for the record; make it first\n"
