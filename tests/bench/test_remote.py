"""A model on a host, measured: in process, and over networks."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from foretoken.bench import remote
from foretoken.bench.played import CLIENTS
from foretoken.common.source import EMBEDDED_DRAFTERS

pytest.importorskip("websockets")


def test_a_host_is_measured_over_a_network_and_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "record.json"
    told = [
        "--model",
        "stdlib-1m",
        "--network",
        "lan",
        "--num-prompts",
        "2",
        "--max-new-tokens",
        "8",
        "--out",
        str(out),
    ]
    monkeypatch.setattr(sys, "argv", ["remote", *told])
    monkeypatch.setattr(remote, "CLIENTS", 2)
    remote.main()
    record = json.loads(out.read_text(encoding="utf-8"))
    ways = [(row["network"], row["draft"], row["ahead"]) for row in record["rows"]]
    here, there = [(None, "none", False), (None, "lookup", False)], [("lan", "none", False), ("lan", "lookup", False)]
    assert ways == [*here, *there, ("lan", "lookup", True)]
    assert all(row["texts_with_other_tokens"] == 0 and row["tokens_per_second"] > 0 for row in record["rows"])
    assert [row["bytes_sent_per_token"] > 0 for row in record["rows"]] == [False, False, True, True, True]
    for row in record["rows"][2:]:
        assert row["bytes_on_the_wire_per_token"] > row["bytes_sent_per_token"] + row["bytes_received_per_token"]
    assert [row["clients"] for row in record["clients"]] == [1, 2]
    assert record["round_trip_seconds"]["lan"] > 0
    assert all("expected_seconds_per_round" in row for row in record["rows"][2:4])
    played = record["clients_on_a_clock_of_its_own"]["rows"]
    assert {(row["draft"], row["drafted_on"]) for row in played} == {
        ("none", "client"),
        ("lookup", "client"),
        ("lookup", "host"),
    }
    assert len(played) == 3 * len(CLIENTS)
    assert all(row["tokens_per_second"] > 0 for row in played)


def test_a_trained_drafter_is_packed_for_its_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under another name, so that it is not found as the embedded one."""
    drafter, out = tmp_path / "own", tmp_path / "record.json"
    shutil.copytree(EMBEDDED_DRAFTERS["moa"], drafter)
    told = ["--model", "stdlib-7m", "--network", "5g", "--num-prompts", "1", "--max-new-tokens", "12"]
    told += ["--draft", f"{drafter}:tokens=4", "--pace", "fixed", "--slowdown", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["remote", *told])
    monkeypatch.setattr(remote, "CLIENTS", 2)
    remote.main()
    record = json.loads(out.read_text(encoding="utf-8"))
    assert [(row["network"], row["ahead"]) for row in record["rows"]] == [(None, False)] * 2 + [("5g", False)] * 2
    beside, far = record["rows"][1], record["rows"][3]
    assert far["draft_tokens"] == beside["draft_tokens"] > 0
    assert all(row["texts_with_other_tokens"] == 0 for row in record["rows"])
    assert far["bytes_received_per_token"] > 256, "what it sees has travelled"
    assert far["expected_seconds_per_round"] > record["rows"][2]["expected_seconds_per_round"] - 0.005 > 0.02
    assert far["expected_seconds_per_round"] < 1.5 * far["seconds_per_round"]
