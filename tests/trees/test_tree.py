from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Draft
from foretoken.trees.tree import clip, depths
from tests.oracles import path_to

VOCABULARY = 4


def draft_of(tokens: list[int], parents: list[int]) -> Draft:
    """A draft in which every token can be told by its origin, whatever its id."""
    n = len(tokens)
    return Draft(
        sequence=3,
        round=5,
        position=11,
        tokens=tuple(tokens),
        parents=tuple(parents),
        origins=tuple(f"token {i}" for i in range(n)),
        draft_probs={node: np.full(VOCABULARY, float(node)) for node in range(-1, n)},
        work=(Work("somebody", rows=n),),
    )


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Any tree, with tokens that the target does not have among its own."""
    n = draw(st.integers(0, 12))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    tokens = draw(st.lists(st.integers(-1, VOCABULARY), min_size=n, max_size=n))
    return draft_of(tokens, parents)


def kept_by(clipped: Draft, draft: Draft) -> list[int]:
    """Which tokens of `draft` are in `clipped`."""
    return [draft.origins.index(origin) for origin in clipped.origins]


def test_depths_count_from_the_root() -> None:
    assert depths([]) == []
    assert depths([-1, 0, 1]) == [1, 2, 3]
    assert depths([-1, -1, 0, 1, 2, -1]) == [1, 1, 2, 2, 3, 1]


@given(drafts())
@settings(deadline=None, max_examples=50)
def test_a_depth_is_the_length_of_the_path(draft: Draft) -> None:
    assert depths(draft.parents) == [len(path_to(i, draft.parents)) for i in range(len(draft))]


def test_clip_drops_what_hangs_below_a_dropped_token() -> None:
    #   0 ─ 2 ─ 4        token 0 does not exist, so 2 and 4 go with it
    #   1 ─ 3
    clipped = clip(draft_of([99, 1, 2, 3, 1], [-1, -1, 0, 1, 2]), rows=8, depth=8, vocab_size=VOCABULARY)
    assert (clipped.tokens, clipped.parents) == ((1, 3), (-1, 0))


def test_clip_to_no_rows_leaves_an_empty_draft_for_the_same_turn() -> None:
    draft = draft_of([1, 2], [-1, 0])
    clipped = clip(draft, rows=0, depth=8, vocab_size=VOCABULARY)
    assert clipped == Draft(3, 5, 11, (), (), (), work=draft.work)
    assert list(clipped.draft_probs or {}) == [-1]


def test_clip_leaves_absent_probabilities_absent() -> None:
    draft = Draft(0, 1, 2, (1, 2), (-1, 0), ("a", "a"))
    clipped = clip(draft, rows=1, depth=8, vocab_size=VOCABULARY)
    assert (clipped.tokens, clipped.draft_probs) == ((1,), None)


@given(drafts(), st.integers(0, 8), st.integers(0, 5))
@settings(deadline=None, max_examples=300)
def test_clip_gives_the_first_subtree_within_the_budget(draft: Draft, rows: int, depth: int) -> None:
    clipped = clip(draft, rows, depth, VOCABULARY)
    kept = kept_by(clipped, draft)

    # within the budget, in the order in which they came
    assert len(clipped) <= rows
    assert max(depths(clipped.parents), default=0) <= depth
    assert all(0 <= token < VOCABULARY for token in clipped.tokens)
    assert kept == sorted(kept)

    # the same tokens below the same parents
    assert clipped.tokens == tuple(draft.tokens[i] for i in kept)
    assert {node: probs[0] for node, probs in (clipped.draft_probs or {}).items()} == {
        -1: -1,
        **dict(enumerate(kept)),
    }
    assert [-1 if parent < 0 else kept[parent] for parent in clipped.parents] == [draft.parents[i] for i in kept]

    # nothing was dropped without a reason
    levels = depths(draft.parents)
    for i in set(range(len(draft))) - set(kept):
        parent_dropped = draft.parents[i] >= 0 and draft.parents[i] not in kept
        full = sum(k < i for k in kept) == rows
        assert parent_dropped or full or levels[i] > depth or not 0 <= draft.tokens[i] < VOCABULARY

    # what the draft was made for, and what it cost, stay
    assert (clipped.sequence, clipped.round, clipped.position, clipped.work) == (3, 5, 11, draft.work)


@given(drafts())
@settings(deadline=None, max_examples=100)
def test_clip_returns_a_draft_within_the_budget_unchanged(draft: Draft) -> None:
    within = clip(draft, len(draft), len(draft), VOCABULARY)
    assert clip(within, len(within), max(depths(within.parents), default=0), VOCABULARY) is within
