"""Prompts, settings and models for the tests of many prompts at once, and the truth: each prompt by itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

import foretoken
from foretoken.api.build import with_draft
from foretoken.api.model import Model
from foretoken.results.completion import Completion
from foretoken.verification.local import LocalVerifier
from tests.engine.open_loop import tables_of

LOOP = "for i in range(3):\n    print(i)\nfor i in range(3):"
PROMPTS: tuple[str | Sequence[int], ...] = (
    "def add(",
    LOOP,
    [5, 9, 5, 9, 5],
    "import os\nimport",
    LOOP,  # the same prompt twice is read twice, and says the same
    "class Stack:\n    def push(self, item):\n        self.items.append(item)\n\n    def pop(self",
    np.array([7, 8, 9]),  # type: ignore[list-item]
)
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"max_new_tokens": 12},
    "sampled": {"max_new_tokens": 12, "temperature": 0.9, "top_p": 0.95, "seed": 4},
    "stop strings": {"max_new_tokens": 24, "stop": ["\n", "("], "repetition_penalty": 1.1},
}
SAME = (
    "tokens",
    "text",
    "finish_reason",
    "stop_string",
    "logits_sha256",
    "seed",
    "prompt_tokens",
    "promise",
    "logprobs",
)


@cache
def model(draft: str) -> Model:
    if draft == "none":
        # so that prompts are read in several passes, and passes are full
        return foretoken.load("stdlib-7m", draft="none", threads=1, prefill_chunk=20, rows_per_pass=40, pace="fixed")
    return with_draft(model("none"), draft)


@cache
def truth(settings: str) -> tuple[Completion, ...]:
    """Each prompt by itself, plainly."""
    return tuple(
        model("none").generate(prompt, hash_logits=True, logprobs=1, **SETTINGS[settings]) for prompt in PROMPTS
    )


def expect_same(done: Completion | None, expected: Completion) -> None:
    assert done is not None
    for name in SAME:
        assert getattr(done, name) == getattr(expected, name), name
    assert done.logits_sha256 is not None


def expect_all_the_same(found: Sequence[Completion | None], settings: str) -> None:
    for done, expected in zip(found, truth(settings), strict=True):
        expect_same(done, expected)


def expect_nothing_left(ours: Model) -> None:
    assert isinstance(ours._verifier, LocalVerifier)
    assert ours._verifier.caches._caches == {}
    assert ours._verifier._sequences == {}
    assert ours._verifier._results == {}
    for name, held in tables_of(ours.drafter):
        assert not held, f"the drafter's {name} still has {sorted(held)}"
