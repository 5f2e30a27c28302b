"""A row's bits depend on the row and its ancestors alone: the promise that exact losslessness stands on.

Everything here is compared with `torch.equal`. Every test but one runs with poison: all memory of a cache that nothing
was written to holds NaN, so that a row which so much as touches it (a mask that multiplies by zero, say) shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.config import RopeConfig
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rope import RopeTable
from foretoken.decoder.rows import Rows, chain
from foretoken.errors import ContractError
from foretoken.kernels import rowwise
from tests.decoder.models import path_to, random_tokens, random_tree
from tests.tiny import tiny_decoder

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# widths that are no multiple of a vector, where kernels treat the rest of a row differently; a wide one whose products
# are worth splitting; windows, whose keys begin at any address
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd-widths": {
        "hidden_size": 100,
        "intermediate_size": 130,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "head_dim": 20,
    },
    "odd-heads": {
        "hidden_size": 33,
        "intermediate_size": 51,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 10,
    },
    "wide": {"vocab_size": 500, "hidden_size": 256, "intermediate_size": 520, "head_dim": 64, "num_hidden_layers": 1},
    "window": {"model_type": "mistral", "sliding_window": 12},
    "window-odd-heads": {"model_type": "mistral", "sliding_window": 13, "num_key_value_heads": 1, "head_dim": 10},
    "qwen3": {"model_type": "qwen3", "attention_bias": True},
}


def make(shape: str, dtype: torch.dtype = torch.float32, threads: int = 1, **changes: Any) -> Decoder:
    return tiny_decoder(seed=5, dtype=dtype, threads=threads, **{"num_hidden_layers": 2, **SHAPES[shape], **changes})


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Fill with NaN whatever lies beyond the slots that are already in use, each time that slots are placed. The test
    that asks for it can take it back."""
    place = Cache.place

    def place_in_poison(cache: Cache, parents: Sequence[int]) -> range:
        used = cache.length - cache.base + cache.scratch
        slots = place(cache, parents)
        cache._keys[:, used:] = torch.nan
        cache._values[:, used:] = torch.nan
        return slots

    monkeypatch.setattr(Cache, "place", place_in_poison)
    return lambda: monkeypatch.setattr(Cache, "place", place)


@dataclass(frozen=True)
class Outcome:
    """What some rows came to."""

    hidden: torch.Tensor
    logits: torch.Tensor
    stored: list[torch.Tensor]  # keys and values, layer by layer

    def row(self, row: int) -> Outcome:
        return Outcome(self.hidden[row], self.logits[row], [tensor[row] for tensor in self.stored])

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Outcome)
        mine, theirs = (
            [self.hidden, self.logits, *self.stored],
            [other.hidden, other.logits, *other.stored],
        )
        assert [tensor.shape for tensor in mine] == [tensor.shape for tensor in theirs]
        assert not any(tensor.isnan().any() for tensor in mine + theirs)
        return all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def run(decoder: Decoder, rows: Rows) -> Outcome:
    """One pass: what its rows came to, in the order in which they stand in it."""
    hidden = decoder.forward(rows)
    stored = []
    for layer in range(decoder.config.num_layers):
        read = [(segment, segment.cache.read(layer)) for segment in rows.segments]
        for which in (0, 1):
            parts = [
                both[which][segment.cache.length + segment.slots.start : segment.cache.length + segment.slots.stop]
                for segment, both in read
            ]
            stored.append(torch.cat(parts).clone())
    return Outcome(hidden, decoder.head(hidden), stored)


def together(outcomes: Sequence[Outcome]) -> Outcome:
    return Outcome(
        torch.cat([outcome.hidden for outcome in outcomes]),
        torch.cat([outcome.logits for outcome in outcomes]),
        [torch.cat(tensors) for tensors in zip(*(outcome.stored for outcome in outcomes), strict=True)],
    )


