"""A chain of greedy tokens in one call is the same steps one by one: tokens, keys, values and tags."""

from __future__ import annotations

import pytest
import torch

from foretoken.decoder.cache import Cache, new_writer
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import Rows, chain
from foretoken.errors import ContractError
from tests.decoder.models import random_tokens
from tests.decoder.outcomes import Make, after, dtypes, read_committed, shapes

pytestmark = pytest.mark.usefixtures("poison")


def single_steps(decoder: Decoder, cache: Cache, token: int, count: int) -> list[int]:
    """Each token from a pass of its own."""
    tokens: list[int] = []
    while len(tokens) < count:
        choice = decoder.run(chain(cache, [token])).choice(0)
        if choice is None:
            break
        token = choice
        tokens.append(token)
    return tokens


def scratch(cache: Cache, count: int) -> list[torch.Tensor]:
    """Keys and values of the first slots, layer by layer."""
    return [tensor[cache.length :][:count].clone() for layer in cache.layers for tensor in cache.read(layer)]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(a, b, strict=True))


def writers(cache: Cache) -> list[list[int]]:
    """The tags of all slots, layer by layer."""
    start = cache.length - cache.base
    tags: list[list[int]] = cache._memory.tags[:, start : start + cache.scratch].tolist()
    return tags


@shapes
@dtypes
def test_a_chain_is_single_steps(make: Make, shape: str, dtype: torch.dtype) -> None:
    decoder, prefix = make(shape, dtype), random_tokens(20, seed=1, vocab=97)
    for count in (1, 2, 17):
        one, other = after(decoder, prefix), after(decoder, prefix)
        tokens = decoder.draft_chain(one, 42, count).tokens
        assert tokens == single_steps(decoder, other, 42, count)
        assert len(tokens) == count
        assert (one.length, one.scratch) == (20, count)
        assert [one.position(slot) for slot in range(count)] == list(range(20, 20 + count))
        assert equal(scratch(one, count), scratch(other, count))


def test_a_chain_of_nothing_leaves_the_cache_alone(make: Make) -> None:
    decoder = make("plain")
    cache = after(decoder, [1, 2, 3])
    for count in (0, -1):
        assert decoder.draft_chain(cache, 4, count).tokens == []
    assert (cache.length, cache.scratch) == (3, 0)


@dtypes
def test_a_chain_can_be_committed_as_its_rows(make: Make, dtype: torch.dtype) -> None:
    decoder, prefix = make("plain", dtype), random_tokens(20, seed=1, vocab=97)
    one, other = after(decoder, prefix), after(decoder, prefix)
    writer = new_writer()
    tokens = decoder.draft_chain(one, 42, 6, writer=writer).tokens
    one.commit(range(4), writer)
    for token in [42, *tokens[:3]]:
        rows = chain(other, [token])
        decoder.forward(rows)
        other.commit([0], rows.writer)
    assert one.digest() == other.digest()
    assert decoder.draft_chain(one, tokens[3], 5).tokens == single_steps(decoder, other, tokens[3], 5)


def test_two_passes_of_one_writer_are_committed_as_one(make: Make) -> None:
    decoder, prefix = make("plain"), random_tokens(20, seed=1, vocab=97)
    one, other, writer = after(decoder, prefix), after(decoder, prefix), new_writer()
    decoder.forward(chain(one, [5, 6], writer=writer))
    tokens = decoder.draft_chain(one, 42, 3, writer=writer).tokens
    one.commit(range(5), writer)
    read_committed(decoder, [5, 6, 42, *tokens[:2]], [5], other)
    assert one.digest() == other.digest()


def test_two_chains_have_two_writers(make: Make) -> None:
    decoder = make("plain")
    cache = after(decoder, [1, 2, 3])
    decoder.draft_chain(cache, 4, 2)
    decoder.draft_chain(cache, 5, 2)
    for first, second, third, fourth in writers(cache):
        assert first == second != third == fourth
    with pytest.raises(ContractError, match="slot 2 of layer 0 was not written by the pass that commits it"):
        cache.commit(range(4), writers(cache)[0][0])


