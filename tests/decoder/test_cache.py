"""Prefix, scratch and digests, and every refusal. Views are in `test_views.py`."""

from __future__ import annotations

import pytest
import torch

from foretoken.decoder.cache import new_writer
from foretoken.decoder.rows import Rows, chain
from foretoken.errors import ContractError
from tests.decoder.models import path_to, random_tokens, random_tree
from tests.decoder.named_rows import (
    HEAD_DIM,
    KV_HEADS,
    LAYERS,
    extend,
    fill,
    holds,
    new_cache,
    plain,
    refused,
    rows_of,
)
from tests.tiny import tiny_decoder

# -- scratch and commit ---------------------------------------------------------------------------------------------


def test_a_new_cache_is_empty() -> None:
    cache = new_cache()
    assert (cache.length, cache.scratch, cache.base) == (0, 0, 0)
    assert holds(cache, [])
    assert cache.digest() == new_cache().digest()


def test_writers_are_never_the_same() -> None:
    assert len({new_writer() for _ in range(100)}) == 100


def test_positions_and_paths_of_a_tree() -> None:
    cache = plain([1, 2, 3])
    assert cache.place([-1, 0, 0]) == range(3)
    assert cache.place([2, -1, 3]) == range(3, 6)
    assert [cache.position(slot) for slot in range(6)] == [3, 4, 4, 5, 3, 6]
    assert cache.path(5) == [0, 2, 3, 5]
    assert cache.path(4) == [4]
    assert (cache.length, cache.scratch) == (3, 6)


def test_a_committed_chain_is_the_plain_sequence() -> None:
    cache = new_cache()
    extend(cache, [1, 2, 3])
    extend(cache, [4])
    extend(cache, [5, 6])
    assert holds(cache, [1, 2, 3, 4, 5, 6])
    assert cache.digest() == plain([1, 2, 3, 4, 5, 6]).digest()


def test_a_committed_part_of_a_chain_forgets_the_rest() -> None:
    cache = plain([1])
    writer = fill(cache, [2, 3, 4, 5])
    cache.commit([0, 1], writer)
    assert holds(cache, [1, 2, 3])
    assert cache.digest() == plain([1, 2, 3]).digest()


@pytest.mark.parametrize("path", [[0], [3], [0, 2], [0, 1, 4, 6], [3, 5], []])
def test_a_committed_path_of_a_tree_is_the_plain_sequence(path: list[int]) -> None:
    names, parents = [10, 11, 12, 13, 14, 15, 16], [-1, 0, 0, -1, 1, 3, 4]
    cache = plain([1, 2])
    cache.commit(path, fill(cache, names, parents))
    expected = [1, 2, *(names[slot] for slot in path)]
    assert holds(cache, expected)
    assert cache.digest() == plain(expected).digest()
    extend(cache, [50])  # and it goes on as if nothing had been
    assert cache.digest() == plain([*expected, 50]).digest()


def test_rows_of_a_decoder_s_tree_are_committed_as_the_plain_sequence_has_them(arithmetic: str) -> None:
    decoder = tiny_decoder(threads=1, arithmetic=arithmetic)
    prefix, tokens, parents = random_tokens(7, 1), random_tokens(12, 2), random_tree(12, 3)
    path = max((path_to(parents, row) for row in range(12)), key=len)
    assert path != list(range(len(path)))  # or nothing would have to be moved
    cache, sequence = decoder.new_cache(), decoder.new_cache()
    for tokens_read in (prefix, [tokens[slot] for slot in path]):
        rows = chain(sequence, [token % 97 for token in tokens_read])
        decoder.forward(rows)
        sequence.commit(range(len(rows)), rows.writer)
    rows = chain(cache, [token % 97 for token in prefix])
    decoder.forward(rows)
    cache.commit(range(7), rows.writer)
    rows = Rows([(cache, [token % 97 for token in tokens], parents)])
    decoder.forward(rows)
    cache.commit(path, rows.writer)
    assert cache.length == sequence.length
    assert cache.digest() == sequence.digest()


def test_discarded_scratch_leaves_nothing() -> None:
    cache = plain([1, 2])
    fill(cache, [7, 8, 9], [-1, -1, 1])
    cache.discard()
    assert holds(cache, [1, 2])
    writer = fill(cache, [3])
    assert holds(cache, [1, 2], [3])
    cache.commit([0], writer)
    assert holds(cache, [1, 2, 3])


