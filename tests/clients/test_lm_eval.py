"""lm-evaluation-harness: what it measures of the server, and of the same checkpoint in transformers, is equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.tasks import flat, measured, samples, written
from tests.prove.serving.process import Process

CLIENT = "lm-eval"
TASKS = ("next_line", "going_on")


def test_it_measures_the_same(server: Process, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    tasks = written(tmp_path)
    here = measured(
        tasks,
        "local-completions",
        TASKS,
        model="talker",
        base_url=f"{server.url}/v1/completions",
        tokenizer=str(folder),
        tokenizer_backend="huggingface",
        num_concurrent=4,
        max_retries=1,
        max_length=2048,
    )
    there = measured(tasks, "hf", TASKS, pretrained=str(folder), dtype="float32", device="cpu", batch_size=1)
    for task in TASKS:
        scores = [each["results"][task] for each in (here, there)]
        print(task, scores[0])
        assert scores[0] == scores[1]
    far = 0.0
    for ours, theirs in zip(*(samples(each, "next_line") for each in (here, there)), strict=True):
        assert ours["arguments"] == theirs["arguments"]
        for (our_value, our_greedy), (their_value, their_greedy) in zip(
            flat(ours["resps"]), flat(theirs["resps"]), strict=True
        ):
            assert our_greedy == their_greedy
            far = max(far, abs(our_value - their_value))
    print(f"log probabilities differ by at most {far:.1e}")
    assert far < 1e-4
    texts = [[each["resps"] for each in samples(found, "going_on")] for found in (here, there)]
    assert texts[0] == texts[1]
    assert any(any(text) for (text,) in texts[0])
