"""The fractal drafter on an embedded model, over a grid of all its hyperparameters, lengths and ends: 0 tokens differ.

`make test` takes a seeded sample, `make prove` every case. Logits are compared, too, bit for bit.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

import pytest
import torch

import foretoken
from foretoken.api.build import with_draft
from foretoken.api.levels import Loaded
from foretoken.api.model import Model
from foretoken.drafters.slots import SLOTS
from foretoken.kernels import native
from tests.tiny import needs_native

PROMPTS = ("def read(self, size=-1):\n    return self.", "for i in range(3):\n    print(i)\nfor i in range(3):")
PLACES = ("n=1", "n=2", "layers=0", "layers=1", "layers=0+1")  # of two layers
WINDOWS = (1, 2, 3, 5)
FORMATS = ("int8", "mxfp4", "int4", "int2")
LONGEST = 3 * max(WINDOWS)


class Case(NamedTuple):
    """A draft, a prompt, whether there is a cache, and where it ends: after so many tokens, or at an end token that is
    planted at an offset."""

    draft: str
    prompt: str
    cached: bool
    max_new_tokens: int
    end_at: int | None


def cases() -> Iterator[Case]:
    """All of them."""
    prompts = iter(PROMPTS * 10**6)
    for cached, place, window, format, slots in product((True, False), PLACES, WINDOWS, FORMATS, SLOTS):
        draft = f"fractal:{place}:w={window}:format={format}:slots={slots}"
        for length in range(1, 3 * window + 1):
            yield Case(draft, next(prompts), cached, length, None)
        for offset in range(3 * window):
            yield Case(draft, next(prompts), cached, 3 * window, offset)


@cache
def model(cached: bool = True) -> Model:
    return foretoken.load("stdlib-1m", draft="none", threads=1, cache=cached)


_loaded: Loaded = {}


@cache
def drafting(draft: str, cached: bool) -> Model:
    return with_draft(model(cached), draft, loaded=_loaded)


@cache
def plain(prompt: str) -> tuple[tuple[int, ...], torch.Tensor]:
    done = model().generate(prompt, max_new_tokens=LONGEST, ignore_eos=True, keep_logits=True)
    assert done.logits is not None
    return done.tokens, done.logits


def run(some: Iterable[Case]) -> Counter[str]:
    events: Counter[str] = Counter()
    for case in some:
        tokens, logits = plain(case.prompt)
        end = None if case.end_at is None else tokens[case.end_at]
        count = case.max_new_tokens if end is None else tokens.index(end) + 1
        ours = drafting(case.draft, case.cached)
        ours.end_tokens = frozenset() if end is None else frozenset([end])
        done = ours.generate(case.prompt, max_new_tokens=case.max_new_tokens, keep_logits=True)
        assert done.tokens == tokens[:count], case
        assert done.logits is not None
        assert torch.equal(done.logits, logits[:count]), case
        assert done.finish_reason == ("length" if end is None else "stop"), case
        events["runs"] += 1
        events["runs without a cache"] += not case.cached
        events["tokens"] += count
        events["rounds"] += done.stats.passes
        events["drafted"] += done.stats.draft_tokens
        events["accepted"] += done.stats.accepted_tokens
        events["rejected"] += done.stats.draft_tokens - done.stats.accepted_tokens
        events["ended by an accepted token"] += end is not None and done.origins[-1] == "fractal"
    assert min(events.values()) > 0, f"vacuous: {dict(events)}"
    return events


def test_a_sample_of_the_grid_gives_what_plain_decoding_gives() -> None:
    every = list(cases())
    assert len(every) == len(set(every)) == 2 * len(PLACES) * len(FORMATS) * len(SLOTS) * 6 * sum(WINDOWS)
    some = random.Random(20261122).sample(every, 240 if native.module() else 40)
    events = run(some)
    assert len({case.draft for case in some}) > len(some) / 2
    assert min(events["drafted"], events["accepted"], events["rejected"]) > len(some) / 4, events


@needs_native
@pytest.mark.prove
def test_the_whole_grid_gives_what_plain_decoding_gives(capsys: pytest.CaptureFixture[str]) -> None:
    events = run(cases())
    with capsys.disabled():
        print(
            "\n  fractal grid, 0 differences: " + ", ".join(f"{n:,} {what}" for what, n in events.items()), flush=True
        )