@dtypes
def test_a_chain_goes_on_from_what_lies_in_scratch(make: Make, dtype: torch.dtype) -> None:
    # the last of three slots is a branch: the chain's rows do not see the slot beside it
    decoder, prefix = make("window", dtype), random_tokens(20, seed=1, vocab=97)
    for tokens, parents in (([5], [-1]), ([5, 6, 7], [-1, 0, 0]), ([5, 6, 7], [-1, -1, -1])):
        one, other = after(decoder, prefix), after(decoder, prefix)
        for cache in (one, other):
            decoder.forward(Rows([(cache, tokens, parents)]))
        drafted = decoder.draft_chain(one, 42, 5).tokens
        assert drafted == single_steps(decoder, other, 42, 5)
        count = len(tokens) + 5
        assert equal(scratch(one, count), scratch(other, count))
        assert one.path(count - 1) == other.path(count - 1)
        # and as if the branch were all there is
        path = [tokens[slot] for slot in one.path(len(tokens) - 1)]
        assert drafted == single_steps(decoder, after(decoder, prefix + path), 42, 5)


@dtypes
def test_a_chain_in_a_view(make: Make, dtype: torch.dtype) -> None:
    decoder, prefix = make("plain", dtype), random_tokens(250, seed=1, vocab=97)
    cache = after(decoder, prefix)
    before = cache.digest()
    view = cache.view()
    rows = chain(view, [5, 6, 7])
    decoder.forward(rows)
    view.commit(range(3), rows.writer)
    top = view.view()
    # across the end of attention's first block
    assert decoder.draft_chain(top, 42, 8).tokens == single_steps(decoder, after(decoder, [*prefix, 5, 6, 7]), 42, 8)
    assert (cache.digest(), cache.scratch, view.scratch) == (before, 0, 0)


def test_a_chain_makes_the_cache_grow(make: Make) -> None:
    decoder, prefix = make("plain"), random_tokens(250, seed=1, vocab=97)
    one, other = after(decoder, prefix), after(decoder, prefix)
    capacity = one._memory.keys.shape[1]
    assert decoder.draft_chain(one, 42, 20).tokens == single_steps(decoder, other, 42, 20)
    assert one._memory.keys.shape[1] > capacity
    assert equal(scratch(one, 20), scratch(other, 20))


def test_a_chain_ends_at_a_nan(make: Make) -> None:
    decoder, prefix = make("plain"), random_tokens(20, seed=1, vocab=97)
    clean = decoder.draft_chain(after(decoder, prefix), 42, 8).tokens
    poisoned = next(at for at in range(1, 7) if clean[at] not in (*prefix, 42, *clean[:at]))
    decoder.weights.embedding[clean[poisoned]] = torch.nan
    one, other = after(decoder, prefix), after(decoder, prefix)
    # the token itself is chosen by a row before it; its own row has no choice
    assert decoder.draft_chain(one, 42, 8).tokens == single_steps(decoder, other, 42, 8) == clean[: poisoned + 1]
    computed = poisoned + 2  # the last of them holds NaN
    assert equal(scratch(one, computed - 1), scratch(other, computed - 1))
    for layer in writers(one):
        assert len(set(layer[:computed])) == 1
        assert set(layer[computed:]) == {0}, "a slot that nobody wrote has no writer"
    writer = writers(one)[0][0]
    with pytest.raises(ContractError, match=f"slot {computed} of layer 0 was not written by the pass that commits it"):
        one.commit(range(8), writer)
    one.commit(range(poisoned + 1), writer)
    read_committed(decoder, [42, *clean[:poisoned]], [1], expected := after(decoder, prefix))
    assert one.digest() == expected.digest()


def test_a_chain_whose_first_row_is_nan_is_empty(make: Make) -> None:
    decoder = make("plain")
    decoder.weights.embedding[42] = torch.nan
    assert decoder.draft_chain(after(decoder, [1, 2, 3]), 42, 5).tokens == []


@pytest.mark.parametrize("token", [-1, 97, 10**9])
def test_a_chain_from_a_token_that_does_not_exist_is_refused(make: Make, token: int) -> None:
    decoder = make("plain")
    cache = after(decoder, [1, 2, 3])
    with pytest.raises(ContractError, match="are not all within 0 to 96"):
        decoder.draft_chain(cache, token, 3)
    assert cache.scratch == 0
