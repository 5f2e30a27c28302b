"""Prefix and scratch, views, and every refusal. Keys and values are numbers that say who they are."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from foretoken.decoder.cache import Cache, new_writer
from foretoken.decoder.rows import Rows, chain
from foretoken.errors import ContractError
from tests.decoder.models import path_to, random_tokens, random_tree
from tests.tiny import tiny_decoder

LAYERS, KV_HEADS, HEAD_DIM = 3, 2, 4


def new_cache(layers: range = range(LAYERS), dtype: torch.dtype = torch.float32) -> Cache:
    return Cache(layers, KV_HEADS, HEAD_DIM, dtype, torch.device("cpu"))


def rows_of(names: Sequence[int], layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of rows in a layer: numbers that no other row, layer, head or dimension has, exact in float32."""
    keys = torch.tensor([[float(name % 2048 * 8 + layer)] for name in names]).view(-1, 1, 1)
    inner = torch.arange(KV_HEADS * HEAD_DIM).view(1, KV_HEADS, HEAD_DIM) / 1024
    return keys + inner, -keys - inner


def fill(cache: Cache, names: Sequence[int], parents: Sequence[int] | None = None) -> int:
    """Place rows (a chain after the prefix if no parents are given), write them in all layers; returns the writer."""
    writer = new_writer()
    slots = cache.place(range(-1, len(names) - 1) if parents is None else parents)
    for layer in cache.layers:
        cache.write(layer, slots, *rows_of(names, layer), writer)
    return writer


def extend(cache: Cache, names: Sequence[int]) -> None:
    """Commit rows to the end of the prefix."""
    cache.commit(range(len(names)), fill(cache, names))


def holds(cache: Cache, names: Sequence[int], slots: Sequence[int] = ()) -> bool:
    """Whether the prefix, then scratch, are these rows in every layer."""
    if cache.length != len(names) or cache.scratch != len(slots):
        return False
    expected = [rows_of([*names, *slots], layer) for layer in cache.layers]
    return all(
        torch.equal(mine, theirs)
        for layer, both in zip(cache.layers, expected, strict=True)
        for mine, theirs in zip(cache.read(layer), both, strict=True)
    )


def plain(names: Sequence[int], layers: range = range(LAYERS)) -> Cache:
    """A cache without history: the rows one by one."""
    cache = new_cache(layers)
    for name in names:
        extend(cache, [name])
    return cache


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


def test_rows_of_a_decoder_s_tree_are_committed_as_the_plain_sequence_has_them() -> None:
    decoder = tiny_decoder(threads=1)
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
    capacity = cache._keys.shape[1]
    cache.place([-1] * 1000)
    assert cache._keys.shape[1] > capacity
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
@pytest.mark.parametrize("which", ["_keys", "_values"])
@pytest.mark.parametrize("at", [(0, 0, 0), (1, 1, 3)])
def test_a_digest_sees_the_last_bit_of_every_number(layer: int, which: str, at: tuple[int, int, int]) -> None:
    cache = plain([1, 2])
    before = cache.digest()
    number = getattr(cache, which)[layer][at]
    assert number != 0
    getattr(cache, which).view(torch.int32)[layer][at] ^= 1
    assert cache.digest() != before
    getattr(cache, which).view(torch.int32)[layer][at] ^= 1
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
    cache._keys[:, 2:] = torch.nan
    assert cache.digest() == before


# -- views ----------------------------------------------------------------------------------------------------------


def test_a_view_reads_its_parent_s_prefix_and_not_its_scratch() -> None:
    cache = plain([1, 2, 3])
    fill(cache, [90, 91])
    view = cache.view()
    assert (view.base, view.length, view.scratch) == (3, 3, 0)
    assert holds(view, [1, 2, 3])
    assert view.digest() == cache.digest()
    assert holds(cache, [1, 2, 3], [90, 91])


