"""Measuring under a bound of memory: each draft in a process of its own, and the same tokens as in memory."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from foretoken.bench import offload
from foretoken.bench.bounded import forget_peak_memory, peak_memory
from foretoken.common.source import resolve
from foretoken.offload.stream import Stream
from foretoken.rehearsal import write
from foretoken.rehearsal.shapes import shape_of

needs_reset = pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no peak is forgotten here")
ARGUMENTS = ["--memory", "1GiB", "--draft", "lookup", "--count", "1", "--tokens", "6", "--plain-tokens", "4"]


DONE = {
    "arithmetic": "native",
    "promise": "exact",
    "gpu": None,
    "bus_bytes_per_second": None,
    "threads": 1,
    "prompts": [],
}  # what stands for the model in memory


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["offload", *arguments])
    offload.main()


@pytest.mark.prove
def test_a_record_has_speed_memory_and_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "record.json"
    run(monkeypatch, "stdlib-1m", *ARGUMENTS, "--out", str(out))
    record = json.loads(out.read_text(encoding="utf-8"))
    plain, lookup = record["rows"]
    assert (plain["draft"], lookup["draft"]) == ("none", "lookup")
    assert plain["times_plain"] == 1
    assert [len(row["runs"][0]["prompts"]) for row in record["rows"]] == [1, 1]
    assert all(row["identical"] for row in record["rows"])
    assert all(row["share_of_disk"] is None for row in record["rows"]), "nothing is read"
    assert [row["quantisers"] for row in record["rows"]] == [{}, {}]
    assert plain["bytes_read_per_second"] < 1e6, "the whole model fits"
    assert all(100e6 < row["peak_memory"] < record["bound"] == 1 << 30 for row in record["rows"])
    assert "identical: yes" in capsys.readouterr().out


def test_what_fails_in_a_process_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        offload, "_run", lambda its, real=offload._run: DONE if not its.settings.get("memory") else real(its)
    )
    with pytest.raises(
        SystemExit, match=r"draft .none. could not be measured: .*memory is 9.4 MB, and this model needs"
    ):
        run(monkeypatch, "stdlib-1m", "--memory", "9MiB", *ARGUMENTS[2:], "--out", str(tmp_path / "record.json"))
    assert not (tmp_path / "record.json").exists()


@pytest.mark.prove
def test_a_draft_can_be_read_as_asked_and_measured_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[offload.Asked] = []
    real = offload._run

    def run_once(its: offload.Asked) -> dict[str, Any]:
        asked.append(its)
        return done if (done := known.get(its.tokens)) else known.setdefault(its.tokens, real(its))

    known: dict[int, dict[str, Any]] = {}
    monkeypatch.setattr(offload, "_run", run_once)
    more = ["--as-asked", "subspec", "--in-memory", "lookup", "--repeats", "2"]
    run(monkeypatch, "stdlib-1m", *ARGUMENTS, *more, "--out", str(tmp_path / "record.json"))
    record = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))
    assert [row["draft"] for row in record["rows"]] == ["none", "lookup", "subspec, read as asked", "lookup, in memory"]
    assert [row["times_plain"] is None for row in record["rows"]] == [False, False, False, True]
    assert all(row["deviation"] == 0 for row in record["rows"]), "the same run, twice"
    under = {(its.settings["draft"], its.read_ahead, "memory" in its.settings) for its in asked}
    assert under == {
        ("none", None, False),  # the truth
        ("none", None, True),
        ("lookup", None, True),
        ("subspec", 0, True),
        ("lookup", None, False),
    }
    lookup = record["rows"][1]
    prompt = lookup["runs"][0]["prompts"][0]
    assert lookup["length"] == round(prompt["tokens"] / (prompt["checks"] + 1), 2)


def test_the_disk_is_measured_around_the_texts_of_plain_decoding() -> None:
    settings = {"draft": "none", "stream_layers": "all"}
    found = offload.generated(offload.Asked("stdlib-1m", settings, "heldout-20", 2, 3, 0.0))
    first, second = (row["disk_bytes_per_second"] for row in found["prompts"])
    assert len(first) == len(second) == 4
    assert first[2:] == second[:2], "between two texts it is measured once"
    assert all(speed > 1e6 for speed in (*first, *second))


def test_a_disk_that_is_slowed_down_is_not_measured() -> None:
    settings = {"draft": "none", "stream_layers": "all", "disk_bandwidth": "1GB/s"}
    found = offload.generated(offload.Asked("stdlib-1m", settings, "heldout-20", 1, 3, 0.0))
    assert found["prompts"][0]["disk_bytes_per_second"] == []


def test_the_share_of_the_disk_is_the_median_over_texts() -> None:
    def text(read: int, disk: list[int]) -> dict[str, Any]:
        return {"decoding": {"seconds": 2.0, "bytes_read": read}, "disk_bytes_per_second": disk}

    texts = [text(180, [90, 100, 100, 400]), text(100, [100] * 4), text(190, [100] * 4), text(999, [])]
    assert offload._share_of_disk(texts) == 0.9
    assert offload._share_of_disk(texts[3:]) is None


@needs_reset
def test_a_peak_is_forgotten() -> None:
    assert forget_peak_memory()
    before = peak_memory()
    filled = b"x" * (256 << 20)
    assert peak_memory() > before + (128 << 20)
    del filled
    assert forget_peak_memory()
    assert peak_memory() < before + (32 << 20)


@needs_reset
def test_measuring_the_disk_adds_nothing_to_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "read_speed", lambda files: len(b"x" * (512 << 20)))
    forget_peak_memory()
    before = peak_memory()
    settings = {"draft": "none", "stream_layers": "all"}
    found = offload.generated(offload.Asked("stdlib-1m", settings, "heldout-20", 2, 3, 0.0))
    assert found["peak_memory"] < before + (384 << 20)


def test_one_token_has_no_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="tokens is 1"):
        run(monkeypatch, "stdlib-1m", *ARGUMENTS, "--tokens", "1", "--out", str(tmp_path / "record.json"))


def test_a_record_says_how_substitutes_were_made() -> None:
    assert offload._quantisers(offload.Way("subspec,lookup"), resolve("stdlib-1m")) == {"int4-g64": "direct"}


def test_layers_are_read_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int | None] = []
    monkeypatch.setattr(Stream, "read_ahead", lambda self, count: most.append(count))
    settings = {"draft": "none", "stream_layers": "all"}
    offload.generated(offload.Asked("stdlib-1m", settings, "heldout-20", 1, 3, 0.0, read_ahead=0))
    assert most == [0]


def test_a_draft_that_would_not_be_honest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = "hidden=256,layers=3,heads=8,kv-heads=4,intermediate=700,vocab=4096,head-dim=64"
    write.write(write.plan(resolve("stdlib-1m"), tmp_path / "big", write.Asked(shape_of(shape), "stdlib-1m")))
    arguments = ["--memory", "1GiB", "--draft", "stdlib-1m:k=10:depth=6", "--out", str(tmp_path / "record.json")]
    with pytest.raises(SystemExit, match="says what stdlib-1m says"):
        run(monkeypatch, str(tmp_path / "big"), *arguments)
