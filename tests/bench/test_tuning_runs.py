"""Tuning of a small model: every text is plain decoding's, and what was tried can be tried again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken.bench.generations import Generation
from foretoken.bench.suites import open_suite
from foretoken.bench.target import load_target
from foretoken.bench.tuning import trials as trying
from foretoken.bench.tuning.asked import Asked
from foretoken.bench.tuning.fractal import CHAINS, KIND, tune
from foretoken.bench.tuning.report import draw
from foretoken.bench.tuning.search import Placement
from foretoken.bench.tuning.trials import FRACTAL, Costs, Trials
from foretoken.decoder.decoder import Decoder
from foretoken.errors import SettingError
from foretoken.prices.price import PassPrice, Price
from foretoken.settings.load import LoadSettings
from tests.tiny import one_thread

__all__ = ["one_thread"]


class WithOneWrong(Generation):
    """As if another token had come than plain decoding's."""

    @classmethod
    def of(cls, *args: Any, **known: Any) -> Any:
        made = Generation.of(*args, **known)
        return replace(made, differing=made.differing + 1)


FIXED = LoadSettings(pace="fixed")  # what drafts do is then the same each time
SMALL = Asked("stdlib-1m", windows=(2, 1), num_prompts=3, max_new_tokens=8, repeats=2, loading=FIXED)


@pytest.fixture(scope="module")
def told() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture(scope="module")
def record(told: list[tuple[str, int, int]]) -> dict[str, Any]:
    return tune(SMALL, progress=lambda *what: told.append(what))


def _trials(count: int = 2) -> Trials:
    target = load_target("stdlib-1m", (), FIXED)
    suite = open_suite("heldout-20", target.plain.tokenizer, count=count)
    return Trials(target, suite.prompts, 8)


def test_the_record_has_all_that_was_tried_and_measured(record: dict[str, Any]) -> None:
    assert json.loads(json.dumps(record))["kind"] == KIND
    assert {"machine", "model", "model_sha256", "commit", "versions", "command", "date", "asked", "suite"} <= set(
        record
    )
    assert record["promise"] == "exact"
    assert record["differing_tokens"] == 0
    assert record["left_out"] == []
    assert record["prompts"] == {"choosing": ["heldout-1", "heldout-3"], "measuring": ["heldout-2"]}
    kinds = [line["kind"] for line in record["candidates"]]
    assert kinds.count("lookup") == 1
    assert kinds.count("chain") == 2 * len(CHAINS)
    tried = {each["draft"] for step in record["steps"] for each in step["tried"]}
    assert tried == {line["draft"] for line in record["candidates"] if line["kind"] == "fractal"}
    assert {f"fractal:layers={at}:w=2:format=mxfp4:slots=lookup" for at in (0, 1)} <= tried
    fractal = {line["draft"]: line["predicted_speedup"] for line in record["candidates"] if line["kind"] == "fractal"}
    assert fractal[record["best_fractal"]] == max(fractal.values())
    for line in record["candidates"]:
        accepted = [accepted for _, accepted, _ in line["rounds"]]
        assert line["accepted"] == pytest.approx(sum(accepted) / len(accepted), rel=1e-4)
        assert line["tokens"] == sum(new for _, _, new in line["rounds"]) > 0


def test_the_best_are_measured_beside_plain_decoding(record: dict[str, Any]) -> None:
    names = [final["draft"] for final in record["finals"]]
    assert names[0] == "none"
    assert {"lookup", "mxfp4,lookup", record["best_fractal"]} <= set(names)
    assert len(record["generations"]) == record["repeats"] * len(names) == 2 * len(names)
    assert record["recommended"] in names
    for final in record["finals"]:
        lines = [line for line in record["generations"] if line["method"] == final["draft"]]
        assert len(lines) == 2
        assert final["tokens_per_second"] > 0
        assert final["differing"] == 0


def test_what_comes_next_is_told(record: dict[str, Any], told: list[tuple[str, int, int]]) -> None:
    tried = [what for what, _, _ in told if what.startswith("trying ")]
    assert tried == [f"trying {line['draft']}" for line in record["candidates"]]
    assert any("plain decoding, prompt 1 of 2; then" in what for what, _, _ in told)
    assert told[-1][0].startswith("measuring ")


def test_what_drafts_do_is_the_same_each_time(record: dict[str, Any]) -> None:
    trials = _trials(3)
    trials.prompts = trials.prompts[::2]
    for line in record["candidates"]:
        trace = trials.trace(line["draft"])
        assert json.dumps(trace.rounds) == json.dumps(line["rounds"]), line["draft"]
        assert json.dumps(trace.ran) == json.dumps(line["ran"]), line["draft"]


