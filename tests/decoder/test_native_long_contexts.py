"""Native passes over long contexts, with every instruction set, against the reference: by their bits."""

from __future__ import annotations

import pytest
import torch

from foretoken.decoder.rows import Rows
from tests.decoder.models import random_tokens, random_tree
from tests.decoder.native import decoders, dtypes, expect_after_a_prefix, expect_same, random_prefix, reference_of
from tests.reference_decoder import Part, committed
from tests.tiny import needs_native

pytestmark = needs_native


@dtypes
@pytest.mark.parametrize("length", [15, 255, 256, 512])
def test_long_contexts_are_the_reference_s(length: int, dtype: torch.dtype) -> None:
    # attention works in blocks of 256 positions: rows end one, begin one, and see several
    reference = reference_of(dtype, num_hidden_layers=1, head_dim=16)
    expect_after_a_prefix(reference, length, [-1, 0, -1, 2])


@dtypes
@pytest.mark.parametrize(("window", "length"), [(20, 250), (100, 300), (256, 511), (300, 600), (1, 40)])
def test_windows_in_long_contexts_are_the_reference_s(window: int, length: int, dtype: torch.dtype) -> None:
    # windows that begin within a block, at its end, and in another block for each row of the pass
    reference = reference_of(dtype, num_hidden_layers=1, model_type="mistral", sliding_window=window)
    expect_after_a_prefix(reference, length, [-1, 0, 1, 0, 2])


@dtypes
def test_many_rows_in_long_contexts_are_the_reference_s(dtype: torch.dtype) -> None:
    # rows enough for the tiles of AMX, over keys that all of them see, and over others
    cases = ((16, 300), (24, 200), (64, 290), (80, 520), (128, 290), (256, 290), (272, 70))
    for head_dim, length in cases if dtype == torch.bfloat16 else cases[:1]:
        for window in (None, 90):
            changes = {} if window is None else {"model_type": "mistral", "sliding_window": window}
            reference = reference_of(dtype, num_hidden_layers=1, head_dim=head_dim, **changes)
            expect_after_a_prefix(reference, length, list(range(-1, 36)))


# AMX and AVX-512 BF16 attend in one go to blocks that several rows see whole, if heads have a multiple of 32 numbers.


def test_as_many_rows_as_go_at_once_are_the_reference_s() -> None:
    # 512 queries of a key head: with one thread, as these are enough pieces for it
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 32}
    reference = reference_of(torch.bfloat16, num_hidden_layers=1, **heads)
    expect_after_a_prefix(reference, 260, list(range(-1, 259)))


@pytest.mark.parametrize("head_dim", [32, 64])
def test_whole_blocks_behind_a_window_are_the_reference_s(head_dim: int) -> None:
    # the window begins within a block, and the blocks behind that are whole
    changes = {"model_type": "mistral", "sliding_window": 600}
    reference = reference_of(torch.bfloat16, num_hidden_layers=1, head_dim=head_dim, **changes)
    for rows in (10, 37):
        expect_after_a_prefix(reference, 1100, list(range(-1, rows - 1)))


@pytest.mark.parametrize(("rows", "length"), [(4, 1400), (5, 600), (9, 600), (23, 1400)])
def test_key_heads_that_are_taken_some_after_the_others_are_the_reference_s(rows: int, length: int) -> None:
    # five key heads, of which two are fetched together; 16, 20, 36 and 92 queries of each; threads share
    # out the blocks, and in the shorter texts the heads, too
    heads = {"num_attention_heads": 20, "num_key_value_heads": 5, "head_dim": 96}
    reference = reference_of(torch.bfloat16, num_hidden_layers=1, **heads)
    expect_after_a_prefix(reference, length, list(range(-1, rows - 1)))