def test_a_view_writes_and_commits_in_itself_and_never_changes_its_parent() -> None:
    cache = plain([1, 2, 3])
    writer = fill(cache, [90, 91])
    before, storage = cache.digest(), cache._keys.clone()
    view = cache.view()
    view.commit([0, 2], fill(view, [10, 11, 12], [-1, 0, 0]))
    fill(view, [20, 21])
    assert holds(view, [1, 2, 3, 10, 12], [20, 21])
    view.discard()
    extend(view, range(300))  # it grows
    view.truncate(4)
    assert holds(view, [1, 2, 3, 10])
    assert view.digest() == plain([1, 2, 3, 10]).digest()

    assert cache.digest() == before
    assert torch.equal(cache._keys[:, :5], storage[:, :5])
    assert holds(cache, [1, 2, 3], [90, 91])
    cache.commit([0, 1], writer)  # its scratch is still its own
    assert holds(cache, [1, 2, 3, 90, 91])


def test_a_view_on_an_empty_cache() -> None:
    view = new_cache().view()
    extend(view, [1, 2])
    assert holds(view, [1, 2])


def test_a_view_keeps_its_place_while_its_parent_goes_on() -> None:
    cache = plain([1, 2])
    view = cache.view()
    extend(view, [10])
    extend(cache, range(3, 300))  # its parent's memory moves
    assert holds(view, [1, 2, 10])
    assert cache.length == 299


def test_views_stack() -> None:
    bottom = plain([1, 2])
    middle = bottom.view()
    extend(middle, [10, 11])
    top = middle.view()
    extend(top, [20])
    sibling = middle.view()
    extend(sibling, [30, 31])
    fill(top, [21])
    assert holds(top, [1, 2, 10, 11, 20], [21])
    assert holds(sibling, [1, 2, 10, 11, 30, 31])
    assert holds(middle, [1, 2, 10, 11])
    assert holds(bottom, [1, 2])
    assert (top.base, middle.base, bottom.base) == (4, 2, 0)
    assert top.digest() == plain([1, 2, 10, 11, 20]).digest()


def test_a_view_of_some_layers_reads_writes_and_commits_those() -> None:
    cache = plain([1, 2])
    view = cache.view(range(1, 3))
    extend(view, [10])
    assert holds(view, [1, 2, 10])
    assert view.digest() == plain([1, 2, 10], range(1, 3)).digest()
    deeper = view.view(range(2, 3))
    extend(deeper, [11])
    assert holds(deeper, [1, 2, 10, 11])


def test_a_cache_of_some_layers_knows_them_by_their_own_numbers() -> None:
    cache = plain([1, 2], range(2, 5))
    assert holds(cache, [1, 2])
    assert torch.equal(cache.read(4)[0], rows_of([1, 2], 4)[0])


# -- refusals -------------------------------------------------------------------------------------------------------


def refused(message: str) -> pytest.RaisesExc[ContractError]:
    """A ContractError with this message, whole and in one line."""
    assert "\n" not in message
    return pytest.raises(ContractError, match=f"^{re.escape(message)}$")


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


def test_a_view_is_not_truncated_into_its_parent() -> None:
    view = plain([1, 2]).view()
    extend(view, [3])
    with refused("cannot truncate to 1; expected 2 to 3"):
        view.truncate(1)
    view.truncate(2)
    assert holds(view, [1, 2])


@pytest.mark.parametrize("layer", [0, 2, -1])
def test_a_layer_outside_the_view_is_refused(layer: int) -> None:
    view = plain([1]).view(range(1, 2))
    message = f"layer {layer} is not in this view, which covers range(1, 2)"
    with refused(message):
        view.read(layer)
    slots = view.place([-1])
    with refused(message):
        view.write(layer, slots, *rows_of([1], 1), new_writer())
    with refused(message):
        view.view(range(layer, layer + 1))


