"""The method as the paper tells it, written down plainly: no cache, whole sequences; and a small world to draft in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.low_bit import quantised
from foretoken.decoder.rows import chain
from foretoken.decoder.weights import assemble
from foretoken.drafters.fractal import FractalDrafter
from foretoken.drafters.fractal_published import PublishedFractalDrafter
from foretoken.drafters.nothing import NothingDrafter
from foretoken.formats import format_of
from foretoken.kernels import native
from foretoken.protocol.types import Draft, Request, Turn
from foretoken.sampling.sampler import Sampler
from tests.tiny import random_tensors, tiny_config
from tests.world import Run

LAYERS, VOCABULARY, CONTEXT = 5, 97, 64
PROMPT = (5, 6, 7, 5, 6)
PLACES = [(0,), (1, 3), (0, 1, 2, 3, 4), (4,), (2,), (0, 4)]
COUNT = 24
if native.module() is None:  # in PyTorch each takes many times as long
    PLACES, COUNT = PLACES[:3], 20


@cache
def decoder(noise: float = 0.0, poisoned: str = "") -> Decoder:
    """A decoder whose blocks add little, so that guesses are sometimes right; with noise, a poor copy of it."""
    config = tiny_config(num_hidden_layers=LAYERS, max_position_embeddings=CONTEXT, vocab_size=VOCABULARY)
    tensors, other = random_tensors(config, 1), random_tensors(config, 2)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.mul_(0.3)
        tensor.add_(noise * tensor.std() * other[name])
    if poisoned:
        name, _, row = poisoned.partition(" ")
        tensors[name][int(row or 0)] = torch.nan
    return Decoder(config, assemble(tensors, config), threads=1)


@cache
def copy_in(format: str) -> Decoder:
    """In a format; or the model itself, or with noise in it."""
    target = decoder(0.1 if format == "noise" else 0.0)
    if format in ("same", "noise"):
        return target
    return Decoder(target.config, quantised(target.weights, target.config, format_of(format)), threads=1)


class Noted(FractalDrafter):
    """Notes what it was asked after which text, and what it said."""

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        drafts = super().propose(turns)
        self.notes = getattr(self, "notes", [])
        for turn, draft in zip(turns, drafts, strict=True):
            self.notes.append((list(self._readings[turn.sequence].text), turn, draft))
        return drafts


class NotedPublished(Noted, PublishedFractalDrafter):
    """The same, patiently."""


def fractal(
    caches: Caches,
    layers: Sequence[int],
    window: int,
    model: str | Decoder = "int8",
    *,
    patient: bool = True,
    **more: Any,
) -> Noted:
    return (NotedPublished if patient else Noted)(
        copy_in(model) if isinstance(model, str) else model,
        Sampler,
        name="fractal",
        vocab_size=VOCABULARY,
        target=decoder(),
        layers=tuple(layers),
        window=window,
        views=caches,
        **{"slots": "fixed", **more},
    )


@cache
def plain(prompt: tuple[int, ...] = PROMPT, count: int = COUNT) -> tuple[int, ...]:
    return Run(decoder(), NothingDrafter(), [Request(0, prompt, count)]).sequences[0].tokens


def run(
    layers: Sequence[int],
    window: int,
    *,
    prompt: tuple[int, ...] = PROMPT,
    cached: bool = True,
    tokens: int = 99,
    **more: Any,
) -> Noted:
    """A generation with a drafter, whose text is right; the drafter, with what it noted."""
    caches = Caches()
    drafter = fractal(caches, layers, window, **more)
    done = Run(
        decoder(), drafter, [Request(0, prompt, COUNT)], caches=caches, cached=cached, num_speculative_tokens=tokens
    )
    assert done.sequences[0].tokens == plain(prompt)
    assert not drafter._readings
    left = getattr(drafter._slots, "_left", {})
    assert not left, "nothing is kept of a sequence that ended"
    return drafter


def best(logits: torch.Tensor) -> list[int]:
    return [int(token) for token in logits.argmax(dim=1)]


def read(model: Decoder, tokens: Sequence[int]) -> Cache:
    """A cache in which the model has read some tokens."""
    read = model.new_cache()
    if tokens:
        rows = chain(read, list(tokens))
        model.forward(rows)
        read.commit(range(len(tokens)), rows.writer)
    return read


def through(model: Decoder, hidden: torch.Tensor, tokens: list[int], lo: int, hi: int) -> torch.Tensor:
    """A whole sequence's hidden states before layer hi, from those before lo."""
    return model.layers(hidden, chain(model.new_cache(), tokens), lo, hi)


Again = Callable[[list[int], list[int]], list[int]]  # what goes in, from what went in before and what has come out


@dataclass(frozen=True)
class Steps:
    """What the drafter does before each fractal layer and at the end: what goes in, and what has come out."""

    went_in: list[list[int]]
    came_out: list[list[int]]

    @property
    def draft(self) -> list[int]:
        return self.came_out[-1]


def as_it_is(before: list[int], chosen: list[int]) -> list[int]:
    return chosen


def published(
    copy: Decoder, prefix: list[int], layers: Sequence[int], guess: list[int], again: Again = as_it_is
) -> Steps:
    """Section 3.2: the new tokens before each fractal layer, and at the end the draft."""
    model, at, steps = decoder(), 0, Steps([guess], [])
    sequence = [*prefix, *guess]
    hidden = model.embed(sequence)
    for layer in layers:
        hidden, at = through(model, hidden, sequence, at, layer), layer
        upper = through(copy, hidden, sequence, layer, LAYERS)
        steps.came_out.append(best(copy.head(upper))[len(prefix) - 1 :])
        steps.went_in.append(again(steps.went_in[-1], steps.came_out[-1]))
        sequence = [*prefix, *steps.went_in[-1]]
        lower = through(copy, copy.embed(sequence), sequence, 0, layer)
        hidden = torch.cat((hidden[: len(prefix)], lower[len(prefix) :]))
    steps.came_out.append(best(model.head(through(model, hidden, sequence, at, LAYERS)))[len(prefix) - 1 :])
    return steps


def with_the_texts_keys(
    copy: Decoder, prefix: list[int], layers: Sequence[int], guess: list[int], again: Again = as_it_is
) -> Steps:
    """The same where the text's keys and values are the model's, for the copy too. Each step has a cache of its own."""
    model, steps = decoder(), Steps([guess], [])
    *before, last = prefix
    rows = [last, *guess]
    hidden, at = model.embed(rows), 0

    def onwards(hidden: torch.Tensor, rows: list[int], lo: int, hi: int, by: Decoder) -> torch.Tensor:
        return by.layers(hidden, chain(read(model, before), rows), lo, hi)

    for layer in layers:
        hidden, at = onwards(hidden, rows, at, layer, model), layer
        steps.came_out.append(best(copy.head(onwards(hidden, rows, layer, LAYERS, copy))))
        guess = again(steps.went_in[-1], steps.came_out[-1])
        steps.went_in.append(guess)
        rows = [last, *guess]
        lower = copy.layers(copy.embed(guess), chain(read(model, prefix), guess), 0, layer)
        hidden = torch.cat((hidden[:1], lower))
    steps.came_out.append(best(model.head(onwards(hidden, rows, at, LAYERS, model))))
    return steps
