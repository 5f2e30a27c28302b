"""lm-evaluation-harness: what it measures of the server, and of the same checkpoint in transformers, is equal.

Two small tasks of text of Python's standard library: which line comes next (log probabilities of choices), and going on
until a stop string.
"""

from __future__ import annotations

import json
import random
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from tests.prove.serving.process import Process

CLIENT = "lm-eval"
_MODULES = ("abc", "bisect", "copy", "csv", "heapq", "queue", "shlex", "textwrap", "threading", "calendar")
_DOCS = 24
_NEXT_LINE = """\
task: next_line
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{lines}}"
doc_to_target: "{{right}}"
target_delimiter: ""
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
_GOING_ON = """\
task: going_on
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{context}}"
doc_to_target: "{{lines[right]}}"
target_delimiter: ""
generation_kwargs: {until: ["\\n\\n", "    return"], max_gen_toks: 40, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match}]
"""


def _written(folder: Path) -> TaskManager:
    """The tasks, with their texts."""
    chance = random.Random(1)
    place = Path(sysconfig.get_paths()["stdlib"])
    every = [(place / f"{name}.py").read_text(encoding="utf-8").splitlines(keepends=True) for name in _MODULES]
    docs = []
    for _ in range(_DOCS):
        lines = chance.choice(every)
        at = chance.randrange(20, len(lines) - 1)
        while not lines[at].strip():
            at = chance.randrange(20, len(lines) - 1)
        others = [line for text in every for line in text if line.strip() and line != lines[at]]
        choices = [lines[at], *chance.sample(others, 3)]
        chance.shuffle(choices)
        docs.append({"context": "".join(lines[at - 12 : at]), "lines": choices, "right": choices.index(lines[at])})
    data = folder / "docs.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs), encoding="utf-8")
    for name, text in (("next_line", _NEXT_LINE), ("going_on", _GOING_ON)):
        (folder / f"{name}.yaml").write_text(text.replace("DATA", json.dumps(str(data))), encoding="utf-8")
    return TaskManager(include_path=str(folder), include_defaults=False)


def _measured(tasks: TaskManager, kind: str, /, **settings: Any) -> dict[str, Any]:
    found = simple_evaluate(
        model=kind, model_args=settings, tasks=["next_line", "going_on"], task_manager=tasks, bootstrap_iters=0
    )
    assert found is not None
    return dict(found)


def test_it_measures_the_same(server: Process, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    tasks = _written(tmp_path)
    here = _measured(
        tasks,
        "local-completions",
        model="talker",
        base_url=f"{server.url}/v1/completions",
        tokenizer=str(folder),
        tokenizer_backend="huggingface",
        num_concurrent=4,
        max_retries=1,
        max_length=2048,
    )
    there = _measured(tasks, "hf", pretrained=str(folder), dtype="float32", device="cpu", batch_size=1)
    for task in ("next_line", "going_on"):
        scores = [each["results"][task] for each in (here, there)]
        print(task, scores[0])
        assert scores[0] == scores[1]
    far = 0.0
    for ours, theirs in zip(*(_samples(each, "next_line") for each in (here, there)), strict=True):
        assert ours["arguments"] == theirs["arguments"]
        for (our_value, our_greedy), (their_value, their_greedy) in zip(
            _flat(ours["resps"]), _flat(theirs["resps"]), strict=True
        ):
            assert our_greedy == their_greedy
            far = max(far, abs(our_value - their_value))
    print(f"log probabilities differ by at most {far:.1e}")
    assert far < 1e-4
    texts = [[each["resps"] for each in _samples(found, "going_on")] for found in (here, there)]
    assert texts[0] == texts[1]
    assert any(any(text) for (text,) in texts[0])


def _samples(found: dict[str, Any], task: str) -> list[dict[str, Any]]:
    return sorted(found["samples"][task], key=lambda each: each["doc_id"])


def _flat(resps: Any) -> list[tuple[float, bool]]:
    return [(float(value), str(greedy) == "True") for ((value, greedy),) in resps]
