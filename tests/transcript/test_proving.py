"""What is written is proven again, by every way that must give the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import foretoken
from foretoken.common.source import EMBEDDED
from foretoken.errors import ModelNotFoundError
from foretoken.transcript.verify import Verification
from tests.tiny import needs_native
from tests.transcript.records import COUNT, MODEL, PROMPT, VERIFIED, refusal


@pytest.mark.parametrize("options", [{}, {"draft": "none"}, {"draft": "lookup:min_match=1:tokens=3"}])
def test_a_record_is_verified_whatever_drafts(whole: Path, options: dict[str, Any]) -> None:
    assert foretoken.verify(whole, **options) == VERIFIED


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_record_is_verified_on_any_number_of_threads(whole: Path, threads: int) -> None:
    assert foretoken.verify(whole, threads=threads) == VERIFIED


@pytest.mark.parametrize(
    ("load", "generate"),
    [
        ({"dtype": "float32", "draft": "none"}, {}),
        ({"draft": "lookup:tokens=3", "prefill_chunk": 5, "weights": "copied"}, {"ignore_eos": True}),
        ({"num_speculative_tokens": 2, "threads": 1}, {"max_new_tokens": 1}),
        ({"draft": "fractal:n=2:w=3", "cache": False}, {}),
    ],
)
def test_a_record_brings_its_settings_along(tmp_path: Path, load: dict[str, Any], generate: dict[str, Any]) -> None:
    path = tmp_path / "record.json"
    done = foretoken.record(path, foretoken.load(MODEL, **load), PROMPT, **{"max_new_tokens": 9, **generate})
    assert foretoken.verify(path) == Verification(True, len(done.tokens))


@pytest.mark.parametrize("cached", [True, False])
def test_a_record_says_whether_there_was_a_cache_and_is_proven_with_or_without(tmp_path: Path, cached: bool) -> None:
    path = tmp_path / "record.json"
    done = foretoken.record(path, foretoken.load(MODEL, draft="none", cache=cached), PROMPT, max_new_tokens=9)
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["settings"]["cache"] is cached
    told["settings"]["cache"] = not cached
    path.write_text(json.dumps(told), encoding="utf-8")
    assert foretoken.verify(path) == Verification(True, len(done.tokens))
    assert foretoken.verify(path, draft="fractal") == Verification(True, len(done.tokens))
    del told["settings"]["cache"]  # as records of before were
    path.write_text(json.dumps(told), encoding="utf-8")
    assert foretoken.verify(path) == Verification(True, len(done.tokens))
    told["settings"]["cache"] = "perhaps"
    path.write_text(json.dumps(told), encoding="utf-8")
    assert refusal(path) == f"{path}: cache is 'perhaps', expected True or False"


def test_a_prompt_of_tokens_is_recorded_and_verified(tmp_path: Path) -> None:
    path, model = tmp_path / "record.json", foretoken.load(MODEL)
    tokens = torch.tensor(model.tokens_of(PROMPT))
    done = foretoken.record(path, model, tokens, max_new_tokens=COUNT)  # type: ignore[arg-type]
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["prompt"] == {"text": None, "tokens": tokens.tolist()}
    assert told["tokens"] == list(done.tokens)
    assert foretoken.verify(path) == VERIFIED


def test_a_generation_that_ends_by_itself_is_verified(tmp_path: Path) -> None:
    path, model = tmp_path / "record.json", foretoken.load(MODEL)
    model.end_tokens = frozenset(model.generate(PROMPT, max_new_tokens=9).tokens[8:])
    foretoken.record(path, model, PROMPT, max_new_tokens=COUNT)
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["finish_reason"] == "stop"
    at = len(told["tokens"])
    assert foretoken.verify(path) == Verification(
        False, at, f"the record ends after {at} tokens, and generation goes on here"
    )  # the files say nothing of this end token


def test_a_model_that_moved_is_found_where_it_is_now(tmp_path: Path) -> None:
    before, after, path = tmp_path / "before", tmp_path / "after", tmp_path / "record.json"
    shutil.copytree(EMBEDDED[MODEL], before)
    foretoken.record(path, foretoken.load(before), PROMPT, max_new_tokens=3)
    assert foretoken.verify(path).verified
    before.rename(after)
    message = refusal(path, kind=ModelNotFoundError)
    assert message.startswith(f"{path} names the model {str(before)[:60]!r}"[:-1])
    assert ": there is no folder" in message
    assert message.endswith("; say with --model (model=) where it is")
    assert foretoken.verify(path, after).verified
    assert foretoken.verify(path, MODEL).verified, "the same files under another name"
