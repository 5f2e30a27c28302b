"""The store of prefixes alone: what is kept, what is dropped, and what is worth a copy."""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.protocol.types import Request
from foretoken.verification.local import LocalVerifier
from foretoken.verification.prefixes import LEAST, Prefixes
from tests.engine.prefix_server import engine_of, fresh
from tests.world import make_world


def keep(prefixes: Prefixes, *texts: Sequence[int]) -> None:
    """Serve requests for one token each."""
    verifier = LocalVerifier(make_world().target, prefixes=prefixes)
    for tokens in texts:
        list(engine_of(verifier).run([Request(0, tuple(tokens), 1)]))


def kept(prefixes: Prefixes) -> list[tuple[int, ...]]:
    """The least recently used first."""
    return [each.kept.tokens for each in sorted(prefixes._entries.values(), key=lambda each: each.used)]


A, B, C = (tuple(range(start, start + 20)) for start in (100, 200, 300))


def test_the_least_recently_used_is_dropped_first_and_the_bound_holds() -> None:
    prefixes = Prefixes(50)
    keep(prefixes, A, B)
    assert kept(prefixes) == [A, B]
    keep(prefixes, (*A[:18], 9))  # uses the first, and is kept beside it in its turn
    assert kept(prefixes) == [A, (*A[:18], 9)]
    assert prefixes.hits == 18
    keep(prefixes, C)
    assert kept(prefixes) == [(*A[:18], 9), C]
    assert prefixes.positions == 39
    prefixes.make_room(20)
    assert kept(prefixes) == [C]
    prefixes.make_room(20)
    assert prefixes.positions == 20
    prefixes.clear()
    assert prefixes.positions == 0
    keep(prefixes, A)
    assert kept(prefixes) == [A]


def test_of_two_of_which_one_begins_with_the_other_the_longer_is_kept() -> None:
    prefixes = Prefixes(1000)
    keep(prefixes, A, (*A, *B), C, (*A, *B[:7]))
    assert kept(prefixes) == [C, (*A, *B)]
    assert prefixes.hits == 20 + 26


def test_what_is_longer_than_all_that_may_be_kept_is_cut_and_what_is_too_short_is_not_kept() -> None:
    prefixes = Prefixes(30)
    keep(prefixes, (*A, *B), C[: LEAST - 1])
    assert kept(prefixes) == [(*A, *B[:10])]
    ((_, only),) = prefixes._known()
    assert only.cache.digest() == fresh(make_world().target, only.tokens).digest()
    keep(prefixes, (*A, *B))
    assert prefixes.hits == 30
    none = Prefixes(0)
    keep(none, A, A)
    assert (none.positions, none.hits, none.queries) == (0, 0, 40)
    keep(prefixes, C[: LEAST + 1])
    assert kept(prefixes) == [C[: LEAST + 1]]


def test_fewer_tokens_than_are_worth_a_copy_are_no_prefix() -> None:
    for common in (LEAST - 1, LEAST):
        prefixes = Prefixes(1000)
        keep(prefixes, A, (*A[:common], *B))
        assert prefixes.hits == (common if common == LEAST else 0)


def test_long_texts_are_compared_to_the_token() -> None:
    long = tuple(range(100, 500))  # longer than a block of them
    for common in (255, 256, 257, 399):
        prefixes = Prefixes(2000)
        keep(prefixes, long, (*long[:common], 5, *long[common + 1 :]))
        assert prefixes.hits == common
