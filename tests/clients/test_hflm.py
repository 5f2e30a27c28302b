"""lm-evaluation-harness on a model of transformers: what it measures with a draft attached is what it measures without,
and so it is with `ForCausalLM`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from lm_eval.models.huggingface import HFLM

import foretoken
from tests.clients.tasks import flat, measured, samples, written

CLIENT = "lm-eval"
TASKS = ("next_line", "likely", "going_on")


def _theirs(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def _attached(folder: Path) -> Any:
    return foretoken.attach(_theirs(folder), draft="lookup", pace="fixed")


def _ours(folder: Path) -> Any:
    return foretoken.ForCausalLM.from_pretrained(str(folder), draft="lookup", pace="fixed", dtype="float32")


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("make", [_attached, _ours])
def test_it_measures_the_same(
    make: Callable[[Path], Any], batch_size: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    tasks = written(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    here, there = (
        measured(tasks, HFLM(pretrained=each(folder), tokenizer=tokenizer, batch_size=batch_size, device="cpu"), TASKS)
        for each in (make, _theirs)
    )
    for task in ("next_line", "going_on"):
        assert here["results"][task] == there["results"][task]
    for measure in ("byte_perplexity,none", "bits_per_byte,none"):
        assert here["results"]["likely"][measure] == pytest.approx(there["results"]["likely"][measure], rel=1e-5)
    for ours, theirs in zip(*(samples(each, "next_line") for each in (here, there)), strict=True):
        for (our_value, our_greedy), (their_value, their_greedy) in zip(
            flat(ours["resps"]), flat(theirs["resps"]), strict=True
        ):
            assert our_greedy == their_greedy
            assert abs(our_value - their_value) < 1e-3
    texts = [[each["resps"] for each in samples(found, "going_on")] for found in (here, there)]
    assert texts[0] == texts[1]
    assert any(any(text) for (text,) in texts[0])
