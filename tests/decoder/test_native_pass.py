"""Native passes, with every instruction set, against a decoder made of the reference's operations: by their bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from foretoken.decoder.config import parse_config
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import Rows, chain
from foretoken.decoder.weights import assemble, repacked
from foretoken.kernels import native
from tests.decoder.models import FAMILIES_TABLE, SMALL, FamilyCase, random_tokens, random_tree
from tests.decoder.native import (
    decoders,
    dtypes,
    expect_chain_and_tree,
    expect_same,
    random_prefix,
    reference_of,
    stored_in,
    tensors_of,
)
from tests.isas import HERE, with_isa
from tests.kernels.numbers import floats, same
from tests.reference_decoder import Part, ReferenceDecoder, committed
from tests.tiny import needs_native, random_tensors, tiny_config

pytestmark = needs_native

# heads, groups and widths for which kernels divide their work in other ways
SHAPES: dict[str, dict[str, Any]] = {
    "heads-of-2": {"head_dim": 2, "num_attention_heads": 4, "num_key_value_heads": 4},
    "heads-of-6": {"head_dim": 6, "num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 18},
    "heads-of-24": {"head_dim": 24, "num_attention_heads": 6, "num_key_value_heads": 2},
    "heads-of-40": {"head_dim": 40, "num_attention_heads": 5, "num_key_value_heads": 1},
    "heads-of-64": {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 2},
    "heads-of-80": {"head_dim": 80, "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 33},
    "heads-of-96": {"head_dim": 96, "num_attention_heads": 2, "num_key_value_heads": 1},
    "heads-of-128": {"head_dim": 128, "num_attention_heads": 4, "num_key_value_heads": 2},
    "odd-widths": {"hidden_size": 47, "intermediate_size": 31, "vocab_size": 113},
    "one-group-of-66": {"head_dim": 2, "num_attention_heads": 66, "num_key_value_heads": 1},
    "wide": {"hidden_size": 256, "intermediate_size": 288, "head_dim": 32, "num_hidden_layers": 1},
}


# -- families, shapes and types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("case", FAMILIES_TABLE, ids=lambda case: case.name)
def test_every_family_is_the_reference_s(case: FamilyCase, dtype: torch.dtype) -> None:
    # the window of those that have one is 8, so that it begins within the text
    layers = len(case.overrides.get("layer_types", range(2)))
    made = getattr(transformers, case.config_class)(**{**SMALL, **case.overrides, "num_hidden_layers": layers})
    config = parse_config({**made.to_dict(), "dtype": str(dtype).removeprefix("torch.")})
    expect_chain_and_tree(ReferenceDecoder(config, tensors_of(config, dtype)))


@dtypes
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_the_reference_s(shape: str, dtype: torch.dtype) -> None:
    reference = reference_of(dtype, **{"num_hidden_layers": 1, **SHAPES[shape]})
    if shape == "odd-widths":
        reference = ReferenceDecoder(replace(reference.config, valid_vocab_size=99), reference.weights)
    expect_chain_and_tree(reference, threads=2)


@pytest.mark.parametrize(
    ("embedding", "linears"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float16)], ids=str
)
def test_an_embedding_of_another_type_than_the_layers_decides_the_cache_s(
    embedding: torch.dtype, linears: torch.dtype
) -> None:
    config = tiny_config(num_hidden_layers=2)
    tensors = {
        name: tensor.to(embedding if "embed" in name else torch.float32 if "norm" in name else linears)
        for name, tensor in random_tensors(config, 3).items()
    }
    reference = ReferenceDecoder(config, assemble(tensors, config))
    assert decoders(reference)[0].new_cache()._memory.keys.dtype == embedding
    expect_chain_and_tree(reference)


@dtypes
def test_weights_that_begin_anywhere_are_read_right(dtype: torch.dtype) -> None:
    # as those of a mapped file do
    config = tiny_config(num_hidden_layers=2, attention_bias=True)
    tensors = {}
    for at, (name, tensor) in enumerate(random_tensors(config, 3).items()):
        memory = torch.empty(tensor.numel() + 40, dtype=dtype)
        start = 1 + at % 33
        tensors[name] = memory[start : start + tensor.numel()].view(tensor.shape).copy_(tensor)
    assert len({tensor.data_ptr() % 64 for tensor in tensors.values()}) > 5
    expect_chain_and_tree(ReferenceDecoder(config, assemble(tensors, config)))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("isa", HERE)
def test_weights_in_a_level_s_own_layout_are_read_right(isa: str, tied: bool) -> None:
    # widths of which all, some, or the output layer alone, are whole blocks
    for changes in ({"hidden_size": 64, "intermediate_size": 96}, {"hidden_size": 48, "vocab_size": 96}):
        sizes = {"head_dim": 16, "num_hidden_layers": 1, "tie_word_embeddings": tied, **changes}
        reference = reference_of(torch.bfloat16, **sizes)
        text = random_tokens(18, 1, 90)
        expected = reference.run([Part(reference.nothing(), text, range(-1, 17))])
        with with_isa(isa):
            own = repacked(tensors_of(reference.config, torch.bfloat16))
            decoder = Decoder(reference.config, own, threads=2)
        assert ({isa} <= own.layouts) == native.repacks(isa)
        assert decoder.arithmetic == f"native {isa}"
        expect_same(decoder, chain(decoder.new_cache(), text), expected)


@pytest.mark.parametrize("isa", HERE)
def test_matrices_of_a_layer_may_lie_in_either_layout(isa: str) -> None:
    # of eight outputs none is put into a layout of its own, which takes them by 16
    reference = reference_of(torch.bfloat16, head_dim=8, num_key_value_heads=1, hidden_size=64, intermediate_size=64)
    text = random_tokens(37, 1, 97)
    expected = reference.run([Part(reference.nothing(), text, range(-1, 36))])
    with with_isa(isa):
        own = repacked(tensors_of(reference.config, torch.bfloat16))
        first = own.layers[0]
        rows = tensors_of(reference.config, torch.bfloat16).layers[0]
        mixed = replace(own, layers=(replace(first, up=rows.up), *own.layers[1:]))
        if native.repacks(isa):
            assert [each.layout for each in (first.query, first.key, mixed.layers[0].gate)] == [isa, "rows", isa]
        for weights in (own, mixed):
            decoder = Decoder(reference.config, weights, threads=2)
            expect_same(decoder, chain(decoder.new_cache(), text), expected)


@dtypes
def test_many_rows_in_one_pass_are_the_reference_s(dtype: torch.dtype) -> None:
    # more than a piece of attention's work takes, and more than AMX's tiles hold
    reference = reference_of(dtype, num_hidden_layers=1)
    count = 101 if dtype == torch.bfloat16 else 37
    text, vocabulary = random_tokens(count, 1, 97), reference.config.vocab_size
    expected = reference.run([Part(reference.nothing(), text, range(-1, count - 1))])
    parts = [Part(reference.nothing(), random_tokens(n, n, vocabulary), random_tree(n, n)) for n in (1, 17, 20)]
    trees = reference.run(parts)
    for threads in (1, 3):
        for decoder in decoders(reference, threads):
            expect_same(decoder, chain(decoder.new_cache(), text), expected)
            rows = Rows([(decoder.new_cache(), part.tokens, part.parents) for part in parts])
            expect_same(decoder, rows, trees)


def test_more_rows_than_are_multiplied_at_a_time_are_the_reference_s() -> None:
    reference, count = reference_of(torch.bfloat16, num_hidden_layers=1), 270
    text = random_tokens(count, 1, 97)
    expected = reference.run([Part(reference.nothing(), text, range(-1, count - 1))])
    for decoder in decoders(reference, threads=2):
        expect_same(decoder, chain(decoder.new_cache(), text), expected)


# -- scratch, views and ranges of layers ------------------------------------------------------------------------------


@dtypes
def test_a_tree_that_grows_over_several_passes_is_the_reference_s(dtype: torch.dtype) -> None:
    reference = reference_of(dtype)
    text, tokens, parents = random_tokens(5, 1, 97), random_tokens(12, 2, 97), random_tree(12, 7)
    begun = reference.run([Part(reference.nothing(), text, range(-1, 4))])
    whole = reference.run([Part(begun.stored, tokens, parents)])
    for decoder in decoders(reference):
        cache = decoder.new_cache()
        rows = chain(cache, text)
        decoder.forward(rows)
        cache.commit(range(5), rows.writer)
        for start, stop in ((0, 1), (1, 5), (5, 12)):
            rows = Rows([(cache, tokens[start:stop], parents[start:stop])])
            expect_same(decoder, rows, whole.rows(slice(start, stop)))


@dtypes
@pytest.mark.parametrize("lengths", [(0, 5), (5, 0, 3), (250, 10, 4), (3, 260, 2)], ids=str)
def test_rows_in_stacked_views_are_the_reference_s(lengths: Sequence[int], dtype: torch.dtype) -> None:
    reference = reference_of(dtype, num_hidden_layers=2, model_type="mistral", sliding_window=261)
    tokens, parents = random_tokens(5, 1, 97), [-1, 0, 0, 1, 3]
    expected = None
    for decoder in decoders(reference, threads=2):
        top = decoder.new_cache()
        for at, length in enumerate(lengths):
            if at:
                top.place([-1] * 3)  # scratch of what lies below is not the view's
                top = top.view()
            if length:
                random_prefix(decoder, top, length, seed=at)
        assert top.length == sum(lengths)
        if expected is None:
            expected = reference.run([Part(committed(top), tokens, parents)])
        expect_same(decoder, Rows([(top, tokens, parents)]), expected)


@dtypes
def test_ranges_of_layers_on_views_of_some_layers_are_the_reference_s(dtype: torch.dtype) -> None:
    reference = reference_of(dtype, num_hidden_layers=4)
    tokens, parents = random_tokens(6, 1, 97), [-1, 0, 1, 0, -1, 4]
    hidden = floats("normal", (6, reference.config.hidden_size), 9)
    for lo, hi in ((0, 1), (1, 3), (3, 4), (0, 4), (2, 2)):
        expected = None
        for decoder in decoders(reference):
            bottom = decoder.new_cache()
            random_prefix(decoder, bottom, 6, seed=1)
            middle = bottom.view(range(min(lo, 3), 4))
            random_prefix(decoder, middle, 4, seed=2)
            top = middle.view(range(lo, max(hi, lo + 1)))
            rows = Rows([(top, tokens, parents)])
            if expected is None:
                expected = reference.run([Part(committed(top), tokens, parents)], lo, hi, hidden)
            before = hidden.clone()
            out = decoder.layers(hidden, rows, lo, hi)
            assert same(hidden, before)
            assert same(out, expected.hidden), (decoder.arithmetic, lo, hi)
            assert same(decoder.head(out), expected.logits), (decoder.arithmetic, lo, hi)
            for layer, stored in stored_in(rows, range(lo, hi)).items():
                assert all(same(a, b) for a, b in zip(stored, expected.stored[layer], strict=True)), layer


def test_hidden_states_of_any_layout_are_read_right() -> None:
    reference = reference_of(torch.float32)
    hidden = floats("normal", (4, 32), 9)
    expected = reference.run([Part(reference.nothing(), [1, 2, 3, 4], range(-1, 3))], 0, 2, hidden)
    for decoder in decoders(reference):
        laid_out = (hidden, hidden.T.contiguous().T, hidden.repeat(1, 2)[:, :32], hidden.clone().requires_grad_())
        for states in laid_out:
            out = decoder.layers(states, chain(decoder.new_cache(), [1, 2, 3, 4]))
            assert same(out, expected.hidden)
            assert not out.requires_grad
            assert same(decoder.head(out.T.contiguous().T), expected.logits)
        half = hidden.half()
        rows = chain(decoder.new_cache(), [1, 2, 3, 4])
        assert same(decoder.layers(half, rows), decoder.layers(half.float(), chain(decoder.new_cache(), [1, 2, 3, 4])))


# -- numbers out of range ---------------------------------------------------------------------------------------------


@dtypes
def test_a_nan_goes_where_the_reference_s_goes(dtype: torch.dtype) -> None:
    reference = reference_of(dtype)
    reference.weights.embedding[5] = torch.nan
    tokens, parents = [1, 5, 2, 3, 4, 5], [-1, 0, 1, 0, 3, -1]
    expected = reference.run([Part(reference.nothing(), tokens, parents)])
    assert expected.logits.isnan().any(dim=1).tolist() == [False, True, True, False, False, True]
    for decoder in decoders(reference, threads=2):
        expect_same(decoder, Rows([(decoder.new_cache(), tokens, parents)]), expected, numbers_only=False)


@dtypes
def test_weights_of_all_sizes_are_the_reference_s(dtype: torch.dtype) -> None:
    # activations vanish, or overflow: what the type's numbers reach, not what a model's do
    for scale in (1e-20, 1e-3, 1e3, 1e20):
        reference = reference_of(dtype, scale=scale)
        expected = reference.run([Part(reference.nothing(), [1, 2, 3, 4], [-1, 0, 0, 2])])
        for decoder in decoders(reference):
            rows = Rows([(decoder.new_cache(), [1, 2, 3, 4], [-1, 0, 0, 2])])
            expect_same(decoder, rows, expected, numbers_only=False)
