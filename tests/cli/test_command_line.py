"""The command as a process among others: its help, signals, pipes, and what it takes to start it."""

from __future__ import annotations

import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import foretoken
from foretoken.__main__ import main as main_of_the_command
from foretoken.common.source import EMBEDDED
from tests.cli.conftest import Cli


def test_every_option_that_is_left_open_says_what_it_is_then(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = cli("generate", "--help").out
    for default in ("what --pace chooses", "as many as PyTorch takes", "stdlib-7m", "128"):
        assert f"[default: ({default})]" in told or f"[default: {default}]" in told


def test_what_is_asked_often_has_a_letter(cli: Cli) -> None:
    long = cli("generate", "def add(", "--model", "stdlib-1m", "--max-new-tokens", 9, "--threads", 1, "--draft", "none")
    short = cli("generate", "def add(", "-m", "stdlib-1m", "-n", 9, "-t", 1, "--draft", "none")
    assert short.code == 0
    assert short.out == long.out
    assert ", 1 thread" in short.err
    assert cli("generate", "-h").out == cli("generate", "--help").out != ""


def test_a_wrong_option_points_to_the_help_of_its_command(cli: Cli) -> None:
    assert cli("bench", "decode", "--bogus").err.endswith("See `foretoken bench decode --help`.\n")
    assert cli("generat").err.endswith("See `foretoken --help`.\n")


def test_a_shell_can_complete(cli: Cli) -> None:
    assert "--install-completion" in cli("--help").out


def test_more_is_said_to_who_asks_for_it(cli: Cli, tmp_path: Path) -> None:
    model = shutil.copytree(EMBEDDED["stdlib-1m"], tmp_path / "model")
    assert cli("quantize", model, "--format", "int2").code == 0
    command = ("generate", "x", "--model", model, "-n", 2, "--draft", "int4")
    assert "beside the model lies" not in cli(*command).err
    assert f"beside the model lies {model}-int2" in cli(*command, "-v").err
    assert "beside the model lies" not in cli(*command).err


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


PROJECT = Path(__file__).parents[2] / "pyproject.toml"
WHILE_IMPORTING = """
import os, signal, sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Stop())
from foretoken.__main__ import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_commands_are_imported(ignored: bool) -> None:
    """It ends the process, unless the shell has told the process to ignore it."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignored else None
    try:
        done = subprocess.run(
            [sys.executable, "-c", WHILE_IMPORTING, "--version"], capture_output=True, text=True, check=False
        )
    finally:
        if ignored:
            signal.signal(signal.SIGINT, handler)
    assert done.returncode == (0 if ignored else -signal.SIGINT)
    assert done.stdout.startswith("foretoken ") == ignored
    assert done.stderr == ""


def test_the_command_that_is_installed_is_this_one() -> None:
    scripts = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["scripts"]
    assert pkgutil.resolve_name(scripts["foretoken"]) is main_of_the_command


def test_without_a_command_the_help_is_shown(cli: Cli) -> None:
    ran = cli()
    assert ran.code == 0
    assert "generate" in ran.out


# the help of a command line that has nothing behind its commands
EMPTY = """
import typer
app = typer.Typer(rich_markup_mode="markdown")
for name in "abcdefghijkl":
    app.command(name, help="Do something that takes about as many words as what our commands do.")(lambda: None)
"""
OURS = "from foretoken.cli.app import app"
HELP = """
import sys
sys.argv = ["foretoken", "--help"]
try:
    app()
except SystemExit:
    pass
"""
COUNTING = """
import cProfile, pstats
profile = cProfile.Profile()
profile.enable()
{}
profile.disable()
print("calls:", pstats.Stats(profile).total_calls)
"""
PACKAGES = """
names = {name.partition(".")[0] for name in sys.modules if not name.startswith(("_", "foretoken"))}
print("packages:", *sorted(names - sys.stdlib_module_names))
"""


def test_help_and_import_are_quick_and_take_no_torch() -> None:
    ours, theirs = (
        subprocess.run([sys.executable, "-c", which + HELP + PACKAGES], capture_output=True, text=True, check=True)
        for which in (OURS, EMPTY)
    )
    assert "generate" in ours.stdout
    # no package beside those of the command line itself: torch alone takes 13 times the help's whole time
    assert ours.stdout.rpartition("packages:")[2] == theirs.stdout.rpartition("packages:")[2]
    # nor much of our own: 1.9 times as many calls of functions, which take 1.65 times as long. Calls are counted on a
    # busy machine, too
    full, empty = (
        subprocess.run([sys.executable, "-c", COUNTING.format(each)], capture_output=True, text=True, check=True).stdout
        for each in (OURS + HELP, EMPTY + HELP)
    )
    calls = [int(each.rpartition("calls:")[2]) for each in (full, empty)]
    assert calls[0] < 2.1 * calls[1]


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
        pytest.param(f"{LONG} 2>&1 | head -c 5 >/dev/null", marks=pytest.mark.prove),
        pytest.param(f"{LONG} --json | true", marks=pytest.mark.prove),
        pytest.param(f"{LONG} --show-origins | head -c 5 >/dev/null", marks=pytest.mark.prove),
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
