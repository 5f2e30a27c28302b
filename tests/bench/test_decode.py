"""`bench decode` measures what it says: in turn, on one copy of the weights, and on from where it was ended."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretoken.api.levels import DRAFT_INPUTS
from foretoken.api.model import Model
from foretoken.bench import decode
from foretoken.bench.decode import Asked, measure, write_answers
from foretoken.bench.samples import Sample, journal_of
from foretoken.bench.statistics import PLAIN
from foretoken.bench.suites import Prompt
from foretoken.common.source import EMBEDDED
from foretoken.errors import DraftSpecError, InputError, SettingError
from foretoken.results.completion import Completion
from foretoken.settings.generate import GenerateSettings
from foretoken.settings.load import LoadSettings
from tests.rehearsal.conftest import rehearse

TEXTS = ("def add(self, other):\n        return self.", "for i in range(10):\n    print(i)\nfor i in range(")


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    loading = LoadSettings(pace="fixed")  # so that all drafts draft, however little they gain
    return Asked("stdlib-1m", ["lookup", "int4"], str(prompts), None, 12, 2, loading, temperatures=(0.0, 0.8))


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bandwidth is measured over gigabytes."""
    monkeypatch.setattr(decode, "WARM_UP", 2)
    monkeypatch.setattr(decode, "_bandwidth", lambda model: lambda: 1e9)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, float]]:
    """What is generated that counts, in order: draft, prompt, temperature."""
    seen: list[tuple[str, str, float]] = []
    really = decode.ask

    def ask(model: Model, prompt: Prompt, settings: GenerateSettings) -> list[Completion]:
        if settings.max_new_tokens == 12:
            seen.append((model.draft, prompt.id, settings.temperature))
        return really(model, prompt, settings)

    monkeypatch.setattr(decode, "ask", ask)
    return seen


