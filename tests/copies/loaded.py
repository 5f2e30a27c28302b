"""Embedded models with low-bit drafts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import foretoken
from foretoken.api.model import Model
from foretoken.drafters.reading import DecoderDrafter
from foretoken.results.completion import Completion
from tests.isas import forget

PROMPT = "def read(self, size=-1):\n    "
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 3}
_SAMPLINGS = {"greedy": {}, "sampled": SAMPLED}
samplings = pytest.mark.parametrize("sampling", _SAMPLINGS.values(), ids=list(_SAMPLINGS))


def load(draft: str, model: str | Path = "stdlib-1m", **settings: Any) -> Model:
    return foretoken.load(model, draft=draft, **settings, pace="fixed")


def copies(model: Model) -> list[DecoderDrafter]:
    """Its drafters that a decoder stands behind, nearest to the target first."""
    found, drafter = [], model.drafter
    while isinstance(drafter, DecoderDrafter):
        found.append(drafter)
        drafter = getattr(drafter, "inner", None)
    return found


def generate(model: Model, **settings: Any) -> Completion:
    return model.generate(PROMPT, max_new_tokens=40, hash_logits=True, ignore_eos=True, **settings)


def expect_equal(done: Completion, plain: Completion) -> None:
    assert done.tokens == plain.tokens
    assert done.text == plain.text
    assert done.logits_sha256 == plain.logits_sha256 is not None
    assert done.promise == plain.promise == "exact"


@contextmanager
def in_pytorch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FORETOKEN_NATIVE", "off")
    forget()
    try:
        yield
    finally:
        monkeypatch.undo()
        forget()