@pytest.mark.parametrize("which", ["first", "second"])
def test_a_view_whose_parent_was_truncated_is_refused_however_deep(which: str) -> None:
    cache = plain([1, 2, 3])
    middle = cache.view()
    extend(middle, [4, 5])
    top = middle.view()
    extend(top, [6])
    shortened = cache if which == "first" else middle
    shortened.truncate(shortened.length - 1)
    extend(shortened, [9])  # as long as it was before, but not the same
    message = "the cache under this view was truncated; make a new view each round"
    with refused(message):
        top.read(0)
    with refused(message):
        top.digest()
    if which == "first":
        with refused(message):
            middle.read(0)
    else:
        assert holds(middle, [1, 2, 3, 4, 9])
    assert holds(cache.view(), [1, 2, 9] if which == "first" else [1, 2, 3])


def test_a_truncation_that_takes_nothing_leaves_views_alone() -> None:
    cache = plain([1, 2, 3])
    view = cache.view()
    cache.truncate(3)
    assert holds(view, [1, 2, 3])


# -- anything, in any order -----------------------------------------------------------------------------------------


class CacheAgainstLists(RuleBasedStateMachine):
    """A stack of views, and beside each a list of the rows that it must hold. Only the top is written to."""

    @initialize()
    def start(self) -> None:
        self.name = 0
        self.caches = [new_cache()]
        self.prefixes: list[list[int]] = [[]]
        self.forget()

    def forget(self) -> None:
        self.slots: list[int] = []
        self.parents: list[int] = []
        self.writers: list[int] = []

    @property
    def top(self) -> Cache:
        return self.caches[-1]

    @rule(data=st.data(), count=st.integers(1, 6))
    def place_and_write(self, data: st.DataObject, count: int) -> None:
        parents = [data.draw(st.integers(-1, len(self.slots) + at - 1)) for at in range(count)]
        names = [self.name + at for at in range(count)]
        self.name += count
        self.writers += [fill(self.top, names, parents)] * count
        self.slots += names
        self.parents += parents

    @rule(count=st.integers(250, 270))
    @precondition(lambda self: len(self.prefixes[-1]) < 400)
    def read_a_long_text(self, count: int) -> None:
        names = [self.name + at for at in range(count)]
        self.name += count
        self.top.discard()
        extend(self.top, names)
        self.prefixes[-1] += names
        self.forget()

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        path = path_to(self.parents, data.draw(st.integers(-1, len(self.slots) - 1)))
        writers = {self.writers[slot] for slot in path}
        if len(writers) > 1:  # rows of two passes
            with pytest.raises(ContractError, match="was not written by the pass that commits it"):
                self.top.commit(path, self.writers[path[0]])
            return
        self.top.commit(path, writers.pop() if writers else 0)
        self.prefixes[-1] += [self.slots[slot] for slot in path]
        self.forget()

    @rule()
    def discard(self) -> None:
        self.top.discard()
        self.forget()

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(self.top.base, self.top.length))
        self.top.truncate(length)
        del self.prefixes[-1][length:]
        self.forget()

    @precondition(lambda self: len(self.caches) < 4)
    @rule()
    def view(self) -> None:
        self.top.discard()
        self.caches.append(self.top.view())
        self.prefixes.append(list(self.prefixes[-1]))
        self.forget()

    @precondition(lambda self: len(self.caches) > 1)
    @rule()
    def throw_the_view_away(self) -> None:
        self.caches.pop()
        self.prefixes.pop()
        self.forget()

    @invariant()
    def every_cache_holds_what_its_list_says(self) -> None:
        for cache, prefix in zip(self.caches[:-1], self.prefixes, strict=False):
            assert holds(cache, prefix)
        assert holds(self.top, self.prefixes[-1], self.slots)


def test_any_sequence_of_operations_is_what_lists_would_do() -> None:
    run_state_machine_as_test(
        CacheAgainstLists,
        settings=settings(
            max_examples=30,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
