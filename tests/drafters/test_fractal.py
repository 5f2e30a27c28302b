"""The fractal drafter against the method as the paper tells it, written down plainly: no cache, whole sequences."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from foretoken.acceptance.walk import agreeing
from foretoken.decoder.caches import Caches
from foretoken.drafters.fractal import Guesses
from foretoken.drafters.lookup import LookupDrafter
from foretoken.protocol.types import Request, Turn, Verdict
from tests.drafters.fractal_defined import (
    CONTEXT,
    COUNT,
    LAYERS,
    PLACES,
    PROMPT,
    Again,
    Noted,
    copy_in,
    decoder,
    fractal,
    plain,
    published,
    read,
    run,
    with_the_texts_keys,
)
from tests.world import Run


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
    lookup, seen = LookupDrafter(2), len(prompt)
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
