"""What was sampled is proven again: the record holds the seed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import foretoken
from foretoken.errors import SettingError, TranscriptError
from foretoken.transcript.verify import Verification
from tests.talks import talking
from tests.transcript.records import COUNT, MODEL, PROMPT

DRAFTS = ["none", "lookup", "stdlib-1m:tokens=3", "stdlib-1m,lookup", "stdlib-1m:k=3:depth=3"]
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.8},
    {"temperature": 1.2, "seed": 2**64 - 1, "top_k": 40, "top_p": 0.95, "min_p": 0.01},
    {"temperature": 1, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -0.25},
    {"repetition_penalty": 1.5, "logit_bias": {5: 3.5, 300: -1000}},
    {"temperature": 0.7, "stop": ["\n", ":"], "ignore_eos": True},
    {"grammar": 'start: "(" /[a-z]{1,5}/ ("," /[0-9]/)* ")"', "temperature": 0.9},
    {"temperature": 0.9, "regex": r"\s*[a-z_]+(\.[a-z]+)*\([0-9, ]*\)\n"},
    {"json_schema": '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'},
]


@pytest.mark.parametrize("chosen", WAYS)
def test_a_record_is_verified_whatever_drafts(tmp_path: Path, chosen: dict[str, Any]) -> None:
    path = tmp_path / "record.json"
    done = foretoken.record(path, foretoken.load(MODEL), PROMPT, max_new_tokens=COUNT, **chosen)
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["settings"]["seed"] == done.seed
    assert (done.seed is not None) == ("temperature" in chosen)
    for name in chosen.keys() - {"logit_bias"}:
        assert told["settings"][name] == chosen[name]
    for draft in (None, "none", "stdlib-1m,lookup"):
        assert foretoken.verify(path, draft=draft) == Verification(True, len(done.tokens))


@pytest.mark.parametrize("draft", DRAFTS)
def test_whatever_drafted_it_is_verified_plainly(tmp_path: Path, draft: str) -> None:
    path = tmp_path / "record.json"
    chosen = {"temperature": 0.8, "seed": 11, "max_new_tokens": COUNT}
    done = foretoken.record(path, foretoken.load(MODEL, draft=draft, pace="fixed"), PROMPT, **chosen)
    assert foretoken.verify(path, draft="none") == Verification(True, COUNT)
    assert done.tokens == foretoken.load(MODEL, draft="none").generate(PROMPT, **chosen).tokens  # type: ignore[arg-type]


def test_another_seed_gives_another_text_and_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    foretoken.record(path, foretoken.load(MODEL), PROMPT, max_new_tokens=COUNT, temperature=1.0, seed=1)
    told = json.loads(path.read_text(encoding="utf-8"))
    told["settings"]["seed"] = 2
    path.write_text(json.dumps(told), encoding="utf-8")
    found = foretoken.verify(path)
    assert not found.verified
    assert re.match(r"token \d+ is .+ here, and .+ in the record$", str(found.difference))


def test_a_draft_in_a_folder_is_recorded_with_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talking(tmp_path / "small")
    monkeypatch.chdir(tmp_path)
    foretoken.record("record.json", foretoken.load(MODEL, draft="./small:tokens=3,lookup"), PROMPT, max_new_tokens=9)
    told = json.loads(Path("record.json").read_text(encoding="utf-8"))
    assert told["settings"]["draft"] == f"{tmp_path / 'small'}:tokens=3,lookup"
    monkeypatch.chdir("/")
    assert foretoken.verify(tmp_path / "record.json").verified


def test_the_rejection_rule_is_refused_before_anything_is_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    model = foretoken.load(MODEL, rule="rejection", draft="stdlib-1m")
    foretoken.record(path, model, PROMPT, max_new_tokens=9)
    assert foretoken.verify(path, draft="none").verified, "greedily, the rules are one"
    monkeypatch.setattr(model, "_run", lambda *args, **options: pytest.fail("it generates"))
    reason = (
        " needs tokens that come again, and rule 'rejection' keeps their distribution only: another draft gives "
        "another text; use rule 'walk', or temperature 0"
    )
    before = path.read_bytes()
    with pytest.raises(TranscriptError) as refused:
        foretoken.record(path, model, PROMPT, temperature=0.5)
    assert str(refused.value) == f"a record{reason}"
    assert path.read_bytes() == before
    with pytest.raises(SettingError) as error:
        model.generate(PROMPT, temperature=0.5, audit=True)
    assert str(error.value) == f"an audit{reason}"


def test_several_completions_are_no_record(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match="n is 3, and a record holds one completion; leave n out"):
        foretoken.record(tmp_path / "record.json", foretoken.load(MODEL), PROMPT, n=3)
    assert not list(tmp_path.iterdir())


def test_an_audit_of_what_was_sampled_is_identical() -> None:
    model = foretoken.load(MODEL)
    for chosen in WAYS:
        for done in model.completions(PROMPT, max_new_tokens=COUNT, audit=True, n=2, **chosen):
            assert done.audit is not None
            assert done.audit.identical
            assert done.audit.compared_tokens == len(done.tokens)