def test_every_draft_is_measured_in_turn_with_plain_decoding(asked: Asked, calls: list[Any]) -> None:
    record, samples = measure(asked)
    assert len(calls) == len(samples) == 3 * 2 * 2 * 2
    first, last = calls[: len(calls) // 2], calls[len(calls) // 2 :]
    there, back = ["none", "lookup", "int4"], ["int4", "lookup", "none"]
    assert [draft for draft, *_ in first] == [*there * 2, *back * 2]  # of two prompts, at two temperatures each
    assert [draft for draft, *_ in last] == [*back * 2, *there * 2]
    assert sorted(first) == sorted(last)
    assert [(run["temperature"], run["draft"]) for run in record["runs"]] == [
        (t, d) for t in (0.0, 0.8) for d in ("none", "lookup", "int4")
    ]
    for run in record["runs"]:
        assert run["identical"]
        assert run["first_difference"] is None
        assert run["promise"] == "exact"
        assert run["prompts"] == 2
        assert run["tokens"] == 24
        if run["draft"] == "int4":
            assert 0 < run["accepted_tokens"] < run["draft_tokens"]
            assert run["mean_acceptance_length"] > 1
            assert run["levels"][0]["name"] == "int4"
        if run["draft"] == PLAIN:
            assert (run["speedup"], run["mean_acceptance_length"]) == (1.0, 1.0)
            assert run["flops_per_token"] == pytest.approx(record["model_bytes"], rel=0.1)  # two a weight of two bytes
        its = [s for s in samples if (s.draft, s.temperature, s.repeat) == (run["draft"], run["temperature"], 0)]
        assert run["bytes_per_token"] == pytest.approx(sum(_bytes_of_passes(s, record) for s in its) / 22, rel=1e-3)
        assert 0 < run["cache_bytes_per_token"] < run["bytes_per_token"]
    assert record["suite"]["prompts"] == 2
    json.dumps(record)


def _bytes_of_passes(sample: Sample, record: dict[str, Any]) -> float:
    """What the weights of every pass come to; the cost has the embedding's row of each token, too."""
    sizes = {level["level"]: level["bytes"] for level in record["levels"]}
    drafts = sum(level["passes"] * sizes.get(name, 0) for name, level in sample.levels.items())
    return sample.passes * record["model_bytes"] + drafts


def test_all_drafts_share_the_targets_weights(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Model] = []
    really = decode.ask

    def ask(model: Model, prompt: Prompt, settings: GenerateSettings) -> list[Completion]:
        seen.append(model)
        return really(model, prompt, settings)

    monkeypatch.setattr(decode, "ask", ask)
    measure(replace(asked, temperatures=(0.0,), repeats=1, max_new_tokens=2))
    assert {model.draft for model in seen} == {"none", "lookup", "int4"}
    assert len({id(model.target) for model in seen}) == 1


def test_a_measurement_that_was_ended_goes_on(
    asked: Asked, calls: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "record.json"
    counting = decode.ask

    def ends(model: Model, prompt: Prompt, settings: GenerateSettings) -> list[Completion]:
        if len(calls) == 7:
            raise KeyboardInterrupt
        return counting(model, prompt, settings)

    with monkeypatch.context() as patch:
        patch.setattr(decode, "ask", ends)
        with pytest.raises(KeyboardInterrupt):
            measure(asked, record=place)
    assert journal_of(place).exists()
    measured = list(calls)
    calls.clear()
    record, samples = measure(asked, record=place)
    assert len(calls) == 24 - 6  # what had been measured without what it is compared with is measured again
    assert calls[0] == measured[6]
    assert len({(s.draft, s.temperature, s.prompt, s.repeat) for s in samples}) == len(samples) == 24
    assert measured[:6] == [(s.draft, s.prompt, s.temperature) for s in samples[:6]]
    assert record["runs"][0]["prompts"] == 2
    with pytest.raises(InputError, match="the beginning of another measurement"):
        measure(replace(asked, repeats=3), record=place)
    with pytest.raises(InputError, match="answers was false, and is true"):
        measure(asked, record=place, answers=True)


def test_a_token_that_differs_is_found(asked: Asked, calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    counting = decode.ask

    def lies(model: Model, prompt: Prompt, settings: GenerateSettings) -> list[Completion]:
        (done,) = counting(model, prompt, settings)
        if model.draft == "lookup" and settings.temperature == 0.8:
            done = replace(done, tokens=(*done.tokens[:-1], done.tokens[-1] ^ 1))
        return [done]

    monkeypatch.setattr(decode, "ask", lies)
    record, _ = measure(asked)
    runs = {(run["draft"], run["temperature"]): run for run in record["runs"]}
    assert [key for key, run in runs.items() if not run["identical"]] == [("lookup", 0.8)]
    assert runs["lookup", 0.8]["first_difference"]["position"] == 11


def test_answers_are_kept_of_the_first_repeat(asked: Asked, calls: list[Any], tmp_path: Path) -> None:
    _, samples = measure(replace(asked, temperatures=(0.0,)), answers=True)
    places = write_answers(tmp_path, samples)
    assert [place.name for place in places] == [f"{d}-temperature-0.jsonl" for d in ("none", "lookup", "int4")]
    plain, lookup = ([json.loads(line) for line in place.read_text().splitlines()] for place in places[:2])
    assert len(plain) == len(lookup) == 2
    assert [line["choices"][0]["turns"] for line in plain] == [line["choices"][0]["turns"] for line in lookup]
    assert plain[0]["choices"][0]["new_tokens"] == [12]


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"repeats": 0}, SettingError, "repeats is 0, expected a whole number"),
        ({"count": True}, SettingError, "count is True"),
        ({"drafts": ["lookup", " lookup"]}, SettingError, "draft 'lookup' was given twice"),
        ({"max_new_tokens": 1}, SettingError, "max_new_tokens is 1, expected a whole number, 2 or more"),
        ({"max_new_tokens": 4000}, InputError, "prompt line 1 has .* tokens, and with 4000 new ones"),
        ({"temperatures": (0.0, 0.0)}, SettingError, "temperature 0.0 was given twice"),
        ({"temperatures": (-1.0,)}, SettingError, "temperature is -1.0"),
        ({"drafts": ["lokup"]}, DraftSpecError, "there is no draft 'lokup'; did you mean 'lookup'"),
        ({"prompts": "no-such-suite"}, InputError, "no-such-suite"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    asked: Asked, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        measure(replace(asked, **changes))


def test_turns_of_a_talk_are_one_sample(asked: Asked, tmp_path: Path) -> None:
    questions = tmp_path / "question.jsonl"
    turns: Sequence[str] = ["def one():\n    return", "def two():\n    return"]
    questions.write_text(json.dumps({"question_id": 81, "category": "code", "turns": turns}) + "\n")
    record, samples = measure(
        replace(asked, prompts=str(questions), temperatures=(0.0,), loading=LoadSettings(threads=1)), answers=True
    )
    assert all(len(sample.tokens) == 2 for sample in samples)
    assert all(sample.decoded == sum(len(turn) - 1 for turn in sample.tokens) for sample in samples)
    assert all(run["identical"] for run in record["runs"])
    assert samples[0].answer is not None
    assert samples[0].answer["question_id"] == 81
    assert len(samples[0].answer["choices"][0]["turns"]) == 2


def test_a_draft_that_knows_every_token_is_refused(asked: Asked, tmp_path: Path) -> None:
    shape = "hidden=512,layers={},heads=16,kv-heads=4,intermediate=640,vocab=4096,head-dim=64,tied=yes"
    for name, layers in (("large", 4), ("same", 3)):
        rehearse(EMBEDDED["stdlib-1m"], tmp_path / name, shape.format(layers))
    measured = replace(asked, model=str(tmp_path / "large"), repeats=1, temperatures=(0.0,), max_new_tokens=4)
    with pytest.raises(DraftSpecError, match="stdlib-1m"):
        measure(replace(measured, drafts=["stdlib-1m"]))
    with pytest.raises(DraftSpecError, match="same"):
        measure(replace(measured, drafts=["lookup", f"{tmp_path / 'same'},lookup"]))
    record, samples = measure(replace(measured, drafts=["int8"]))
    drafted = next(sample for sample in samples if sample.draft == "int8")
    size = record["levels"][0]["bytes"]
    assert drafted.cost["int8"]["weight_bytes"] == pytest.approx(drafted.levels["int8"]["passes"] * size, rel=1e-3)
    assert record["rehearsal"]["source"]["name"] == "stdlib-1m"
    assert record["levels"] == [
        {
            "level": "int8",
            "format": "int8",
            "inputs": DRAFT_INPUTS,
            "kv": "full",
            "quantiser": "direct",
            "from_copy": False,
            "sha256": None,
            "bytes": size,
        }
    ]


def test_records_have_no_paths(asked: Asked, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    shutil.copytree(EMBEDDED["stdlib-1m"], folder)
    record, samples = measure(
        replace(asked, drafts=[f"{folder}:tokens=3,lookup"], repeats=1, temperatures=(0.0,)), answers=True
    )
    assert record["drafts"] == ["none", "small:tokens=3,lookup"]
    assert str(tmp_path) not in json.dumps({**record, "command": ""})
    assert str(tmp_path) not in json.dumps([sample.answer for sample in samples])
    assert record["levels"][0]["sha256"] == record["model_sha256"]
