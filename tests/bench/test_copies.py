"""The measurement of a model's copies: what is in its record, and what a peer's program that does not run leads to."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from foretoken.api.build import load, with_draft
from foretoken.api.levels import load_level
from foretoken.bench import acceptance, copies, passes
from foretoken.bench.ceilings import Ceiling
from foretoken.bench.side_by_side.process import PeerProcess
from foretoken.common.source import EMBEDDED
from foretoken.copies import quantise
from foretoken.copies.beside import place_beside
from foretoken.decoder import low_bit
from foretoken.decoder.weights import Weights
from foretoken.drafters.ladder import find_levels
from foretoken.errors import InputError
from foretoken.formats import format_of
from tests.tiny import needs_native

SMALL = 1 << 22  # bytes: nothing here is a measurement

PEER = """
import json, sys
print(json.dumps({"version": "1", "system": "none", "modes": {}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"seconds": [64.0 * asked["rows"]] * asked["count"]}), flush=True)
"""


def arguments(**given: object) -> argparse.Namespace:
    return argparse.Namespace(
        **{"format": ["mxfp4"], "layers": 1, "rounds": 1, "long": [], "llama_python": None, **given}
    )


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ceiling.__init__, "__defaults__", (SMALL,))
    small = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4}
    for name, size in {**small, "num_key_value_heads": 2, "vocab_size": 128}.items():
        monkeypatch.setitem(passes.SHAPE, name, size)


@needs_native
@pytest.mark.usefixtures("_small")
def test_the_record_has_the_model_and_its_copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    peer = tmp_path / "peer.py"
    peer.write_text(PEER, encoding="utf-8")
    monkeypatch.setattr(copies, "PEER", replace(copies.PEER, program=peer))
    record = copies._measure(arguments(format=["mxfp4", "int2"], long=[20, 300], llama_python=sys.executable))
    passes = {(row["weights"], row["rows"]): row for row in record["passes"]}
    assert set(passes) == {(w, r) for w in ("bfloat16", "mxfp4", "int2") for r in (*copies.ROWS, "draft")}
    assert passes["int2", 1]["bytes"] < passes["mxfp4", 1]["bytes"] < passes["bfloat16", 1]["bytes"] / 3
    assert all(row["of_bfloat16"] == 1.0 for (weights, _), row in passes.items() if weights == "bfloat16")
    kinds = [("bfloat16", "full"), ("mxfp4", "full"), ("mxfp4", "int8")]
    long = [(row["context"], row["rows"], (row["weights"], row["kv"])) for row in record["long_texts"]]
    assert long == [*product((20, 300), copies.LONG_ROWS, kinds)]
    assert [row["of_plain_pass"] for row in record["long_texts"] if row["rows"] == 1][::3] == [1.0, 1.0]
    assert set(record["cast_seconds"]) == {"mxfp4", "int2"}
    assert record["llama_cpp"]["milliseconds"] == {rows: 64e3 * rows for rows in copies.ROWS}
    assert record["llama_cpp"]["faster_than_it"]["mxfp4"][1] > 1
    assert record["llama_cpp"]["version"] == "1"
    json.dumps(record)


@needs_native
@pytest.mark.usefixtures("_small")
def test_a_turn_is_the_same_for_all_and_its_first_pass_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    peer = tmp_path / "peer.py"
    peer.write_text(
        PEER.replace('[64.0 * asked["rows"]] * asked["count"]', '[9.0, *[0.25] * (asked["count"] - 1)]'), "utf-8"
    )
    monkeypatch.setattr(copies, "PEER", replace(copies.PEER, program=peer))
    events: list[str] = []
    times = {"bandwidth": 1e9, "pass": 0.5}

    def telling(event: str) -> Callable[..., float]:
        def told(*_: object) -> float:
            first = events[-1:] != [event]
            events.append(event)
            return 7.0 if first and event == "pass" else times[event]

        return told

    ask = copies.llama_cpp

    def asked(peer: PeerProcess, rows: int) -> list[float]:
        events.append("peer")
        return ask(peer, rows)

    casts: list[str] = []

    def quantised(*given: Any, **how: Any) -> Weights:
        casts.append("cast")
        return low_bit.quantised(*given, **how)

    monkeypatch.setattr(copies, "quantised", quantised)
    monkeypatch.setattr(Ceiling, "measure", telling("bandwidth"))
    monkeypatch.setattr(copies, "one_pass", telling("pass"))
    monkeypatch.setattr(copies, "steps", telling("pass"))
    monkeypatch.setattr(copies, "llama_cpp", asked)
    record = copies._measure(arguments(rounds=2, llama_python=sys.executable))
    ours, theirs = ["bandwidth", *["pass"] * 4], ["bandwidth", "peer"]
    assert events == 2 * ([*ours, *ours, *theirs] * len(copies.ROWS) + [*ours, *ours])
    assert casts == ["cast"] * 4
    assert {row["milliseconds"] for row in record["passes"]} == {500.0}
    assert set(record["llama_cpp"]["milliseconds"].values()) == {250.0}
    assert record["llama_cpp"]["faster_than_it"]["mxfp4"] == dict.fromkeys(copies.ROWS, 0.5)


@needs_native
@pytest.mark.usefixtures("_small")
def test_a_peer_that_ends_or_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(copies, "PEER", replace(copies.PEER, program=tmp_path / "absent.py"))
    with pytest.raises(InputError, match=r"llama.cpp: ended with exit code 2: .*absent.py.*; expected a Python with"):
        copies._measure(arguments(llama_python=sys.executable))
    with pytest.raises(InputError, match="no-python does not run"):
        copies._measure(arguments(llama_python=str(tmp_path / "no-python")))


def test_drafts_of_a_copy_are_counted_with_a_view_and_without() -> None:
    model = load("stdlib-1m", draft="none")
    (way, own) = (w for w in acceptance.ways([4], 2, 2, [0.5]) if w.kind in ("chain", "own-cache"))
    prompts = [tuple(range(40, 60)), tuple(range(300, 330))]
    for each in (way, own):
        row = acceptance.measure(with_draft(model, f"int4:{each.options}"), prompts, 24, 0.0)
        assert 0 < row["accepted_tokens"] <= row["draft_tokens"]
        assert 1 < row["mean_acceptance_length"] <= 5
    assert "own cache" in own.name


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("int4:tokens=4", "--draft is 'int4:tokens=4', and 'tokens' is not a draft's to choose here"),
        ("int4:own-cache", "'own-cache' is not a draft's to choose here"),
        ("stdlib-1m:inputs=int8:k=4:format=int4", "'k' is not a draft's to choose here"),
        ("lookup", "--draft is 'lookup'; expected a checkpoint or a low-bit format"),
        ("int4,int2", "--draft is 'int4,int2'; expected a checkpoint or a low-bit format"),
    ],
)
def test_what_the_ways_to_draft_decide_is_no_option(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        acceptance.named(spec)


def test_a_draft_is_described_by_its_format_inputs_and_quantiser(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EMBEDDED["stdlib-1m"], tmp_path / "small"))
    model = load(folder, draft="none")

    def about(spec: str) -> dict[str, Any]:
        (level,) = find_levels([acceptance.named(spec)], model.folder)
        loaded = load_level(level, model.folder, model.target, model.settings)
        told = acceptance.describe(loaded)
        assert told.pop("arithmetic") == loaded.decoder.arithmetic
        assert told.pop("kv", "full") == ("int8" if loaded.decoder.codes_places else "full")
        return told

    direct = {"format": "int4-g32", "inputs": "int8", "quantiser": "direct", "from_copy": False}
    assert about("int4:group=32:inputs=int8") == direct
    assert about(f"{folder}:format=int4:group=32:inputs=bf16") == {**direct, "inputs": "bf16"}
    assert about("stdlib-1m") == {"format": None}
    out, chosen = place_beside(folder, format_of("int4-g32")), format_of("int4-g32")
    quantise.write(quantise.plan(folder, out, chosen, quantiser="hqq"))
    read = {**direct, "quantiser": "hqq", "from_copy": True}
    assert about("int4:group=32:inputs=int8") == read
    assert about(f"{folder}:format=int4:group=32:inputs=bf16") == {**read, "inputs": "bf16"}
    copy = about(str(out))
    assert copy.pop("inputs") in ("fastest", "bf16")
    assert copy == {key: value for key, value in read.items() if key != "inputs"}
    (level,) = find_levels([acceptance.named(str(out))], folder)
    assert level.is_copy, "so it drafts on the target's keys and values"
    (out / "model.safetensors").unlink()
    assert about("int4:group=32:inputs=int8") == direct, "what is damaged is not read"
