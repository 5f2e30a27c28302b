from __future__ import annotations

import zlib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from foretoken.acceptance.walk import agreeing, walk
from tests.oracles import NextToken, longest_path_of_the_target, path_to, plain_decoding

#   root ┬─ 0: 5 ┬─ 2: 6 ── 4: 7
#        │       └─ 3: 8 ── 5: 9
#        └─ 1: 6
TOKENS = [5, 6, 6, 8, 7, 9]
PARENTS = [-1, -1, 0, 0, 2, 3]


def target_that_says(*tokens: int) -> NextToken:
    return lambda path: tokens[len(path)]


def run(tokens: list[int], parents: list[int], target: NextToken) -> tuple[list[int], int, list[int]]:
    """(accepted, bonus) of the walk, and what it asked for."""
    asked: list[int] = []

    def choose(i: int) -> int:
        asked.append(i)
        return target(tuple(tokens[node] for node in path_to(i, parents)))

    accepted, bonus = walk(tokens, parents, choose)
    return accepted, bonus, asked


@pytest.mark.parametrize(
    ("said", "accepted", "bonus"),
    [
        ((4,), [], 4),  # the draft is wrong from the first token
        ((6, 5), [1], 5),  # a leaf below the root
        ((5, 7), [0], 7),  # right, then a token that is in the tree but not here
        ((5, 8, 9, 1), [0, 3, 5], 1),  # all the way down the second branch
        ((5, 6, 7, 7), [0, 2, 4], 7),  # all the way down the first, whose token repeats
    ],
)
def test_the_walk_follows_the_target_until_the_draft_differs(
    said: tuple[int, ...], accepted: list[int], bonus: int
) -> None:
    assert run(TOKENS, PARENTS, target_that_says(*said))[:2] == (accepted, bonus)


def test_an_empty_draft_gives_the_bonus_alone() -> None:
    assert run([], [], target_that_says(3)) == ([], 3, [-1])


def test_the_first_of_equal_siblings_is_taken() -> None:
    # both children of the root say 5; what hangs below the second is never reached
    accepted, bonus, asked = run([5, 5, 6], [-1, -1, 1], target_that_says(5, 6))
    assert (accepted, bonus, asked) == ([0], 6, [-1, 0])


def test_an_error_of_the_target_comes_through() -> None:
    def choose(i: int) -> int:
        raise ArithmeticError(f"asked after {i}")

    with pytest.raises(ArithmeticError, match=r"^asked after -1$"):
        walk(TOKENS, PARENTS, choose)


@st.composite
def drafts_and_targets(draw: st.DrawFn) -> tuple[list[int], list[int], NextToken]:
    """A target that depends on all tokens before, and a tree that agrees with it here and there."""
    seed = draw(st.integers(0, 255))

    def target(path: tuple[int, ...]) -> int:
        return zlib.crc32(bytes([seed, *path])) % 3

    tokens: list[int] = []
    parents: list[int] = []
    for i in range(draw(st.integers(0, 10))):
        parents.append(draw(st.integers(-1, i - 1)))
        agrees = draw(st.booleans())
        path = tuple(tokens[node] for node in path_to(parents[i], parents))
        tokens.append(target(path) if agrees else draw(st.integers(0, 2)))
    return tokens, parents, target


@given(drafts_and_targets())
@settings(deadline=None, max_examples=300)
def test_what_comes_out_is_what_plain_decoding_says(case: tuple[list[int], list[int], NextToken]) -> None:
    tokens, parents, target = case
    accepted, bonus, asked = run(tokens, parents, target)
    assert [*(tokens[i] for i in accepted), bonus] == plain_decoding(target, len(accepted) + 1)
    # the accepted tokens are one path from the root, and the target was asked there, in order, and nowhere else
    assert [parents[i] for i in accepted] == [-1, *accepted][: len(accepted)]
    assert asked == [-1, *accepted]


@given(drafts_and_targets())
@settings(deadline=None, max_examples=200)
def test_no_longer_path_of_the_tree_could_be_accepted(case: tuple[list[int], list[int], NextToken]) -> None:
    tokens, parents, target = case
    # with equal siblings, what hangs below all but the first is out of reach: see above
    assume(len(set(zip(parents, tokens, strict=True))) == len(tokens))
    accepted, _, _ = run(tokens, parents, target)
    assert accepted == longest_path_of_the_target(tokens, parents, target)


@pytest.mark.parametrize(
    ("some", "others", "count"),
    [
        ((), (), 0),
        ((), (1,), 0),
        ((1,), (2,), 0),
        ((1, 2, 3), (1, 2), 2),
        ((1, 2, 3), (1, 5, 3), 1),
        ((1, 2), (1, 2), 2),
    ],
)
def test_what_two_runs_begin_with_in_common(some: tuple[int, ...], others: tuple[int, ...], count: int) -> None:
    assert agreeing(some, others) == agreeing(others, some) == count
