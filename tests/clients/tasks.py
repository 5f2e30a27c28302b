"""Three small tasks for lm-evaluation-harness, of text of Python's standard library: which line comes next (log
probabilities of choices), how likely pieces of text are, and going on until a stop string."""

from __future__ import annotations

import json
import random
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

_MODULES = ("abc", "bisect", "copy", "csv", "heapq", "queue", "shlex", "textwrap", "threading", "calendar")
_DOCS = 24
_DATA = """\
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
target_delimiter: ""
"""
_TASKS = {
    "next_line": """\
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{lines}}"
doc_to_target: "{{right}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "likely": """\
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{context}}"
metric_list: [{metric: byte_perplexity}, {metric: bits_per_byte}]
""",
    "going_on": """\
output_type: generate_until
doc_to_text: "{{context}}"
doc_to_target: "{{lines[right]}}"
generation_kwargs: {until: ["\\n\\n", "    return"], max_gen_toks: 40, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match}]
""",
}


def written(folder: Path) -> TaskManager:
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
    shared = _DATA.replace("DATA", json.dumps(str(data)))
    for name, its in _TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{shared}{its}", encoding="utf-8")
    return TaskManager(include_path=str(folder), include_defaults=False)


def measured(tasks: TaskManager, model: Any, names: Sequence[str], /, **settings: Any) -> dict[str, Any]:
    """What the harness finds. model: a model of its own, or the name of a kind, with its settings."""
    found = simple_evaluate(
        model=model, model_args=settings or None, tasks=[*names], task_manager=tasks, bootstrap_iters=0
    )
    assert found is not None
    return dict(found)


def samples(found: dict[str, Any], task: str) -> list[dict[str, Any]]:
    """What was asked and answered in a task, in order."""
    return sorted(found["samples"][task], key=lambda each: each["doc_id"])


def flat(resps: Any) -> list[tuple[float, bool]]:
    """Log probabilities, and whether the text was the likeliest."""
    return [(float(value), str(greedy) == "True") for ((value, greedy),) in resps]