@pytest.mark.parametrize(("rows", "head_dim"), [(17, 32), (33, 160), (34, 64), (35, 32), (37, 256)])
def test_key_heads_of_one_query_each_are_the_reference_s(rows: int, head_dim: int) -> None:
    # odd numbers of queries, and some that are left over behind 32
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": head_dim}
    reference = reference_of(torch.bfloat16, num_hidden_layers=1, **heads)
    expect_after_a_prefix(reference, 300, list(range(-1, rows - 1)))


@pytest.mark.parametrize("length", [255, 256, 300, 520])
def test_large_trees_in_long_contexts_are_the_reference_s(length: int) -> None:
    reference = reference_of(torch.bfloat16, num_hidden_layers=1, head_dim=32)
    expect_after_a_prefix(reference, length, random_tree(30, length))


def test_many_rows_in_stacked_views_are_the_reference_s() -> None:
    # keys and values of a block lie in several places; two texts share the pass
    reference, expected = reference_of(torch.bfloat16, num_hidden_layers=1, head_dim=32), None
    tokens, parents = random_tokens(24, 1, 97), list(range(-1, 23))
    for decoder in decoders(reference, threads=2):
        caches = []
        for lengths in ((100, 130, 300), (255, 2, 300)):
            top = decoder.new_cache()
            for at, length in enumerate(lengths):
                top = top.view() if at else top
                random_prefix(decoder, top, length, seed=at)
            caches.append(top)
        if expected is None:
            expected = reference.run([Part(committed(cache), tokens, parents) for cache in caches])
        expect_same(decoder, Rows([(cache, tokens, parents) for cache in caches]), expected)


@dtypes
@pytest.mark.parametrize("scale", [30.0, 1e4, 1e30])
def test_attention_that_is_nearly_all_on_one_key_is_the_reference_s(scale: float, dtype: torch.dtype) -> None:
    # weights that vanish, blocks of which nothing is left, scores that overflow
    # one after the other, and many in one go
    for head_dim, rows in ((16, 2), (32, 30)):
        reference = reference_of(dtype, num_hidden_layers=1, head_dim=head_dim)
        expect_after_a_prefix(reference, 520, list(range(-1, rows - 1)), scale=scale, numbers_only=scale < 1e5)


@dtypes
def test_sequences_of_all_lengths_share_a_pass(dtype: torch.dtype) -> None:
    reference = reference_of(dtype, num_hidden_layers=1, head_dim=16)
    lengths, tokens = (0, 300, 7, 513), random_tokens(12, 1, 97)
    expected = None
    for decoder in decoders(reference, threads=2):
        caches = [decoder.new_cache() for _ in lengths]
        for cache, length in zip(caches, lengths, strict=True):
            random_prefix(decoder, cache, length, seed=length) if length else None
        shares = [(tokens[at : at + 3], [-1, 0, 0] if at % 2 else [-1, 0, 1]) for at in (0, 3, 6, 9)]
        if expected is None:
            expected = reference.run([Part(committed(c), *share) for c, share in zip(caches, shares, strict=True)])
        expect_same(decoder, Rows([(c, *share) for c, share in zip(caches, shares, strict=True)]), expected)


def test_texts_whose_key_heads_are_shared_out_otherwise_share_a_pass() -> None:
    # three rows are one piece of all key heads, and forty are pieces of a single one
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32}
    reference, expected = reference_of(torch.bfloat16, num_hidden_layers=1, **heads), None
    tokens = random_tokens(43, 1, 97)
    for decoder in decoders(reference, threads=2):
        caches = [decoder.new_cache() for _ in range(2)]
        for cache, length in zip(caches, (1100, 520), strict=True):
            random_prefix(decoder, cache, length, seed=length)
        shares = [(tokens[:3], list(range(-1, 2))), (tokens[3:], list(range(-1, 39)))]
        if expected is None:
            expected = reference.run([Part(committed(c), *share) for c, share in zip(caches, shares, strict=True)])
        expect_same(decoder, Rows([(c, *share) for c, share in zip(caches, shares, strict=True)]), expected)