def test_the_picture_is_drawn_from_the_record(record: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(tmp_path / "tuning.svg", json.loads(json.dumps(record)))
    assert (tmp_path / "tuning.svg").read_bytes().startswith(b"<?xml")


def test_without_time_each_kind_is_tried_and_measured_once_and_the_rest_is_said() -> None:
    record = tune(Asked("stdlib-1m", num_prompts=2, max_new_tokens=4, minutes=1e-9))
    assert [line["draft"] for line in record["candidates"]] == [
        "lookup",
        "mxfp4:tokens=4",
        "int8:tokens=4",
        "fractal:layers=1:w=4:format=mxfp4:slots=lookup",
    ]
    assert [step["not_tried"] for step in record["steps"]] == [1]
    assert record["repeats"] == 1
    assert record["left_out"][0] == "with 1 fractal layer, 1 of 2 places, and what follows"
    assert record["left_out"][-1] == "2 of 3 repeats"
    assert "int8:tokens=8" in record["left_out"]
    assert len(record["finals"]) == 5


def test_a_talk_in_token_ids_is_refused_before_anything_runs(tmp_path: Path) -> None:
    prompts = tmp_path / "talk.jsonl"
    prompts.write_text('{"turns": [[5, 6], [7]]}\n{"turns": ["import os"]}\n')
    with pytest.raises(SettingError, match="prompt line 1 is a conversation in token ids; give its turns as text"):
        tune(replace(SMALL, prompts=str(prompts), num_prompts=2))


def test_a_copy_is_made_once_however_it_drafts() -> None:
    trials = _trials()
    copy = trials.target.copy("int4")
    fractal: Any = trials.target.model("fractal:layers=1:w=1:format=int4:slots=fixed")
    chain: Any = trials.target.model("int4:tokens=2")
    assert fractal.drafter.model is chain.drafter.model is copy


@pytest.mark.parametrize("slots", ["fixed", "recycle", "lookup"])
def test_the_passes_that_are_predicted_are_those_that_ran(slots: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a second for a row in all layers, and a hundred for its logits."""
    trials = _trials()
    its = Placement(frozenset({0, 1}), 2, "int8", slots)
    trials.trace(its.draft)  # plain decoding among it
    copy, count = trials.target.copy("int8"), 2
    ran = {"target": 0.0, "copy": 0.0}
    layers, head = Decoder.layers, Decoder.head

    def name(decoder: Decoder) -> str:
        return "copy" if decoder is copy else "target"

    def counting(self: Decoder, hidden: torch.Tensor, rows: Any, lo: int = 0, hi: int | None = None) -> torch.Tensor:
        ran[name(self)] += len(rows) * ((count if hi is None else hi) - lo) / count
        return layers(self, hidden, rows, lo, hi)

    def with_head(self: Decoder, hidden: torch.Tensor, rows: Any = None) -> torch.Tensor:
        ran[name(self)] += 100 * len(hidden)
        return head(self, hidden, rows)

    monkeypatch.setattr(Decoder, "layers", counting)
    monkeypatch.setattr(Decoder, "head", with_head)
    before = dict(ran)
    trace = trials.trace(its.draft)
    assert {each.decoder for each in trace.ran} == {"copy", "target"}
    ones, nothing = (
        PassPrice(Price({1: 1.0, 2: 2.0}), Price({1: 100.0, 2: 200.0})),
        PassPrice(Price({1: 0.0}), Price({1: 0.0})),
    )
    for part, costs in {
        "copy": Costs(count, 1, nothing, {"int8": ones}),
        "target": Costs(count, 1, ones, {"int8": nothing}),
    }.items():
        drafting = costs.drafting(FRACTAL, "int8", trace)
        assert drafting > 0
        prompts = 100 * len(trials.prompts) if part == "target" else 0  # after each, the logits of its last token
        assert drafting == pytest.approx(ran[part] - before[part] - prompts), part


def test_tokens_that_differ_are_counted_and_not_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "Generation", WithOneWrong)
    record = tune(Asked("stdlib-1m", ("int8",), ("fixed",), (1,), num_prompts=1, max_new_tokens=4, minutes=1e-9))
    assert record["differing_tokens"] == len(record["candidates"]) == 3
    assert [final["draft"] for final in record["finals"]] == ["none"]
    assert record["recommended"] == "none"
