from __future__ import annotations

import random
from collections.abc import Iterable
from typing import SupportsIndex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.drafters.automaton import SuffixAutomaton
from tests.oracles import earlier_ends, longest_repeated_end


def automaton_of(text: Iterable[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for token in text:
        automaton.append(token)
    return automaton


def texts(alphabet: int, max_size: int) -> st.SearchStrategy[list[int]]:
    """Few different tokens: almost everything repeats."""
    return st.integers(1, alphabet).flatmap(lambda n: st.lists(st.integers(0, n - 1), max_size=max_size))


@given(texts(alphabet=3, max_size=30))
@settings(deadline=None, max_examples=300)
def test_the_longest_match_is_the_longest_end_that_occurred_before(text: list[int]) -> None:
    length, end = automaton_of(text).longest_match()
    assert length == longest_repeated_end(text)
    # and it truly occurred there, before the end of the text: something followed it
    assert end in earlier_ends(text, length) if length else end == -1


@given(texts(alphabet=3, max_size=10))
@settings(deadline=None, max_examples=50)
def test_the_match_is_right_after_every_token(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for stop, token in enumerate(text, 1):
        automaton.append(token)
        assert automaton.text == text[:stop]
        assert automaton.longest_match()[0] == longest_repeated_end(text[:stop])


def test_an_empty_text_matches_nothing() -> None:
    assert SuffixAutomaton().longest_match() == (0, -1)


def test_a_new_token_matches_nothing() -> None:
    assert automaton_of([1, 2, 1, 2, 3]).longest_match() == (0, -1)


def test_a_match_may_overlap_the_end_that_it_matches() -> None:
    # 1 2 1 2 1
    # ─────      the match
    #     ─────  the end
    assert automaton_of([1, 2, 1, 2, 1]).longest_match() == (3, 2)


def test_of_equal_matches_the_one_seen_last_is_given() -> None:
    #                 0  1  2  3  4  5  6  7
    text = automaton_of([1, 2, 7, 1, 2, 8, 1, 2])
    assert text.longest_match() == (2, 4)


@given(texts(alphabet=4, max_size=60).filter(bool))
@settings(deadline=None, max_examples=100)
def test_there_are_at_most_twice_as_many_states_as_tokens(text: list[int]) -> None:
    assert len(text) < len(automaton_of(text)) <= 2 * len(text)


def test_no_state_is_made_without_need() -> None:
    # the beginnings of a text of one token, or of different ones, are all that there is to tell apart
    assert len(automaton_of([7] * 50)) == 51
    assert len(automaton_of(range(50))) == 51


class CountingList(list[int]):
    """Counts how often it is read."""

    reads = 0

    def __getitem__(self, index: SupportsIndex) -> int:  # type: ignore[override]
        type(self).reads += 1
        return super().__getitem__(index)


LENGTH = 20_000


@pytest.mark.parametrize(
    "text",
    [
        pytest.param([7] * LENGTH, id="one token"),
        pytest.param([7] * (LENGTH // 2) + [8] * (LENGTH // 2), id="two runs"),
        pytest.param([1, 2, 3] * (LENGTH // 3), id="periodic"),
        pytest.param(random.Random(0).choices(range(2), k=LENGTH), id="two tokens at random"),
        pytest.param(random.Random(0).choices(range(500), k=LENGTH), id="many tokens at random"),
    ],
)
def test_appending_takes_constant_time_on_average(text: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    # every step of the two loops reads a link, so the reads of links bound the steps
    monkeypatch.setattr(CountingList, "reads", 0)
    automaton = SuffixAutomaton()
    automaton._link = CountingList(automaton._link)
    for token in text:
        automaton.append(token)
        automaton.longest_match()
    assert len(automaton) <= 2 * len(text)
    assert len(text) <= CountingList.reads <= 8 * len(text)
