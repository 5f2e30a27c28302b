"""The suffix array against a search by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.drafters.suffixes import END, REACH, Match, SuffixArray

Texts = list[list[int]]
tokens = st.integers(0, 2)
texts = st.lists(st.lists(tokens, max_size=60), max_size=4)


def nexts(texts: Texts, run: list[int]) -> Counter[int]:
    """What follows a run, and how often; END at the end of a text."""
    return Counter(
        [*text, END][at + len(run)]
        for text in texts
        for at in range(len(text) - len(run) + 1)
        if text[at : at + len(run)] == run
    )


@settings(deadline=None)
@given(texts, st.lists(tokens, min_size=1, max_size=40), st.integers(1, 3))
def test_the_longest_end_that_occurs_is_found_with_all_its_places(texts: Texts, end: list[int], least: int) -> None:
    found = SuffixArray(texts).longest(end, least)
    lengths = [length for length in range(least, min(len(end), REACH) + 1) if nexts(texts, end[-length:])]
    if not lengths:
        assert found is None
    else:
        assert found is not None
        assert found.length == max(lengths)
        assert found.high - found.low == nexts(texts, end[-found.length :]).total()


@settings(deadline=None)
@given(texts, st.lists(tokens, min_size=1, max_size=8), st.integers(0, 12))
def test_each_token_that_follows_is_the_most_frequent_one(texts: Texts, end: list[int], count: int) -> None:
    array = SuffixArray(texts)
    match = array.longest(end, 1)
    if match is None:
        return
    run = end[-match.length :]
    drafted = array.following(match, count)
    assert len(drafted) <= count
    for token in drafted:
        followed = nexts(texts, run)
        assert followed[token] == max(followed.values())
        run.append(token)
    if len(drafted) < count:
        followed = nexts(texts, run)
        assert followed[END] == max(followed.values()), "it ends where a text does"


def test_a_draft_ends_before_few_of_the_places_go_on_like_it() -> None:
    array = SuffixArray([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 7], [1, 2, 8]])
    match = array.longest([1, 2], 2)
    assert match is not None
    assert array.following(match, 9, least=0.6) == []  # two of four go on with 3
    assert array.following(match, 9, least=0.5) == [3, 4]  # one of four with 5
    assert array.following(match, 9, least=0.25) == [3, 4, 5]


def test_what_is_longer_than_the_array_sorts_by_is_found_and_followed() -> None:
    text = list(range(3 * REACH))
    array = SuffixArray([text])
    match = array.longest(text[: 2 * REACH], 2)
    assert match is not None
    assert (match.length, match.high - match.low) == (REACH, 1)
    assert array.following(match, REACH) == text[2 * REACH :]
    assert array.following(match, 2 * REACH) == text[2 * REACH :], "a text ends"


@pytest.mark.parametrize("texts", [[], [[]], [[], []], [[5]]])
def test_where_there_is_nothing_nothing_is_found(texts: Texts) -> None:
    assert SuffixArray(texts).longest([1, 2, 3], 1) is None


def test_no_run_goes_from_one_text_into_the_next() -> None:
    array = SuffixArray([[1, 2], [3, 4]])
    assert array.longest([2, 3], 2) is None
    assert array.longest([1, 2], 1) == Match(2, 2, 3)
    assert array.following(Match(2, 2, 3), 4) == []
