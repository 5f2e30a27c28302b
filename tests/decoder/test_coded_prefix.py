"""Drafts read old keys and values in int8: with every instruction set what the reference gives, and never a target."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.coded_prefix import CodedPrefix
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import Rows, chain
from foretoken.formats.table import PLACES
from foretoken.formats.weight import bytes_of_places
from tests.decoder.models import random_tokens, random_tree
from tests.decoder.native import dtypes, expect_same, random_prefix, reference_of
from tests.isas import HERE
from tests.kernels.numbers import same
from tests.reference_decoder import Part, ReferenceDecoder, committed
from tests.tiny import needs_native

pytestmark = needs_native

GROUPS = {"num_attention_heads": 8, "num_key_value_heads": 2}


def drafting(reference: ReferenceDecoder, threads: int = 2, **more: Any) -> list[Decoder]:
    """Decoders that read old keys and values in int8, one for each instruction set."""
    made = [
        Decoder(
            reference.config, reference.weights, threads=threads, arithmetic=f"native {isa}", codes_places=True, **more
        )
        for isa in HERE
    ]
    assert all(decoder.codes_places for decoder in made)
    return made


def text_of(decoder: Decoder, length: int, seed: int = 1) -> Cache:
    cache = decoder.new_cache()
    random_prefix(decoder, cache, length, seed)
    return cache


def expect_on_views(
    reference: ReferenceDecoder, length: int, parents: list[int], own: int = 0, coded: int = -1
) -> None:
    """Rows on a view of a text, behind so many positions of the view's own, are the reference's. coded: how many blocks
    are read in int8, by default all that are whole."""
    coded = length // PLACES if coded < 0 else coded
    tokens, expected = random_tokens(len(parents), length, 97), None
    for decoder in drafting(reference):
        view = text_of(decoder, length).view()
        if own:
            random_prefix(decoder, view, own, seed=7)
        if expected is None:
            expected = reference.run([Part(committed(view), tokens, parents, coded)])
        expect_same(decoder, Rows([(view, tokens, parents)]), expected)


@dtypes
@pytest.mark.parametrize("length", [255, 256, 300, 700])
def test_rows_on_a_view_read_whole_blocks_in_int8(length: int, dtype: torch.dtype) -> None:
    expect_on_views(reference_of(dtype, num_hidden_layers=2, head_dim=16, **GROUPS), length, [-1, 0, -1, 2])


@pytest.mark.parametrize("head_dim", [48, 64, 80, 256])
def test_heads_of_all_widths(head_dim: int) -> None:
    reference = reference_of(torch.bfloat16, num_hidden_layers=1, head_dim=head_dim, **GROUPS)
    expect_on_views(reference, 530, [-1])
    expect_on_views(reference, 530, list(range(-1, 4)))


@pytest.mark.parametrize("rows", [2, 3, 8, 17, 40])
def test_chains_and_trees_of_many_rows(rows: int) -> None:
    reference = reference_of(torch.bfloat16, num_hidden_layers=1, head_dim=32, **GROUPS)
    expect_on_views(reference, 600, list(range(-1, rows - 1)))
    expect_on_views(reference, 600, random_tree(rows, 5))


def test_what_a_view_has_itself_is_read_as_it_is() -> None:
    # the view's own positions make blocks whole that lie partly in the text: those are not coded
    expect_on_views(reference_of(torch.bfloat16, num_hidden_layers=1, head_dim=32), 300, [-1, 0], own=400, coded=1)


def test_layers_with_a_window_read_keys_as_they_are() -> None:
    # the first layer has none, and is coded alone
    changes = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 400, "max_window_layers": 1}
    reference = reference_of(torch.bfloat16, num_hidden_layers=3, head_dim=32, **changes)
    assert reference.config.windows == (None, 400, 400)
    expect_on_views(reference, 700, [-1, 0])
    (decoder, *_) = drafting(reference)
    cache = text_of(decoder, 700)
    decoder.code_places(cache.view())
    assert [len(block) for block in cache._coded._blocks] == [1, 1]


def test_a_model_whose_layers_all_have_a_window_is_not_coded() -> None:
    changes = {"model_type": "mistral", "sliding_window": 400}
    reference = reference_of(torch.bfloat16, num_hidden_layers=2, head_dim=32, **changes)
    assert not Decoder(reference.config, reference.weights, codes_places=True).codes_places


@pytest.mark.parametrize("scale", [30.0, 1e4, 1e30, 1e36])
@pytest.mark.parametrize("rows", [1, 3])
def test_scores_of_all_sizes_and_numbers_too_large_for_int8(scale: float, rows: int) -> None:
    # weights that vanish; queries and scores beyond what int8 inputs take, which make NaN; keys that count as 2^100
    reference = reference_of(torch.bfloat16, num_hidden_layers=1, head_dim=32, **GROUPS)
    tokens, expected = random_tokens(rows, 5, 97), None
    for decoder in drafting(reference):
        cache = decoder.new_cache()
        random_prefix(decoder, cache, 520, seed=3, scale=scale)
        view = cache.view()
        if expected is None:
            expected = reference.run([Part(committed(view), tokens, range(-1, rows - 1), 2)])
        expect_same(decoder, Rows([(view, tokens, range(-1, rows - 1))]), expected, numbers_only=scale < 1e5)


def test_one_query_that_is_no_number_leaves_the_others_alone() -> None:
    # of 5 heads that share a key head, so that queries are softened in twos and one is left over
    heads = {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 32}
    for worst in range(5):
        reference = reference_of(torch.bfloat16, num_hidden_layers=1, **heads)
        bias = reference.weights.layers[0].query.weight
        assert isinstance(bias, torch.Tensor)
        bias[32 * worst : 32 * worst + 32] *= 2.0**70
        query = reference.weights.layers[0].query
        assert query.weight is bias
        expected = None
        for decoder in drafting(reference):
            view = text_of(decoder, 300).view()
            if expected is None:
                expected = reference.run([Part(committed(view), [3, 4], [-1, 0], 1)])
            expect_same(decoder, Rows([(view, [3, 4], [-1, 0])]), expected, numbers_only=False)


def test_a_row_s_bits_do_not_depend_on_other_rows() -> None:
    reference = reference_of(torch.bfloat16, num_hidden_layers=2, head_dim=32, **GROUPS)
    for decoder in drafting(reference):
        cache = text_of(decoder, 700)
        tokens = random_tokens(12, 3, 97)
        many = chain(cache.view(), tokens)
        together = decoder.forward(many)
        view = cache.view()
        for at, token in enumerate(tokens):
            assert same(decoder.forward(chain(view, [token])), together[at : at + 1]), decoder.arithmetic


def test_a_chain_in_one_call_is_the_chain_of_its_steps() -> None:
    reference = reference_of(torch.bfloat16, num_hidden_layers=2, head_dim=32, **GROUPS)
    for decoder in drafting(reference):
        cache = text_of(decoder, 520)
        drafted = decoder.draft_chain(cache.view(), 5, 6)
        view, token, found = cache.view(), 5, []
        for _ in range(6):
            choice = decoder.run(chain(view, [token])).choice(0)
            assert choice is not None
            token = choice
            found.append(token)
        assert drafted.tokens == found


def test_texts_of_all_lengths_share_a_pass() -> None:
    reference, expected = reference_of(torch.bfloat16, num_hidden_layers=1, head_dim=32, **GROUPS), None
    tokens = random_tokens(9, 1, 97)
    for decoder in drafting(reference):
        views = [text_of(decoder, length, seed=length).view() for length in (10, 256, 900)]
        shares = [(tokens[at : at + 3], [-1, 0, 0]) for at in (0, 3, 6)]
        if expected is None:
            parts = [
                Part(committed(view), *share, coded=view.length // PLACES)
                for view, share in zip(views, shares, strict=True)
            ]
            expected = reference.run(parts)
        expect_same(decoder, Rows([(view, *share) for view, share in zip(views, shares, strict=True)]), expected)


def test_a_view_of_a_view_and_of_some_layers_and_of_a_part_of_the_text() -> None:
    reference = reference_of(torch.bfloat16, num_hidden_layers=3, head_dim=32)
    tokens, layers = random_tokens(2, 1, 97), range(1, 3)
    for decoder in drafting(reference, threads=1):
        cache = text_of(decoder, 800)
        below = cache.view(length=600)
        top = below.view(layers)
        assert (cache.whole_blocks, below.whole_blocks, top.whole_blocks) == (0, 2, 2)
        hidden = decoder.embed(tokens)
        expected = reference.run([Part(committed(below), tokens, [-1, 0], 2)], 1, 3, hidden)
        assert same(decoder.layers(hidden, chain(top, tokens), 1, 3), expected.hidden)


def test_without_a_view_nothing_is_coded() -> None:
    # a cache of the decoder's own, and any decoder that was not asked to
    reference = reference_of(torch.bfloat16, num_hidden_layers=1, head_dim=32)
    plain = Decoder(reference.config, reference.weights)
    (decoder, *_) = drafting(reference)
    cache = text_of(plain, 600)
    expected = plain.forward(chain(cache.view(), [3]))
    coded = decoder.forward(chain(cache.view(), [3]))
    assert not same(coded, expected)
    assert same(decoder.forward(chain(cache, [3])), expected)
    assert same(plain.forward(chain(cache.view(), [3])), expected)  # blocks that a draft has coded change no target


def test_what_is_coded_follows_the_text() -> None:
    reference = reference_of(torch.bfloat16, num_hidden_layers=1, head_dim=32)
    (decoder, *_) = drafting(reference)
    cache = text_of(decoder, 800)
    decoder.forward(chain(cache.view(), [3]))  # codes three blocks
    for change in (lambda: cache.truncate(300), lambda: cache.overwrite(0, 20, *_numbers(decoder, 30))):
        change()
        random_prefix(decoder, cache, 500, seed=9)
        found = decoder.forward(chain(cache.view(), [3]))
        expected = reference.run([Part(committed(cache), [3], [-1], cache.length // PLACES)])
        assert same(found, expected.hidden)


def test_blocks_are_coded_once() -> None:
    reference = reference_of(torch.bfloat16, num_hidden_layers=2, head_dim=32)
    (decoder, *_) = drafting(reference)
    cache, coded = text_of(decoder, 600), []

    def code(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        coded.append(keys.shape)
        return torch.zeros((2, 1, 1), dtype=torch.uint8)

    for length, count in ((600, 2), (600, 2), (300, 2)):
        blocks = cache.view(length=length).coded(cache.layers, code)
        assert (len(blocks), len(coded)) == (length // PLACES, count)
    assert {*coded} == {(2, PLACES, reference.config.num_kv_heads, 32)}
    random_prefix(decoder, cache, 200, seed=2)
    assert len(cache.view().coded(cache.layers, code)) == len(coded) == 3
    for other in (cache.copy(600), cache.copy(600).handed_over(520)):
        assert len(other.view().coded(cache.layers, code)) == 2
    assert len(coded) == 3, "what is copied or handed over is not coded again"
    assert cache.view().coded(range(1, 2), code)
    assert coded[-1] == (1, PLACES, reference.config.num_kv_heads, 32), "other layers are"


def test_a_cut_while_blocks_are_coded_is_not_undone() -> None:
    places, layers, memory = CodedPrefix(), slice(0, 1), Decoder(*_parts()).new_cache()._memory.grown(600)

    def code(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        places.cut(length)  # as another thread might
        return torch.zeros(1, dtype=torch.uint8)

    for length in (0, PLACES):
        had = places.of(memory, layers, length // PLACES, lambda keys, values: torch.ones(1, dtype=torch.uint8))
        assert len(places.of(memory, layers, 2, code)) == 2  # for the pass under way
        kept = places.of(memory, layers, length // PLACES, code)
        assert [*map(id, kept)] == [*map(id, had)]


def test_the_cost_counts_the_bytes_that_are_read() -> None:
    reference = reference_of(torch.bfloat16, num_hidden_layers=3, head_dim=32, **GROUPS)
    (decoder, *_) = drafting(reference)
    plain, cache = Decoder(reference.config, reference.weights), text_of(decoder, 700)
    rows = [chain(cache.view(), [3, 4]) for _ in range(2)]
    decoder.forward(rows[0])
    plain.forward(rows[1])
    saved = 2 * PLACES * reference.config.bytes_of_position(2) - 3 * 2 * bytes_of_places(2, 32)
    assert saved > 0
    assert rows[1].cost.cache_bytes - rows[0].cost.cache_bytes == saved
    assert rows[1].cost.flops == rows[0].cost.flops
    steps = [it.draft_chain(cache.view(), 5, 3).cost.cache_bytes for it in (plain, decoder)]
    assert steps[0] - steps[1] == 3 * saved


def test_heads_that_cannot_be_coded_are_read_as_they_are() -> None:
    reference = reference_of(torch.bfloat16, num_hidden_layers=1, head_dim=24)
    decoder = Decoder(reference.config, reference.weights, codes_places=True)
    assert not decoder.codes_places
    view = text_of(decoder, 300).view()
    assert same(decoder.forward(chain(view, [3])), reference.run([Part(committed(view), [3], [-1])]).hidden)


def _parts() -> tuple[Any, Any]:
    reference = reference_of(torch.bfloat16, num_hidden_layers=1, head_dim=16)
    return reference.config, reference.weights


def _numbers(decoder: Decoder, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    c = decoder.config
    keys, values = (torch.randn((count, c.num_kv_heads, c.head_dim)).bfloat16() for _ in range(2))
    return keys, values
