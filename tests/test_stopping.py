from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.protocol.types import FinishReason, Request
from foretoken.text.stopping import Watch, limit, stop_in

END = 9
PROMPT = (1, 2, 3)
LONG = 100  # a context that nothing here fills


def request(max_new_tokens: int = 50, end_tokens: frozenset[int] = frozenset({END})) -> Request:
    return Request(0, PROMPT, max_new_tokens, end_tokens)


def stop(
    *tokens: int, asked: Request | None = None, context: int = LONG, before: int = 0, complete: bool = False
) -> tuple[int, FinishReason | None]:
    """Where some new tokens stop, of a request that has gained some `before`."""
    asked = request() if asked is None else asked
    return stop_in(tokens, limit(asked, context) - before, asked, lambda token: False, complete=complete)


def test_the_limit_is_the_smaller_of_what_was_asked_and_what_the_context_leaves() -> None:
    assert limit(request(5), LONG) == 5
    assert limit(request(5), len(PROMPT) + 2) == 2
    assert limit(request(5), len(PROMPT) + 5) == 5


def test_tokens_within_all_bounds_all_stay() -> None:
    assert stop(5, 6, 7) == (3, None)


@pytest.mark.parametrize("offset", range(4))
def test_an_end_token_ends_the_text_wherever_it_stands(offset: int) -> None:
    tokens = [5, 6, 7, 8]
    tokens[offset] = END
    assert stop(*tokens) == (offset + 1, "stop")


def test_the_first_of_several_end_tokens_counts() -> None:
    assert stop(5, 8, END, 6, asked=request(end_tokens=frozenset({END, 8}))) == (2, "stop")


def test_without_end_tokens_none_ends_the_text() -> None:
    assert stop(5, END, 6, asked=request(end_tokens=frozenset())) == (3, None)


@pytest.mark.parametrize("room", range(1, 5))
def test_max_new_tokens_cuts_in_the_middle_of_a_block(room: int) -> None:
    assert stop(5, 6, 7, 8, asked=request(room)) == (room, "length")


@pytest.mark.parametrize("room", range(1, 5))
def test_the_context_length_cuts_in_the_middle_of_a_block(room: int) -> None:
    assert stop(5, 6, 7, 8, context=len(PROMPT) + room) == (room, "length")


def test_tokens_of_earlier_rounds_count_towards_the_length() -> None:
    assert stop(5, 6, 7, asked=request(10), before=8) == (2, "length")


def test_an_end_token_beyond_the_length_is_not_seen() -> None:
    assert stop(5, 6, END, asked=request(2)) == (2, "length")


def test_an_end_token_at_the_last_allowed_place_is_a_stop() -> None:
    assert stop(5, END, 6, asked=request(2)) == (2, "stop")


@pytest.mark.parametrize(("most", "expected"), [(2, (2, "length")), (3, (3, "stop")), (9, (3, "stop"))])
def test_the_end_of_a_grammar_is_a_stop_if_the_length_does_not_come_before(
    most: int, expected: tuple[int, FinishReason]
) -> None:
    assert stop(5, 6, 7, asked=request(most), complete=True) == expected


def test_stop_strings_are_asked_once_about_each_token_in_order_even_when_a_round_is_broken_off() -> None:
    told: list[list[int]] = []

    def make(request: Request) -> Callable[[int], bool]:
        told.append([])
        return lambda token: bool(told[-1].append(token)) or token == 8

    asked = request()
    watch = Watch(asked, make)
    assert stop_in((5, 6), 50, asked, watch.at(())) == (2, None)
    assert stop_in((7, 8, 9), 50, asked, watch.at((5, 6))) == (2, "stop")
    assert told == [[5, 6, 7, 8]]
    assert stop_in((7, 3), 50, asked, watch.at((5, 6))) == (2, None), "the round before was broken off"
    assert told[-1] == [5, 6, 7, 3]


@given(
    passes=st.lists(st.lists(st.sampled_from([5, 6, END]), min_size=1, max_size=4), min_size=10, max_size=10),
    max_new_tokens=st.integers(1, 9),
    context_left=st.integers(1, 9),
)
@settings(deadline=None, max_examples=200)
def test_a_text_ends_where_plain_decoding_ends_however_passes_divide_it(
    passes: list[list[int]], max_new_tokens: int, context_left: int
) -> None:
    stream = [token for tokens in passes for token in tokens]  # longer than any limit here
    asked, context_length = request(max_new_tokens), len(PROMPT) + context_left

    plain: list[int] = []
    reason: FinishReason = "length"
    while len(plain) < min(max_new_tokens, context_left):
        plain.append(stream[len(plain)])
        if plain[-1] == END:
            reason = "stop"
            break

    text: list[int] = []
    for tokens in passes:
        count, found = stop(*tokens, asked=asked, context=context_length, before=len(text))
        text += tokens[:count]
        if found is not None:
            break
    assert (text, found) == (plain, reason)
