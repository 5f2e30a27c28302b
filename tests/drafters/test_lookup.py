from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.drafters import lookup
from foretoken.drafters.automaton import SuffixAutomaton
from foretoken.drafters.lookup import LookupDrafter
from foretoken.errors import DraftSpecError
from foretoken.protocol.types import TARGET, Draft, Needs, Request, Turn, Verdict
from tests.oracles import earlier_ends, longest_repeated_end


def begun(*prompts: tuple[int, ...], min_match: int = 2) -> LookupDrafter:
    """A drafter that has seen prompts; prompt s is that of sequence s."""
    drafter = LookupDrafter(min_match)
    drafter.begin([Request(s, prompt, 99) for s, prompt in enumerate(prompts)])
    return drafter


def turn(sequence: int = 0, rows: int = 8, depth: int = 8) -> Turn:
    return Turn(sequence, 3, 40, rows, depth)


def drafted(drafter: LookupDrafter, sequence: int = 0, rows: int = 8, depth: int = 8) -> tuple[int, ...]:
    (draft,) = drafter.propose([turn(sequence, rows, depth)])
    return draft.tokens


def verdict(sequence: int, *tokens: int) -> Verdict:
    return Verdict(sequence, 0, 40, tuple(range(len(tokens) - 1)), tokens, (TARGET,) * len(tokens))


def test_it_needs_no_features() -> None:
    assert LookupDrafter().needs == Needs()


def test_it_proposes_what_followed_the_longest_earlier_match() -> None:
    # the end 1 2 3 occurred at the beginning; its shorter end 2 3 was followed by something else, later
    drafter = begun((1, 2, 3, 4, 5, 2, 3, 9, 9, 1, 2, 3))
    assert drafted(drafter, depth=2) == (4, 5)


def test_it_proposes_a_chain_for_the_turn_and_says_what_it_did() -> None:
    (draft,) = begun((1, 2, 3, 4, 1, 2)).propose([turn(depth=4)])
    (work,) = draft.work
    assert draft == Draft(0, 3, 40, (3, 4, 1, 2), (-1, 0, 1, 2), ("lookup",) * 4, None, (work,))
    assert (work.level, work.draft_tokens, work.rows) == ("lookup", 4, 0)
    assert 0 <= work.seconds < 10


@pytest.mark.parametrize("prompt", [(1,), (1, 2, 3, 4), (1, 2, 3, 1)])
def test_it_proposes_nothing_where_nothing_repeats(prompt: tuple[int, ...]) -> None:
    # in the last one a single token does, which is less than what is worth following
    (draft,) = begun(prompt).propose([turn()])
    assert len(draft) == 0
    assert [work.draft_tokens for work in draft.work] == [0]


def test_min_match_is_the_shortest_match_that_is_followed() -> None:
    prompt = (5, 6, 7, 8, 5, 6, 7)
    assert drafted(begun(prompt, min_match=3), depth=1) == (8,)
    assert drafted(begun(prompt, min_match=4), depth=1) == ()
    assert drafted(begun((5, 8, 5), min_match=1), depth=1) == (8,)


def test_what_repeats_is_repeated_on_beyond_the_end_of_the_text() -> None:
    assert drafted(begun((1, 7, 7, 7)), depth=5) == (7, 7, 7, 7, 7)
    assert drafted(begun((9, 1, 2, 3, 1, 2, 3)), depth=8) == (1, 2, 3, 1, 2, 3, 1, 2)


def test_it_proposes_no_more_than_the_depth() -> None:
    drafter = begun((1, 2, 3, 4, 5, 1, 2))
    assert [drafted(drafter, depth=depth) for depth in range(4)] == [(), (3,), (3, 4), (3, 4, 5)]


def test_it_proposes_no_more_than_the_rows() -> None:
    (draft,) = begun((1, 2, 3, 4, 5, 1, 2)).propose([turn(rows=2, depth=8)])
    assert (draft.tokens, draft.work[0].draft_tokens) == ((3, 4), 2)


def test_it_learns_from_verdicts() -> None:
    drafter = begun((1, 2, 3))
    assert drafted(drafter) == ()
    drafter.observe([verdict(0, 4, 1)])
    drafter.observe([verdict(0, 2)])
    assert drafted(drafter, depth=3) == (3, 4, 1)


def test_sequences_do_not_mix() -> None:
    drafter = begun((1, 2, 3, 1, 2), (1, 2, 4, 1, 2), (1, 2))
    # in any order of turns, each draft is for its own
    drafts = drafter.propose([turn(2, depth=1), turn(1, depth=1), turn(0, depth=1)])
    assert {draft.sequence: draft.tokens for draft in drafts} == {0: (3,), 1: (4,), 2: ()}
    drafter.observe([verdict(1, 5, 1), verdict(2, 6, 1)])
    drafter.observe([verdict(2, 2), verdict(1, 2)])
    assert [drafted(drafter, s, depth=1) for s in (0, 1, 2)] == [(3,), (5,), (6,)]


def test_the_end_of_a_sequence_forgets_it_and_no_other() -> None:
    drafter = begun((1, 2, 3, 1, 2), (1, 2, 4, 1, 2))
    drafter.end(0)
    drafter.end(0)  # an engine that cleans up may say so twice
    assert drafted(drafter, 1, depth=1) == (4,)
    drafter.begin([Request(0, (1, 2), 99)])  # the same number again, and nothing is left of before
    assert drafted(drafter, 0) == ()


def test_what_a_sequence_held_is_freed_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[SuffixAutomaton]] = []

    class Watched(SuffixAutomaton):
        def __init__(self) -> None:
            super().__init__()
            made.append(weakref.ref(self))

    monkeypatch.setattr(lookup, "SuffixAutomaton", Watched)
    drafter = begun((1, 2, 3, 1, 2), (1, 2))
    drafter.propose([turn(0), turn(1)])
    drafter.end(0)
    gc.collect()
    assert [reference() is None for reference in made] == [True, False]


@pytest.mark.parametrize("value", [0, -1])
def test_a_match_of_nothing_is_refused(value: int) -> None:
    with pytest.raises(DraftSpecError) as error:
        LookupDrafter(min_match=value)
    assert str(error.value) == f"lookup: min_match is {value}, expected 1 or more"


@given(st.lists(st.integers(0, 2), min_size=1, max_size=25), st.integers(1, 4), st.integers(0, 6), st.integers(0, 25))
@settings(deadline=None, max_examples=200)
def test_every_draft_is_a_copy_of_what_followed_somewhere(
    text: list[int], min_match: int, depth: int, split: int
) -> None:
    # the text may come as a prompt or in verdicts, which must make no difference
    drafter = begun(tuple(text[:split]), min_match=min_match)
    drafter.observe([verdict(0, *text[split:])] if text[split:] else [])
    tokens = list(drafted(drafter, depth=depth))
    length = longest_repeated_end(text)
    if length < min_match:
        assert tokens == []
    else:
        # beyond the end of the text, the copy goes on with what it has written
        copies = []
        for end in earlier_ends(text, length):
            copy = list(text)
            for at in range(depth):
                copy.append(copy[end + 1 + at])
            copies.append(copy[len(text) :])
        assert tokens in copies