def pieces(tokens: list[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Cut a list; the last size is used again as often as needed."""
    sizes, start = list(sizes), 0
    while start < len(tokens):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        yield tokens[start : start + size]
        start += size


def read_committed(decoder: Decoder, tokens: list[int], sizes: Sequence[int], cache: Cache | None = None) -> Outcome:
    """Read a sequence chunk by chunk, each committed before the next."""
    cache = decoder.new_cache() if cache is None else cache
    outcomes = []
    for piece in pieces(tokens, sizes):
        rows = chain(cache, piece)
        outcomes.append(run(decoder, rows))
        cache.commit(range(len(rows)), rows.writer)
    return together(outcomes)


def read_in_scratch(decoder: Decoder, tokens: list[int], sizes: Sequence[int], cache: Cache | None = None) -> Outcome:
    """Read a sequence chunk by chunk and commit none."""
    cache = decoder.new_cache() if cache is None else cache
    return together([run(decoder, chain(cache, piece)) for piece in pieces(tokens, sizes)])


def after(decoder: Decoder, prefix: list[int]) -> Cache:
    """A cache with a prefix that was read in one pass."""
    cache = decoder.new_cache()
    read_committed(decoder, prefix, [len(prefix)], cache)
    return cache


shapes = pytest.mark.parametrize("shape", SHAPES)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


# -- how a sequence is cut ------------------------------------------------------------------------------------------


def compare_chunks(decoder: Decoder, tokens: list[int], sizes: Sequence[int]) -> None:
    whole_cache = decoder.new_cache()
    whole = read_committed(decoder, tokens, [len(tokens)], whole_cache)
    for size in sizes:
        cache = decoder.new_cache()
        assert read_committed(decoder, tokens, [size], cache) == whole, size
        assert cache.digest() == whole_cache.digest(), size


@shapes
@dtypes
def test_chunk_size_does_not_matter(shape: str, dtype: torch.dtype) -> None:
    compare_chunks(make(shape, dtype), random_tokens(70, seed=1, vocab=97), (1, 2, 3, 7, 16, 17, 64))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [("odd-widths", torch.float32), ("window", torch.float16), ("wide", torch.float32), ("wide", torch.bfloat16)],
    ids=str,
)
def test_chunk_size_does_not_matter_on_two_threads(shape: str, dtype: torch.dtype) -> None:
    # few passes: where the second thread must wait for a processor, each product takes milliseconds
    decoder = make(shape, dtype, threads=2, num_hidden_layers=1)
    compare_chunks(decoder, random_tokens(18, seed=1, vocab=97), (7, 17))


@pytest.mark.parametrize("shape", ["plain", "odd-widths", "window"])
@dtypes
def test_crossing_256_positions_does_not_matter(shape: str, dtype: torch.dtype) -> None:
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
def test_keys_in_scratch_are_keys_in_the_prefix(shape: str, dtype: torch.dtype) -> None:
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
def test_the_number_of_siblings_does_not_matter(shape: str, dtype: torch.dtype) -> None:
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
def test_other_sequences_in_the_pass_do_not_matter(shape: str, dtype: torch.dtype) -> None:
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
def test_a_row_in_a_tree_is_the_row_in_a_chain(shape: str, dtype: torch.dtype) -> None:
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
def test_a_tree_that_grows_over_several_passes_is_the_tree_in_one(shape: str, dtype: torch.dtype) -> None:
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
def test_garbage_in_scratch_does_not_matter(shape: str, dtype: torch.dtype) -> None:
    decoder = make(shape, dtype)
    cache = after(decoder, random_tokens(20, seed=10, vocab=97))
    tokens = random_tokens(6, seed=11, vocab=97)
    clean = run(decoder, chain(cache, tokens))
    for count in (1, 2, 15, 16, 17, 300):  # the last makes the cache grow
        cache.discard()
        cache.place([-1] * count)  # and nobody writes them: they hold NaN
        parents = [-1, *range(count, count + 5)]
        assert run(decoder, Rows([(cache, tokens, parents)])) == clean, count


@dtypes
def test_the_address_at_which_a_window_begins_does_not_matter(dtype: torch.dtype) -> None:
    # with 64 keys and heads of 10 without groups, MKL's product is another one where the first key is not aligned
    heads = {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 10}
    decoder = make("window", dtype, sliding_window=64, num_hidden_layers=1, **heads)
    for prefix in range(64, 72):
        cache = after(decoder, random_tokens(prefix, seed=10, vocab=97))
        in_place = run(decoder, chain(cache, [42]))
        gathered = run(decoder, Rows([(cache, [42], [-1])]))  # behind the scratch of the first
        assert gathered == in_place, prefix


def test_poison_is_what_lies_in_unwritten_slots() -> None:
    # or the tests above would prove nothing
    decoder = make("plain")
    cache = after(decoder, random_tokens(20, seed=10, vocab=97))
    cache.place([-1, -1])
    keys, values = cache.read(1)
    assert keys[20:].isnan().all()
    assert values[20:].isnan().all()
    assert cache._keys[:, 22:].isnan().all()
    assert not keys[:20].isnan().any()


@shapes
@dtypes
def test_memory_that_nobody_wrote_does_not_matter(shape: str, dtype: torch.dtype, poison: Callable[[], None]) -> None:
    decoder, tokens = make(shape, dtype), random_tokens(30, seed=12, vocab=97)
    poisoned_cache, cache = decoder.new_cache(), decoder.new_cache()
    poisoned = read_committed(decoder, tokens, [13, 4], poisoned_cache)
    poison()
    assert read_committed(decoder, tokens, [13, 4], cache) == poisoned
    assert cache.digest() == poisoned_cache.digest()


# -- views ----------------------------------------------------------------------------------------------------------


@shapes
@dtypes
def test_rows_in_views_are_rows_in_the_cache(shape: str, dtype: torch.dtype) -> None:
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


# -- threads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "dtype"), [("odd-widths", torch.float32), ("wide", torch.float32), ("wide", torch.bfloat16)], ids=str
)
def test_the_number_of_threads_of_the_process_does_not_matter(shape: str, dtype: torch.dtype, threads: int) -> None:
    tokens = random_tokens(19, seed=14, vocab=97)
    before = torch.get_num_threads()
    outcomes = []
    try:
        for of_process in (1, 2):
            torch.set_num_threads(of_process)
            decoder = make(shape, dtype, threads, num_hidden_layers=1)
            outcomes.append(read_committed(decoder, tokens, [17, 1]))
            assert torch.get_num_threads() == of_process  # as it was found
    finally:
        torch.set_num_threads(before)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("threads", [1, 2])
def test_every_product_of_a_pass_runs_on_the_decoder_s_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # the bits of most products are the same on two threads as on one, so that the test above would not notice
    seen: list[int] = []
    linear, attention = rowwise.linear, rowwise.attention

    def watched_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return linear(x, weight, bias)

    def watched_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return attention(query, keys, values)

    monkeypatch.setattr(rowwise, "linear", watched_linear)
    monkeypatch.setattr(rowwise, "attention", watched_attention)
    decoder = make("plain", threads=threads, num_hidden_layers=1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - threads)
        decoder.head(decoder.forward(chain(decoder.new_cache(), [1, 2])))
    finally:
        torch.set_num_threads(before)
    assert seen == [threads] * (7 + 2 + 1)  # 7 layers' products, 2 rows' attention, the head


def test_the_number_of_threads_is_restored_after_an_error() -> None:
    decoder = make("plain", threads=2)
    rows = Rows([(decoder.new_cache(range(1)), [1], [-1])])  # a cache that lacks layer 1
    before = torch.get_num_threads()
    with pytest.raises(ContractError, match="layer 1 is not in this view"):
        decoder.forward(rows)
    assert torch.get_num_threads() == before == 1


def test_a_decoder_keeps_the_number_of_threads_that_it_was_made_under() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        decoder = tiny_decoder()
    finally:
        torch.set_num_threads(before)
    assert decoder.threads == 2
    assert tiny_decoder(threads=3).threads == 3


# -- linear layers --------------------------------------------------------------------------------------------------


def products_differ(weight: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether a row of x comes to something else among the others than it does alone."""
    among = rowwise.linear(x, weight, None)
    return any(not torch.equal(rowwise.linear(x[row : row + 1], weight, None)[0], among[row]) for row in range(len(x)))


@pytest.mark.parametrize("outputs", range(1, 13))
def test_a_narrow_linear_layer_treats_rows_alike(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # MKL's float32 product with 2 to 11 outputs, and inputs that are no multiple of 4, does not (torch 2.13, AVX-512)
    monkeypatch.setattr(rowwise, "_blocks", {})
    generator = torch.Generator().manual_seed(outputs)
    differ = [
        inputs
        for inputs in range(1, 48)
        if products_differ(
            torch.randn((outputs, inputs), generator=generator), torch.randn((20, inputs), generator=generator)
        )
    ]
    assert differ == []


def test_what_one_model_s_weights_showed_of_a_shape_is_not_believed_of_another_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rowwise, "_blocks", {})
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn((20, 33), generator=generator), torch.randn((10, 33), generator=generator)
    assert not products_differ(torch.zeros(10, 33), x)  # all places of a block are alike to a layer of zeros
    assert not products_differ(weight, x)


# -- norms ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [100, 40_001])
def test_a_norm_treats_rows_alike_on_two_threads(width: int) -> None:
    # a mean over 40,001 numbers is split between threads where there is one row, and rows are where there are many
    x, weight = torch.randn((17, width), generator=torch.Generator().manual_seed(0)), torch.ones(width)
    with rowwise.pinned_threads(2):
        together = rowwise.rms_norm(x, weight, 1e-6)
        for row in range(17):
            assert torch.equal(rowwise.rms_norm(x[row : row + 1], weight, 1e-6)[0], together[row]), row


# -- rotations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [8, 10, 128])
@pytest.mark.parametrize("kind", ["default", "dynamic", "yarn"])
def test_a_rotation_does_not_depend_on_which_positions_were_asked_for_before(kind: str, head_dim: int) -> None:
    config = RopeConfig(type=kind, factor=4.0, original=100)
    positions = [0, 1, 99, 100, 255, 256, 300, 1000]
    table = RopeTable(config, head_dim, torch.device("cpu"))
    at_once = table(positions)
    for position in reversed(positions):
        alone = RopeTable(config, head_dim, torch.device("cpu"))([position])
        later = table([position])
        for both in zip(at_once, alone, later, strict=True):
            assert torch.equal(both[0][positions.index(position)], both[1][0])
            assert torch.equal(both[1], both[2])
