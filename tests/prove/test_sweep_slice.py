"""A slice of the bad input sweep, and that its judge would see what it is there to see."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.prove.bad_input.alter import alter_bytes, alter_json, alter_safetensors, read_header, with_header, written
from tests.prove.bad_input.judge import faults
from tests.prove.bad_input.sandbox import Outcome
from tests.prove.bad_input.stage import contents

ROOT = Path(__file__).parents[2]
CASES = (0, 1, 5, 6, 9, 10, 16)  # of as many kinds


@pytest.mark.skipif(not hasattr(os, "fork"), reason="cases run in forked processes")
def test_a_slice_of_the_sweep() -> None:
    pytest.importorskip("llguidance", reason="the extra 'grammar' is not installed")
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    words = [word for number in CASES for word in ("--case", str(number))]
    command = [sys.executable, "-m", "tests.prove.bad_input", "--seed", "1", "--jobs", "2", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"{len(CASES)} cases" in done.stdout
    assert "0 wrong" in done.stdout  # so what they were made of ran through, unspoiled
    assert done.stderr.count("exit code 2, None") >= 5, "nothing was refused"


REFUSED = Outcome(2, None, b"", "-- a word\nforetoken: it is bad; give another\n", 1.0)


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        (REFUSED, None),
        (Outcome(0, None, b"text", "-- 12 tokens\n", 1.0), None),
        (Outcome(141, None, b"", "", 1.0), None),
        (Outcome(2, None, b"Usage: foretoken bench", "", 1.0), None),
        (Outcome(None, "SIGSEGV", b"", "", 1.0), "the process was ended by SIGSEGV"),
        (Outcome(None, "time", b"", "", 20.0), "it does not end"),
        (Outcome(70, None, b"", "Traceback (most recent call last):\n", 1.0), "exit code 70"),
        (Outcome(2, None, b"", "foretoken: one\nforetoken: two\n", 1.0), "2 lines that refuse"),
        (Outcome(2, None, b"", "", 1.0), "0 lines that refuse"),
        (Outcome(0, None, b"", "foretoken: it is bad\n", 1.0), "1 lines that refuse"),
        (Outcome(2, None, b"", "foretoken: 'NoneType' object\n", 1.0), "it speaks of 'NoneType'"),
        (Outcome(2, None, b"", f"foretoken: {'x' * 5000}\n", 1.0), "a message of 5011 characters"),
        (Outcome(2, None, b"", "foretoken: \x1b[2J\n", 1.0), "control characters"),
        (Outcome(2, None, b"", "UserWarning: x\nforetoken: bad\n", 1.0), "other words on standard error"),
        (Outcome(1, None, b"", "-- audit: differs at token 3\n", 1.0), "drafting changed the output"),
    ],
)
def test_the_judge_sees_how_a_command_ended(outcome: Outcome, fault: str | None, tmp_path: Path) -> None:
    found = faults(outcome, {}, {}, tmp_path, ())
    assert found == [] if fault is None else any(fault in one for one in found), found


def test_the_judge_sees_what_was_left_behind(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"precious")
    before = contents(tmp_path)
    (tmp_path / ".x.partial").touch()
    (tmp_path / "kept").write_bytes(b"")
    (tmp_path / "out.json").write_bytes(b'{"cut": ')
    found = faults(REFUSED, before, contents(tmp_path), tmp_path, ("out.json",))
    assert len(found) == 4, found
    for said in ("'.x.partial' was left", "'kept' was changed", "'out.json' is not whole", "'out.json' was written by"):
        assert any(said in one for one in found)


def test_what_is_altered_follows_from_the_seed_and_is_altered() -> None:
    tensor = {"dtype": "BF16", "shape": [4, 2], "data_offsets": [0, 16]}
    sound = with_header({"a.weight": tensor, "b": {**tensor, "data_offsets": [16, 32]}}, bytes(range(32)))
    assert with_header(*read_header(sound)) == sound
    document = {"a": {"b": [1, 2.5, "x"]}, "c": None}
    changed = 0
    for seed in range(200):
        twice = [alter_safetensors(sound, random.Random(seed)) for _ in range(2)]
        assert twice[0] == twice[1]
        assert alter_bytes(sound, random.Random(seed)) == alter_bytes(sound, random.Random(seed))
        now = [written(alter_json(document, random.Random(seed))[0]) for _ in range(2)]
        assert now[0] == now[1]
        changed += (twice[0][0] != sound) + (now[0] != written(document))
    assert changed > 340, "many cases would be of sound input"
    assert written(document) == b'{"a": {"b": [1, 2.5, "x"]}, "c": null}'
