"""A model on a host, measured: in process, and over networks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from foretoken.bench import remote

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
