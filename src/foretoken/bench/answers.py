"""Answers in the format of Spec-Bench's scripts: one line of JSON per question, with its texts, times and steps.

docs/suites.md describes what those scripts compute, and their errors.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foretoken.bench.suites import Prompt
from foretoken.common.files import write_bytes
from foretoken.errors import InputError, SettingError
from foretoken.results.completion import Completion


def answer_line(prompt: Prompt, completions: Sequence[Completion], model_id: str) -> dict[str, Any]:
    """One question's answers: one completion per turn, each made with `keep_rounds=True` and n=1.

    `accept_lengths` has the tokens of each of the target's passes, bonus included, turn after turn. The pass over the
    prompt gives one token, as in Spec-Bench's baseline: the lengths add up to `new_tokens`, and plain decoding has only
    ones. `decoding_steps` counts those passes. `wall_time` is in seconds, prompt included.
    """
    if len(completions) != len(prompt.turns):
        raise InputError(f"question {prompt.id} has {len(prompt.turns)} turns, and {len(completions)} answers came")
    steps = [_steps(completion) for completion in completions]
    choice = {
        "index": 0,
        "turns": [completion.text for completion in completions],
        "decoding_steps": [len(lengths) for lengths in steps],
        "new_tokens": [len(completion.tokens) for completion in completions],
        "wall_time": [c.stats.prefill_seconds + c.stats.decode_seconds for c in completions],
        "accept_lengths": [length for lengths in steps for length in lengths],
    }
    return {
        "question_id": int(prompt.id) if re.fullmatch("0|[1-9][0-9]*", prompt.id) else prompt.id,
        "category": prompt.category,
        "answer_id": uuid.uuid4().hex,
        "model_id": model_id,
        "choices": [choice],
        "tstamp": time.time(),
    }


def write_answers(path: str | Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write answers, whole or not at all. Raises InputError if they cannot be written."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    write_bytes(path, text.encode(), what="file of answers")


def differing(answers: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> list[int | str]:
    """The questions whose texts differ, or that only one side has answered; empty if all are equal.

    Unlike Spec-Bench's own comparison, answers that are missing on one side do not pass as equal.
    """
    ours, theirs = _texts(answers), _texts(others)
    return [question for question in {**ours, **theirs} if ours.get(question) != theirs.get(question)]


def _texts(lines: Sequence[Mapping[str, Any]]) -> dict[int | str, list[str]]:
    texts = {line["question_id"]: line["choices"][0]["turns"] for line in lines}
    if len(texts) != len(lines):
        raise InputError(f"{len(lines)} answers came for {len(texts)} questions; expected one each")
    return texts


def _steps(completion: Completion) -> list[int]:
    """The number of tokens that each of the target's passes gave."""
    if completion.rounds is None:
        raise SettingError("an answer for Spec-Bench tells its steps; generate it with keep_rounds=True")
    sequences = {sequence for record in completion.rounds for sequence in record.new_tokens}
    if len(sequences) > 1:
        raise SettingError(f"{len(sequences)} completions shared their passes; generate answers one by one, with n=1")
    return [tokens for record in completion.rounds for tokens in record.new_tokens.values()]
