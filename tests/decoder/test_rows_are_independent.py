"""A row's bits depend on the row and its ancestors alone: the promise that exact losslessness stands on.

Everything here is compared with `torch.equal`, natively and in PyTorch. Every test but one runs with poison: all memory
of a cache that nothing was written to holds NaN, so that a row which so much as touches it (a mask that multiplies by
zero, say) shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.rows import Rows, chain
from tests.decoder.models import path_to, random_tokens, random_tree
from tests.decoder.outcomes import (
    Make,
    Outcome,
    after,
    compare_chunks,
    dtypes,
    read_committed,
    read_in_scratch,
    run,
    shapes,
    together,
)

pytestmark = [pytest.mark.usefixtures("poison"), pytest.mark.sampled(2)]

# -- how a sequence is cut ------------------------------------------------------------------------------------------


@shapes
@dtypes
def test_chunk_size_does_not_matter(make: Make, shape: str, dtype: torch.dtype) -> None:
    compare_chunks(make(shape, dtype), random_tokens(70, seed=1, vocab=97), (1, 2, 3, 7, 16, 17, 64))


@pytest.mark.parametrize("shape", ["plain", "odd-widths", "window"])
@dtypes
def test_crossing_256_positions_does_not_matter(make: Make, shape: str, dtype: torch.dtype) -> None:
    # 256 positions are a page of rotations and a cache's first capacity
    decoder, tokens = make(shape, dtype), random_tokens(266, seed=2, vocab=97)
    whole_cache = decoder.new_cache()
    whole = read_committed(decoder, tokens, [266], whole_cache)
    for sizes in ([250, 1], [255, 11], [256, 10], [257, 3]):
        cache = decoder.new_cache()
        assert read_committed(decoder, tokens, sizes, cache) == whole, sizes
        assert cache.digest() == whole_cache.digest(), sizes


@shapes
@dtypes
def test_keys_in_scratch_are_keys_in_the_prefix(make: Make, shape: str, dtype: torch.dtype) -> None:
    decoder, tokens = make(shape, dtype), random_tokens(40, seed=3, vocab=97)
    whole = read_committed(decoder, tokens, [40])
    for sizes in ([1], [5], [15, 1, 2], [16, 24], [17, 23]):
        assert read_in_scratch(decoder, tokens, sizes) == whole, sizes
    for prefix in (1, 15, 16, 17, 33):
        cache = after(decoder, tokens[:prefix])
        rest = read_in_scratch(decoder, tokens[prefix:], [4], cache)
        assert all(rest.row(row) == whole.row(prefix + row) for row in range(40 - prefix)), prefix


# -- what else is in the pass ---------------------------------------------------------------------------------------


@shapes
@dtypes
def test_the_number_of_siblings_does_not_matter(make: Make, shape: str, dtype: torch.dtype) -> None:
    decoder = make(shape, dtype)
    cache = after(decoder, random_tokens(20, seed=4, vocab=97))
    alone = run(decoder, chain(cache, [42])).row(0)
    for count in range(2, 42):
        cache.discard()
        tokens = random_tokens(count, seed=count, vocab=97)
        at = (count * 7) % count if count % 3 else count - 1
        tokens[at] = 42
        assert run(decoder, Rows([(cache, tokens, [-1] * count)])).row(at) == alone, count


@shapes
@dtypes
def test_other_sequences_in_the_pass_do_not_matter(make: Make, shape: str, dtype: torch.dtype) -> None:
    decoder = make(shape, dtype)
    caches = [after(decoder, random_tokens(length, seed=length, vocab=97)) for length in (19, 1, 5, 16, 33)]
    tokens, parents = random_tokens(6, seed=6, vocab=97), [-1, 0, 0, 1, -1, 3]

    def first(others: list[int], place: int) -> Outcome:
        """Our rows in a pass with so many rows of other sequences; our sequence comes at `place`."""
        for cache in caches:
            cache.discard()
        parts: list[tuple[Cache, Sequence[int], Sequence[int]]] = [
            (cache, random_tokens(count, seed=count, vocab=97), range(-1, count - 1))
            for cache, count in zip(caches[1:], others, strict=False)
        ]
        start = sum(others[:place])
        parts.insert(place, (caches[0], tokens, parents))
        outcome = run(decoder, Rows(parts))
        return together(
            [
                Outcome(o.hidden[None], o.logits[None], [s[None] for s in o.stored])
                for o in (outcome.row(start + row) for row in range(6))
            ]
        )

    alone = first([], 0)
    for others in ([1], [10], [11], [3, 8, 1, 20], [40]):
        for place in range(len(others) + 1):
            assert first(others, place) == alone, (others, place)


@shapes
@dtypes
def test_a_row_in_a_tree_is_the_row_in_a_chain(make: Make, shape: str, dtype: torch.dtype) -> None:
    decoder, prefix = make(shape, dtype), random_tokens(15, seed=7, vocab=97)
    tokens, parents = random_tokens(20, seed=8, vocab=97), random_tree(20, seed=9)
    assert max(len(path_to(parents, row)) for row in range(20)) > 4
    tree = run(decoder, Rows([(after(decoder, prefix), tokens, parents)]))
    cache = after(decoder, prefix)
    for row in range(20):
        path = [tokens[ancestor] for ancestor in path_to(parents, row)]
        cache.discard()
        assert run(decoder, chain(cache, path)).row(len(path) - 1) == tree.row(row), row


@shapes
@dtypes
def test_a_tree_that_grows_over_several_passes_is_the_tree_in_one(make: Make, shape: str, dtype: torch.dtype) -> None:
    decoder, prefix = make(shape, dtype), random_tokens(15, seed=7, vocab=97)
    tokens, parents = random_tokens(20, seed=8, vocab=97), random_tree(20, seed=9)
    whole = run(decoder, Rows([(after(decoder, prefix), tokens, parents)]))
    cache = after(decoder, prefix)
    grown = [
        run(decoder, Rows([(cache, tokens[start:stop], parents[start:stop])]))
        for start, stop in ((0, 1), (1, 4), (4, 13), (13, 20))
    ]
    assert together(grown) == whole


@shapes
@dtypes
def test_garbage_in_scratch_does_not_matter(make: Make, shape: str, dtype: torch.dtype) -> None:
    decoder = make(shape, dtype)
    cache = after(decoder, random_tokens(20, seed=10, vocab=97))
    tokens = random_tokens(6, seed=11, vocab=97)
    clean = run(decoder, chain(cache, tokens))
    for count in (1, 2, 15, 16, 17, 300):  # the last makes the cache grow
        cache.discard()
        cache.place([-1] * count)  # and nobody writes them: they hold NaN
        parents = [-1, *range(count, count + 5)]
        assert run(decoder, Rows([(cache, tokens, parents)])) == clean, count


def test_poison_is_what_lies_in_unwritten_slots(make: Make) -> None:
    # or the tests above would prove nothing
    decoder = make("plain")
    cache = after(decoder, random_tokens(20, seed=10, vocab=97))
    cache.place([-1, -1])
    keys, values = cache.read(1)
    assert keys[20:].isnan().all()
    assert values[20:].isnan().all()
    assert cache._memory.keys[:, 22:].isnan().all()
    assert not keys[:20].isnan().any()


@shapes
@dtypes
def test_memory_that_nobody_wrote_does_not_matter(
    make: Make, shape: str, dtype: torch.dtype, poison: Callable[[], None]
) -> None:
    decoder, tokens = make(shape, dtype), random_tokens(30, seed=12, vocab=97)
    poisoned_cache, cache = decoder.new_cache(), decoder.new_cache()
    poisoned = read_committed(decoder, tokens, [13, 4], poisoned_cache)
    poison()
    assert read_committed(decoder, tokens, [13, 4], cache) == poisoned
    assert cache.digest() == poisoned_cache.digest()


# -- views ----------------------------------------------------------------------------------------------------------


@shapes
@dtypes
def test_rows_in_views_are_rows_in_the_cache(make: Make, shape: str, dtype: torch.dtype) -> None:
    decoder, tokens = make(shape, dtype), random_tokens(40, seed=13, vocab=97)
    whole = read_committed(decoder, tokens, [40])
    for lengths in ([16, 0], [17, 3], [5, 20]):
        first, second = lengths
        cache = after(decoder, tokens[:first])
        cache.place([-1] * 3)  # scratch of the cache is not the view's
        view = cache.view()
        outcomes = [read_committed(decoder, tokens[first : first + second], [7], view)] if second else []
        top = view.view()
        outcomes.append(read_committed(decoder, tokens[first + second : 35], [4], top))
        outcomes.append(read_in_scratch(decoder, tokens[35:], [2], top))
        rest = together(outcomes)
        assert all(rest.row(row) == whole.row(first + row) for row in range(40 - first)), lengths


# -- what a cache went through --------------------------------------------------------------------------------------


@shapes
@dtypes
def test_what_a_cache_went_through_does_not_matter(make: Make, shape: str, dtype: torch.dtype) -> None:
    decoder, tokens = make(shape, dtype), random_tokens(40, seed=15, vocab=97)
    fresh_cache = decoder.new_cache()
    fresh = read_committed(decoder, tokens, [40], fresh_cache)

    cache = decoder.new_cache()
    first = cache._memory.keys.data_ptr()
    read_committed(decoder, tokens[:20], [20], cache)
    run(decoder, Rows([(cache, random_tokens(9, seed=16, vocab=97), random_tree(9, seed=17))]))
    read_committed(decoder, random_tokens(250, seed=18, vocab=97), [250], discarded(cache))  # it grows
    assert cache._memory.keys.data_ptr() != first
    assert cache._memory.keys.shape[1] > 256
    cache.truncate(20)
    rows = Rows([(cache, [*tokens[20:23], 5, 6], [-1, 0, 1, 0, 1])])
    run(decoder, rows)
    cache.commit([0, 1, 2], rows.writer)
    read_committed(decoder, [1, 2, 3], [1], cache.view())
    rest = read_committed(decoder, tokens[23:], [5, 4], cache)
    assert all(rest.row(row) == fresh.row(23 + row) for row in range(17))
    assert cache.digest() == fresh_cache.digest()


def discarded(cache: Cache) -> Cache:
    """A cache without its scratch."""
    cache.discard()
    return cache
