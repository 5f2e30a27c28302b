"""The fractal drafter against the method as the paper tells it, written down plainly: no cache, whole sequences."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from foretoken.acceptance.walk import agreeing
from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.low_bit import quantised
from foretoken.decoder.rows import chain
from foretoken.decoder.weights import assemble
from foretoken.drafters.fractal import FractalDrafter, Guesses
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.nothing import NothingDrafter
from foretoken.formats import format_of
from foretoken.kernels import native
from foretoken.sampling.sampler import Sampler
from foretoken.types import Draft, Request, Turn, Verdict
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


def fractal(caches: Caches, layers: Sequence[int], window: int, model: str | Decoder = "int8", **more: Any) -> Noted:
    return Noted(
        copy_in(model) if isinstance(model, str) else model,
        Sampler,
        name="fractal",
        vocab_size=VOCABULARY,
        target=decoder(),
        layers=tuple(layers),
        window=window,
        views=caches,
        **{"slots": "fixed", "patient": True, **more},
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
    assert not drafter._left, "nothing is kept of a sequence that ended"
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


@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "cached"])
@pytest.mark.parametrize("layers", PLACES, ids=str)
def test_drafts_are_those_of_the_definition_token_for_token(layers: tuple[int, ...], cached: bool) -> None:
    lengths, grew, changed = set(), 0, 0
    for format, window in (("int2", 2), ("noise", 5), ("int8", 1))[: COUNT // 8]:
        watched: list[Guesses] = []
        drafter = run(layers, window, cached=cached, model=format, watch=watched)
        most = window + len(layers) + 1
        whole = 0
        drafted = [note for note in drafter.notes if note[2].tokens]
        for (text, turn, draft), guesses in zip(drafted, watched, strict=True):
            define = with_the_texts_keys if cached else published
            expected = define(copy_in(format), text, layers, [0] * window)
            length = min(most, turn.depth)
            assert list(draft.tokens) == expected.draft[:length]
            assert draft.parents == tuple(range(-1, length - 1))
            assert draft.tokens == guesses.tokens[-1]
            lengths.add(length)
            if length < most:
                continue
            whole += 1
            assert guesses.tokens == tuple(map(tuple, expected.came_out))
            assert guesses.layers == layers
            assert [len(guess) for guess in guesses.tokens] == [window + 1 + k for k in range(len(layers) + 1)]
            grew += len(layers)
            changed += guesses.tokens[-1][:window] != guesses.tokens[0][:window]
        assert whole > 0
    assert len(lengths) > 2, "some had less room, too"
    assert grew > 0
    assert changed > 0 or len(layers) == 1, "nothing was ever refined"


@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "cached"])
def test_the_first_token_is_the_models(cached: bool) -> None:
    right = wrong = 0
    for layers in PLACES:
        drafter = run(layers, 3, cached=cached, model="int2")
        for text, _, draft in drafter.notes:
            if draft.tokens:
                at = len(text) - len(PROMPT)
                assert draft.tokens[0] == plain()[at]
                right += 1
                wrong += draft.tokens != plain()[at : at + len(draft.tokens)]
    assert right > COUNT / 2
    assert wrong > COUNT / 4


def first_guesses(drafter: Noted) -> Iterator[tuple[list[int], int, Again]]:
    """For each note the first guess, how many of its tokens were found, and what goes in after a layer."""
    *prompt, _ = drafter.notes[0][0]
    lookup, seen = LookupDrafter(), len(prompt)
    lookup.begin([Request(0, tuple(prompt), 99)])
    left: tuple[int, tuple[int, ...]] = (0, ())

    def observe(position: int, tokens: Sequence[int]) -> None:
        lookup.observe([Verdict(0, 0, position, (), tuple(tokens), ("target",) * len(tokens))])

    def found(text: list[int], known: list[int], count: int) -> list[int]:
        observe(len(text), known)
        tokens = lookup.propose([Turn(0, 1, len(text) + len(known), count, count)])[0].tokens if count else ()
        lookup.rewind(0, len(text))
        return list(tokens)

    for text, turn, draft in drafter.notes:
        room = itertools.count(drafter.window + 1)  # after each layer one more

        def again(
            before: list[int], chosen: list[int], text: list[int] = text, room: Iterator[int] = room
        ) -> list[int]:
            if drafter.slots != "lookup":
                return chosen
            known = chosen[: agreeing(before, chosen) + 1]
            return known + found(text, known, max(0, next(room) - len(known)))

        observe(seen, text[seen:])
        seen = len(text)
        count = min(drafter.window, turn.depth - 1)
        guess = found(text, [], count) if drafter.slots == "lookup" else []
        if drafter.slots == "recycle":
            guess = list(left[1][turn.position - left[0] :][:count])
        slots = len(guess) if drafter.slots == "lookup" else drafter.window
        yield guess + [0] * (slots - len(guess)), len(guess), again
        if draft.tokens:
            left = (turn.position, draft.tokens)


@pytest.mark.parametrize("slots", ["recycle", "lookup"])
@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "cached"])
def test_a_first_guess_is_what_followed_before_or_the_rest_of_the_last_draft(slots: str, cached: bool) -> None:
    """With a lookup, so is each guess behind what has changed in it."""
    changed, define = Counter[str](), with_the_texts_keys if cached else published
    prompt = (5, 6, 7) * 3 if slots == "lookup" else PROMPT
    for layers, window in (((2,), 4), ((1, 3), 2), ((0, 2, 4), 3)):
        drafter = run(layers, window, prompt=prompt, cached=cached, model="noise", slots=slots)
        for (text, turn, draft), (guess, count, again) in zip(drafter.notes, first_guesses(drafter), strict=True):
            if draft.tokens:
                steps = define(copy_in("noise"), text, layers, guess, again)
                assert list(draft.tokens) == steps.draft[: turn.depth]
                changed["first"] += count
                changed["later"] += steps.went_in[1:] != steps.came_out[:-1]
    assert changed["first"] > 0
    assert changed["later"] > 0 if slots == "lookup" else not changed["later"]


@pytest.mark.parametrize("slots", ["fixed", "recycle", "lookup"])
def test_a_guess_that_comes_out_as_it_went_in_ends_the_draft(slots: str) -> None:
    stops: Counter[int] = Counter()
    prompt = (*PROMPT, *plain()[:16], *PROMPT)
    for window, model in ((1, "same"), (1, "int8"), (2, "same"), (3, "noise")):
        watched: list[Guesses] = []
        drafter = run(range(LAYERS), window, prompt=prompt, model=model, slots=slots, patient=False, watch=watched)
        seen = iter(watched)
        for (_, turn, draft), (guess, _, again) in zip(drafter.notes, first_guesses(drafter), strict=True):
            if not draft.tokens:
                continue
            guesses = next(seen)
            assert draft.tokens == guesses.tokens[-1]
            if turn.depth < drafter.most:
                continue
            stop = len(guesses.tokens) - 1
            assert guesses.layers == tuple(range(stop))
            assert draft.work[0].passes == min(stop + 1, LAYERS)
            before, known = guess, 0
            for layer, tokens in enumerate(map(list, guesses.tokens[:LAYERS])):
                assert len(tokens) == (window + layer if slots != "lookup" else len(before)) + 1
                was_guessed = slots != "lookup" or len(before) > known
                assert (was_guessed and tokens[: len(before)] == before) == (layer == stop)
                assert tokens[:known] == before[:known], "what is known stays"
                known = agreeing(before, tokens) + 1
                before = again(before, tokens)
            stops[stop] += 1
    if slots == "lookup":
        assert len(stops) > 1, stops
    assert stops[LAYERS] > 0


@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "cached"])
def test_with_less_room_a_draft_is_the_beginning_of_what_it_would_be(cached: bool) -> None:
    caches = Caches()
    drafter = fractal(caches, (1, 3), 3, "noise")
    begun = read(decoder(), PROMPT)
    caches.open(0, begun if cached else decoder().new_cache())
    drafter.begin([Request(0, PROMPT, 99)])
    drafter._readings[0].gain([plain()[0]])
    position = len(PROMPT) + 1
    (whole,) = drafter.propose([Turn(0, 1, position, 99, 99)])
    assert len(whole.tokens) == drafter.most == 6
    for depth in range(1, 9):
        for rows in (depth, 99):
            (draft,) = drafter.propose([Turn(0, 1, position, rows, depth)])
            expected = () if depth == 1 else whole.tokens[:depth]  # one alone is what the next pass says anyhow
            assert draft.tokens == expected
            assert bool(draft.work) == bool(expected), "for nothing, nothing was computed"
        (draft,) = drafter.propose([Turn(0, 1, position, depth, 99)])
        assert draft.tokens == expected


def test_a_token_limit_on_drafts_holds() -> None:
    for tokens in (1, 2, 3, 7, 8, 20):
        drafter = run((1, 3), 5, model="noise", tokens=tokens)
        longest = max(len(draft.tokens) for _, _, draft in drafter.notes)
        assert longest == (0 if tokens == 1 else min(tokens, 8))


@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "cached"])
def test_no_draft_reaches_beyond_the_context(cached: bool) -> None:
    drafted = 0
    for length in range(CONTEXT - COUNT // 2, CONTEXT):
        prompt = tuple(3 + i % 7 for i in range(length))
        right = plain(prompt, 99)
        assert len(right) == CONTEXT - length
        caches = Caches()
        drafter = fractal(caches, (0, 2), 4)
        done = Run(
            decoder(), drafter, [Request(0, prompt, 99)], caches=caches, cached=cached, num_speculative_tokens=99
        )
        assert done.sequences[0].tokens == right
        for text, _, draft in getattr(drafter, "notes", []):
            assert len(text) + len(draft.tokens) <= CONTEXT
            drafted += len(draft.tokens)
    assert drafted > COUNT


@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "cached"])
def test_a_copy_that_says_nan_ends_its_drafts_quietly(cached: bool) -> None:
    dead = decoder(0.0, "model.norm.weight")
    drafter = run((1, 3), 4, model=dead, cached=cached)
    assert {draft.tokens for _, _, draft in drafter.notes} == {()}
    cut = drafted = 0
    for token in {7, *plain()[: COUNT // 3]}:  # the copy, and it alone, cannot read one token
        drafter = run((0, 2), 4, model=decoder(0.0, f"model.embed_tokens.weight {token}"), cached=cached)
        lengths = [len(draft.tokens) for _, turn, draft in drafter.notes if turn.depth >= drafter.most]
        drafted += sum(lengths)
        cut += any(length < drafter.most for length in lengths)
    assert cut > 0
    assert drafted > COUNT


def test_drafts_of_several_sequences_are_each_what_they_are_alone() -> None:
    prompts = [PROMPT, (9, 9, 4, 9), (11, 80)]
    together, alone = [], []
    for group in ([0, 1, 2], [0], [1], [2]):
        caches = Caches()
        drafter = fractal(caches, (1, 3), 3, "noise", slots="recycle")
        requests = [Request(sequence, prompts[sequence], 20) for sequence in group]
        done = Run(decoder(), drafter, requests, caches=caches, num_speculative_tokens=99)
        for sequence in group:
            assert done.sequences[sequence].tokens == plain(prompts[sequence], 20)
        (together if len(group) > 1 else alone).extend(
            (turn.sequence, turn.position, draft.tokens) for _, turn, draft in drafter.notes
        )
    assert sorted(together) == sorted(alone)
