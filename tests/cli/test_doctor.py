"""`foretoken doctor` as a user meets it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foretoken.doctor import speed
from foretoken.doctor.findings import GROUPS, STATUSES
from foretoken.kernels import native
from tests.cli.conftest import Cli
from tests.tiny import needs_native

KEYS = [
    "foretoken", "status", "summary", "findings", "versions", "untested", "machine", "engine", "threads", "huge_pages",
    "memory_speed", "memory_not_measured", "disk", "parts", "gpus", "checkpoint", "fits",
]  # fmt: skip
DOCUMENT = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")


def elsewhere(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which reads the environment anew."""
    command = [sys.executable, "-m", "foretoken", "doctor", "--quick", *options]
    env = {**os.environ, **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def finding(record: dict[str, Any], topic: str) -> dict[str, Any]:
    (found,) = (one for one in record["findings"] if one["topic"] == topic)
    return dict(found)


def test_what_is_read_says_what_runs_and_what_fits(cli: Cli) -> None:
    ran = cli("doctor", "--quick")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("Foretoken ")
    assert re.match(r"(Nothing|\d+ things?) to improve", lines[1])
    titles = [line for line in lines if line in GROUPS]
    assert titles == [title for title in GROUPS if title != "Model"]
    assert "promise" in ran.out
    assert (f"instructions  {native.isa()}" if native.module() else "PyTorch computes") in ran.out
    (row,) = (line for line in lines if line.startswith("  llama-3.2-1b"))
    assert re.findall(r"[\d.]+ GB", row) == ["2.47 GB", "1.76 GB", "1.22 GB", "1.18 GB"]
    assert max(map(len, lines)) <= 110
    assert not [line for line in lines if line != line.rstrip()]
    assert ran.out.isascii(), "marks and colours are for terminals"


def test_json_is_one_object_with_the_documented_keys(cli: Cli) -> None:
    ran = cli("doctor", "--quick", "--json")
    assert (ran.code, ran.err) == (0, "")
    record = json.loads(ran.out)
    assert list(record) == KEYS
    assert record["status"] in STATUSES[:-1]
    assert record["machine"]["cores"] >= 1
    assert record["memory_speed"] is None
    assert record["memory_not_measured"] == record["disk"]["not_measured"] == "left out by --quick"
    assert all(list(one) == ["topic", "status", "text", "advice"] for one in record["findings"])
    assert all((one["advice"] is None) == (one["status"] == "good") for one in record["findings"])
    assert finding(record, "promise")["text"].startswith("exact")
    for key in KEYS:
        assert f"`{key}`" in DOCUMENT, f"docs/doctor.md does not describe {key}"


def test_every_topic_is_in_the_document(cli: Cli) -> None:
    record = json.loads(cli("doctor", "--quick", "--json", "--model", "stdlib-1m").out)
    topics = {one["topic"] for one in record["findings"]} | {"host", "binding", "weights", "amx", "models"}
    assert len(topics) > 15
    for topic in topics:
        assert re.search(rf"^\| {topic} \|", DOCUMENT, re.MULTILINE), f"docs/doctor.md does not describe {topic}"


def test_a_model_is_looked_at(cli: Cli) -> None:
    record = json.loads(cli("doctor", "--quick", "--json", "--model", "stdlib-1m").out)
    runs = f"native with the instruction set {native.isa()}" if native.module() else "in PyTorch"
    assert finding(record, "model")["text"] == f"stdlib-1m (llama, bf16) runs {runs}; promise: exact."
    (fits,) = record["fits"]
    assert (fits["name"], [fit["format"] for fit in fits["formats"]]) == (
        "stdlib-1m",
        ["bf16", "int8", "int4", "mxfp4"],
    )


def test_a_model_that_is_not_there_is_refused_and_one_that_is_broken_a_problem(cli: Cli, tmp_path: Path) -> None:
    ran = cli("doctor", "--quick", "--model", tmp_path / "nothing")
    assert (ran.code, ran.out) == (2, "")
    assert "there is no folder" in ran.err
    (tmp_path / "config.json").write_text('{"model_type": "strange"}', encoding="utf-8")
    ran = cli("doctor", "--quick", "--model", tmp_path)
    assert ran.code == 1
    assert "Foretoken cannot run like this: see model" in ran.out
    assert "problem: model_type 'strange' is not supported." in ran.out


def test_speeds_are_measured_and_bound_what_fits(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_MOST", 64 << 20)
    monkeypatch.setattr(speed, "_TEMPORARY", 16 << 20)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    ran = cli("doctor", "--json")
    assert ran.code == 0
    record = json.loads(ran.out)
    assert record["memory_speed"]["size"] == 64 << 20
    best = max(record["memory_speed"]["huge"], record["memory_speed"]["small"])
    fit = record["fits"][0]["formats"][-1]
    assert fit["fits"] != "no"
    assert fit["tokens_per_second"] == pytest.approx(best / fit["read"])
    assert record["disk"]["folder"] == str(tmp_path / "hub")
    assert list(tmp_path.iterdir()) == [], "nothing is left where models lie"


@needs_native
def test_a_level_that_is_nonsense_is_a_problem_and_one_that_is_forced_a_note() -> None:
    wrong = elsewhere(FORETOKEN_ISA="nonsense")
    assert (wrong.returncode, wrong.stderr) == (1, "")
    assert "problem: FORETOKEN_ISA is 'nonsense' (known:" in wrong.stdout
    if native.supported() != ["generic"]:
        forced = json.loads(elsewhere("--json", FORETOKEN_ISA="generic", FORETOKEN_NATIVE="auto").stdout)
        assert finding(forced, "instructions")["status"] == "note"
        assert forced["engine"]["isa"] == "generic"


def test_without_the_native_module_everything_is_said_too() -> None:
    ran = elsewhere("--json", FORETOKEN_NATIVE="off", OMP_NUM_THREADS="1")
    assert (ran.returncode, ran.stderr) == (0, "")
    record = json.loads(ran.stdout)
    assert finding(record, "arithmetic")["status"] == "warning"
    assert finding(record, "promise")["text"].startswith("exact")
    assert record["threads"]["torch"] == 1
    if record["machine"]["physical_cores"] not in (None, 1):
        assert finding(record, "threads")["status"] == "warning"