def test_truncating_keeps_the_first_positions_and_forgets_scratch() -> None:
    cache = plain([1, 2, 3, 4])
    fill(cache, [9])
    cache.truncate(4)
    assert holds(cache, [1, 2, 3, 4])
    cache.truncate(2)
    assert holds(cache, [1, 2])
    assert cache.digest() == plain([1, 2]).digest()
    extend(cache, [5])
    assert holds(cache, [1, 2, 5])
    cache.truncate(0)
    assert holds(cache, [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_growing_keeps_prefix_scratch_and_tags(dtype: torch.dtype) -> None:
    cache = new_cache(dtype=dtype)
    extend(cache, range(200))
    before = cache.digest()
    writer = fill(cache, [200, 201])
    held = [tensor.clone() for layer in cache.layers for tensor in cache.read(layer)]
    capacity = cache._memory.keys.shape[1]
    cache.place([-1] * 1000)
    assert cache._memory.keys.shape[1] > capacity
    assert cache.digest() == before
    now = [tensor[:202] for layer in cache.layers for tensor in cache.read(layer)]
    assert all(torch.equal(a, b) for a, b in zip(now, held, strict=True))
    cache.commit([0, 1], writer)  # which needs the tags of before
    assert cache.length == 202


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_is_read_is_rounded_to_the_cache_s_type(dtype: torch.dtype) -> None:
    cache = new_cache(dtype=dtype)
    exact = torch.full((1, KV_HEADS, HEAD_DIM), 1 + 2**-12)
    cache.write(0, cache.place([-1]), exact, exact, new_writer())
    for tensor in cache.read(0):
        assert tensor.dtype == dtype
        assert torch.equal(tensor, torch.ones_like(tensor))


# -- digests --------------------------------------------------------------------------------------------------------


def test_digests_are_equal_where_bits_are_and_only_there() -> None:
    assert plain([1, 2, 3]).digest() == plain([1, 2, 3]).digest()
    others = [plain([1, 2]), plain([1, 2, 4]), plain([1, 3, 2]), plain([1, 2, 3, 0]), plain([1, 2, 3], range(2))]
    digests = {cache.digest() for cache in [plain([1, 2, 3]), *others]}
    assert len(digests) == 6


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("which", ["keys", "values"])
@pytest.mark.parametrize("at", [(0, 0, 0), (1, 1, 3)])
def test_a_digest_sees_the_last_bit_of_every_number(layer: int, which: str, at: tuple[int, int, int]) -> None:
    cache = plain([1, 2])
    before = cache.digest()
    number = getattr(cache._memory, which)[layer][at]
    assert number != 0
    getattr(cache._memory, which).view(torch.int32)[layer][at] ^= 1
    assert cache.digest() != before
    getattr(cache._memory, which).view(torch.int32)[layer][at] ^= 1
    assert cache.digest() == before


def test_a_digest_tells_the_two_zeros_apart_and_calls_a_nan_itself() -> None:
    def of(number: float) -> str:
        cache = new_cache()
        writer, slots, tensor = new_writer(), cache.place([-1]), torch.full((1, KV_HEADS, HEAD_DIM), number)
        for layer in cache.layers:
            cache.write(layer, slots, tensor, tensor, writer)
        cache.commit([0], writer)
        return cache.digest()

    assert of(0.0) != of(-0.0)
    assert of(float("nan")) == of(float("nan"))


def test_a_digest_does_not_see_scratch_or_what_lies_beyond() -> None:
    cache = plain([1, 2])
    before = cache.digest()
    fill(cache, [9, 8])
    assert cache.digest() == before
    cache._memory.keys[:, 2:] = torch.nan
    assert cache.digest() == before


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("slot", [0, 1])
def test_a_row_that_another_writer_wrote_in_one_layer_is_not_committed(layer: int, slot: int) -> None:
    cache = plain([1])
    before = cache.digest()
    writer = fill(cache, [2, 3, 4])
    cache.write(layer, range(slot, slot + 1), *rows_of([66], layer), new_writer())
    with refused(f"slot {slot} of layer {layer} was not written by the pass that commits it"):
        cache.commit([0, 1], writer)
    assert cache.length == 1
    assert cache.digest() == before
    assert cache.scratch == 3  # nothing has happened


def test_a_strange_row_beside_the_path_is_no_matter() -> None:
    cache = plain([1])
    writer = fill(cache, [2, 3, 4], [-1, -1, 0])
    cache.write(1, range(1, 2), *rows_of([66], 1), new_writer())
    cache.commit([0, 2], writer)
    assert holds(cache, [1, 2, 4])


def test_a_layer_of_a_view_is_named_by_its_own_number() -> None:
    cache = plain([1], range(4, 6))
    writer = fill(cache, [2])
    cache.write(5, range(1), *rows_of([66], 5), new_writer())
    with refused("slot 0 of layer 5 was not written by the pass that commits it"):
        cache.commit([0], writer)


def test_a_row_that_nobody_wrote_is_not_committed() -> None:
    cache = new_cache()
    writer = fill(cache, [1])
    cache.place([0])
    with refused("slot 1 of layer 0 was not written by the pass that commits it"):
        cache.commit([0, 1], writer)


def test_a_row_that_was_written_in_some_layers_is_not_committed() -> None:
    cache, writer = new_cache(), new_writer()
    slots = cache.place([-1])
    for layer in range(LAYERS - 1):
        cache.write(layer, slots, *rows_of([1], layer), writer)
    with refused("slot 0 of layer 2 was not written by the pass that commits it"):
        cache.commit([0], writer)


@pytest.mark.parametrize("forget", ["discard", "commit", "truncate"])
def test_a_slot_that_is_placed_again_has_lost_its_writer(forget: str) -> None:
    cache = plain([1])
    writer = fill(cache, [2, 3])
    if forget == "discard":
        cache.discard()
    elif forget == "commit":
        cache.commit([0], writer)
    else:
        cache.truncate(1)
    cache.place([-1])
    with refused("slot 0 of layer 0 was not written by the pass that commits it"):
        cache.commit([0], writer)


@pytest.mark.parametrize("path", [[1], [0, 2], [0, 0], [0, 1, 2, 3], [3, 4], [1, 0], [5], [-1], [0, 5], [0, -1]])
def test_what_is_not_a_path_is_not_committed(path: list[int]) -> None:
    cache = plain([1])
    writer = fill(cache, [2, 3, 4, 5, 6], [-1, 0, 1, -1, -1])
    with refused(f"slots {path} are not a path from the end of the prefix"):
        cache.commit(path, writer)
    assert holds(cache, [1], [2, 3, 4, 5, 6])


@pytest.mark.parametrize("parents", [[0], [1], [-2], [-1, 1], [-1, 0, 7]])
def test_a_parent_that_does_not_exist_is_refused(parents: list[int]) -> None:
    slot = next(at for at, parent in enumerate(parents) if not -1 <= parent < at)
    with refused(f"slot {slot} was given parent {parents[slot]}; expected an earlier slot, or -1"):
        new_cache().place(parents)


def test_a_refused_placement_has_not_happened() -> None:
    cache = plain([1])
    fill(cache, [2])
    with pytest.raises(ContractError, match="slot 2 was given parent 9"):
        cache.place([0, 9])
    assert holds(cache, [1], [2])


@pytest.mark.parametrize("parents", [[-1], [-1, 0, 1]])
def test_rows_with_more_or_fewer_parents_than_tokens_are_refused(parents: list[int]) -> None:
    # a single row would be written to all slots, and three slots committed for one token
    cache = tiny_decoder(threads=1).new_cache()
    with pytest.raises(ContractError):
        Rows([(cache, [1, 2] if len(parents) == 1 else [1], parents)])


@pytest.mark.parametrize("length", [-1, 3, 100])
def test_a_length_that_is_not_there_is_refused(length: int) -> None:
    cache = plain([1, 2])
    with refused(f"cannot truncate to {length}; expected 0 to 2"):
        cache.truncate(length)
    assert holds(cache, [1, 2])


def test_a_copy_holds_the_first_positions_and_goes_its_own_way() -> None:
    cache = plain([1, 2, 3, 4])
    fill(cache, [9])  # what lies in scratch is nobody's
    other = cache.copy(3)
    assert (other.length, other.scratch) == (3, 0)
    assert holds(other, [1, 2, 3])
    extend(other, [7, 8])
    cache.discard()
    assert holds(other, [1, 2, 3, 7, 8])
    assert holds(cache, [1, 2, 3, 4])
    assert cache.copy(0).digest() == new_cache().digest()


@pytest.mark.parametrize("length", [-1, 4])
def test_more_than_there_is_cannot_be_copied(length: int) -> None:
    with refused(f"cannot copy {length} positions; expected up to 3, and no view"):
        plain([1, 2, 3]).copy(length)


def test_a_view_cannot_be_copied() -> None:
    with refused("cannot copy 1 positions; expected up to 3, and no view"):
        plain([1, 2, 3]).view().copy(1)
