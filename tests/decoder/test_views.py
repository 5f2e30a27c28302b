"""Views: what they read of the caches under them, and what they write in themselves. Then anything in any order."""

from __future__ import annotations

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
from foretoken.errors import ContractError
from tests.decoder.models import path_to
from tests.decoder.named_rows import extend, fill, holds, new_cache, plain, refused, rows_of

# -- reading and writing -----------------------------------------------------------------------------------------------


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
    before, storage = cache.digest(), cache._memory.keys.clone()
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
    assert torch.equal(cache._memory.keys[:, :5], storage[:, :5])
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
    with refused(message):
        top.addresses()
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
