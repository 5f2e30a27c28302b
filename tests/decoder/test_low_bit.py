"""Low-bit decoders: the bits of the bf16 model that holds their values, and what they share with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foretoken.decoder.decoder import Decoder
from foretoken.decoder.low_bit import cast, copy_of, dequantised, quantised, quantised_linears, size_in
from foretoken.decoder.rows import chain
from foretoken.decoder.shapes import OUTPUT, linear_shapes
from foretoken.decoder.weights import LINEARS, assemble, repacked
from foretoken.errors import CheckpointError, ContractError
from foretoken.formats import Format, format_of
from foretoken.formats.weight import QuantisedWeight
from foretoken.kernels import native
from tests.decoder.low_bit import INT4, MXFP4, SHAPES, formats, made, outcomes, same_codes
from tests.decoder.models import random_tokens
from tests.decoder.native import expect_chain_and_tree
from tests.decoder.outcomes import read_committed, run
from tests.formats.layout import ALL
from tests.isas import HERE
from tests.kernels.low_bit import defined, weight
from tests.kernels.numbers import floats, same
from tests.reference_decoder import ReferenceDecoder
from tests.tiny import needs_native

SOME = (MXFP4, format_of("int8"), format_of("int3"))
# every format in two shapes, some formats in all
IN_SHAPES = [
    pytest.param(format, shape, id=f"{format.label}, {shape}")
    for shape in SHAPES
    for format in (ALL if shape in ("odd widths", "qwen2, tied") else SOME)
]


# -- the bits of the bf16 model ---------------------------------------------------------------------------------------


@needs_native
@pytest.mark.parametrize(("format", "shape"), IN_SHAPES)
def test_a_low_bit_decoder_is_the_decoder_of_its_values(format: Format, shape: str) -> None:
    config, weights = made(**SHAPES[shape])
    low = quantised(weights, config, format)
    plain = dequantised(low)
    assert all(linear.format == "bfloat16" for linear in plain.linears)
    assert all(linear.format == format.label for linear in low.linears)
    expected, digests = outcomes(Decoder(config, plain, threads=1), (40,))
    original, _ = outcomes(Decoder(config, weights, threads=1), (40,))
    assert original != expected, "or nothing was rounded"
    for level in HERE:
        for threads, sizes in ((1, (1, 40)), (2, (3, 17))):
            decoder = Decoder(config, low, threads=threads, arithmetic=f"native {level}")
            got, others = outcomes(decoder, sizes)
            assert all(one == expected[at % 2] for at, one in enumerate(got)), (level, threads)
            assert set(others) == set(digests), (level, threads)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("format", [MXFP4, INT4], ids=lambda format: format.label)
def test_embeddings_of_another_type_stay_as_they_are(format: Format, dtype: torch.dtype) -> None:
    config, weights = made(dtype, tie_word_embeddings=True)
    low = quantised(weights, config, format)
    assert low.embedding.dtype == dtype
    expected, digests = outcomes(Decoder(config, dequantised(low), threads=1), (40,))
    for level in HERE:
        got, others = outcomes(Decoder(config, low, threads=2, arithmetic=f"native {level}"), (40, 7))
        assert got == expected * 2, level
        assert others == digests * 2, level


@needs_native
@formats
@pytest.mark.parametrize("inputs", ["bf16", "int8"])
def test_low_bit_passes_are_the_reference_s(format: Format, inputs: str) -> None:
    config, weights = made(attention_bias=True, intermediate_size=77)
    low = quantised(weights, config, format, inputs=inputs)
    assert {linear.inputs for linear in low.linears} == {inputs}
    expect_chain_and_tree(ReferenceDecoder(config, low), threads=2)


@needs_native
def test_mxfp4_passes_with_fp32_inputs_are_the_reference_s() -> None:
    config, weights = made(model_type="qwen2")
    low = quantised(weights, config, MXFP4, inputs="fp32")
    expect_chain_and_tree(ReferenceDecoder(config, low))


@needs_native
@formats
@pytest.mark.parametrize("level", HERE)
def test_with_int8_inputs_rows_are_independent_and_levels_agree(format: Format, level: str) -> None:
    config, weights = made(intermediate_size=131)
    low = quantised(weights, config, format, inputs="int8")
    expected, digests = outcomes(Decoder(config, low, threads=1, arithmetic="native generic"), (40,))
    for threads, sizes in ((1, (1, 40)), (2, (3, 17))):
        got, others = outcomes(Decoder(config, low, threads=threads, arithmetic=f"native {level}"), sizes)
        assert all(one == expected[at % 2] for at, one in enumerate(got))
        assert set(others) == set(digests)
    exact, _ = outcomes(Decoder(config, dequantised(low), threads=1), (40,))
    assert exact != expected, "or int8 inputs would be bf16 ones"


@needs_native
@pytest.mark.parametrize("level", HERE)
def test_the_fastest_inputs_are_those_of_one_format_or_the_other(level: str) -> None:
    config, weights = made(intermediate_size=131)
    ways = {inputs: quantised(weights, config, MXFP4, inputs=inputs) for inputs in ("fastest", "int8", "bf16")}
    decoders = {name: Decoder(config, low, threads=2, arithmetic=f"native {level}") for name, low in ways.items()}
    text = random_tokens(40, 1, 97)
    for rows in (1, 3, 4, 40, 3):  # on one plan, whose memory has grown in between
        got = {name: run(decoder, chain(decoder.new_cache(), text[:rows])) for name, decoder in decoders.items()}
        many = rows >= 4 and level in ("amx", "amx-emulated")
        assert got["fastest"] == got["bf16" if many else "int8"]
        assert got["int8"] != got["bf16"]


@formats
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_in_pytorch_it_is_the_decoder_of_its_values_too(format: Format, dtype: torch.dtype) -> None:
    config, weights = made(dtype, model_type="qwen2", tie_word_embeddings=True)
    low = quantised(weights, config, format)
    expected, digests = outcomes(Decoder(config, dequantised(low), threads=1, arithmetic="pytorch"), (40,))
    decoder = Decoder(config, low, threads=1, arithmetic="pytorch")
    assert decoder.promise == "exact"
    got, others = outcomes(decoder, (1, 17))
    assert got == expected * 2
    assert others == digests * 2


@pytest.mark.parametrize("inputs", ["bf16", pytest.param("int8", marks=needs_native)])
@pytest.mark.parametrize("format", [MXFP4, format_of("int2")], ids=lambda format: format.label)
def test_a_chain_is_single_steps(format: Format, inputs: str, arithmetic: str) -> None:
    config, weights = made()
    decoder = Decoder(config, quantised(weights, config, format, inputs=inputs), threads=1, arithmetic=arithmetic)
    cache, steps = decoder.new_cache(), decoder.new_cache()
    read_committed(decoder, random_tokens(9, 1, 97), [9], cache)
    read_committed(decoder, random_tokens(9, 1, 97), [9], steps)
    tokens, token = [], 5
    for _ in range(12):
        rows = chain(steps, [token])
        chosen = decoder.run(rows).choice(0)
        assert chosen is not None
        steps.commit([0], rows.writer)
        token = chosen
        tokens.append(token)
    assert decoder.draft_chain(cache, 5, 12).tokens == tokens
    assert len(set(tokens)) > 3


@needs_native
@pytest.mark.parametrize("inputs", ["bf16", "int8"])
@pytest.mark.parametrize(("format", "code"), [(format_of("int8"), 0x80), (MXFP4, 0x88)], ids=["int8 -128", "mxfp4 -0"])
def test_codes_that_only_others_write_have_the_definition_s_bits(format: Format, code: int, inputs: str) -> None:
    for share in (0.3, 1):
        w = weight(format, 50, 100, seed=0)
        w.codes[torch.rand(w.codes.shape, generator=torch.Generator().manual_seed(0)) < share] = code
        for x in (floats("normal", (17, 100), 1), torch.ones(17, 100), -torch.ones(17, 100)):
            expected = defined(x, w, None, inputs)
            for level in HERE:
                assert same(native.linear(x, w, None, level, 1, inputs=inputs), expected), level


# -- what a copy shares -----------------------------------------------------------------------------------------------


@formats
@pytest.mark.parametrize("tied", [False, True])
def test_embedding_norms_and_biases_are_the_model_s_own_memory(format: Format, tied: bool) -> None:
    config, weights = made(attention_bias=True, mlp_bias=True, tie_word_embeddings=tied)
    low = quantised(weights, config, format)
    assert low.embedding.data_ptr() == weights.embedding.data_ptr()
    names = set(low.tensors)
    assert names == {n for n, t in weights.tensors.items() if t.ndim == 1 or n == "model.embed_tokens.weight"}
    assert any(name.endswith(".bias") for name in names)
    for name in names:
        assert low.tensors[name].data_ptr() == weights.tensors[name].data_ptr(), name
    for mine, theirs in zip(low.layers, weights.layers, strict=True):
        assert mine.input_norm.data_ptr() == theirs.input_norm.data_ptr()
        assert mine.down.bias is not None
        assert theirs.down.bias is not None
        assert mine.down.bias.data_ptr() == theirs.down.bias.data_ptr()
    assert low.norm.data_ptr() == weights.norm.data_ptr()


def test_a_copy_shares_with_another_s_weights_what_it_is_told_to() -> None:
    config, mapped = made(tie_word_embeddings=True, attention_bias=True)
    own = assemble({name: tensor.clone() for name, tensor in mapped.tensors.items()}, config)
    low = copy_of(own, config, cast(mapped, config, MXFP4), inputs="bf16")
    for name, tensor in low.tensors.items():
        assert tensor.data_ptr() == own.tensors[name].data_ptr() != mapped.tensors[name].data_ptr()
    direct = quantised(mapped, config, MXFP4)
    assert same_codes(low, direct)


@formats
def test_codes_and_scales_lie_in_one_allocation_at_lines(format: Format) -> None:
    config, weights = made(intermediate_size=77)
    low = quantised(weights, config, format)
    coded = [linear.weight for linear in low.linears]
    parts = [part for w in coded if isinstance(w, QuantisedWeight) for part in (w.codes, w.scales)]
    assert len(parts) == 2 * (2 * 7 + 1)
    assert {part.data_ptr() % 64 for part in parts} == {0}
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    assert low.nbytes == sum(part.nbytes for part in parts) + sum(t.nbytes for t in low.tensors.values() if t.ndim == 1)


@pytest.mark.parametrize("tied", [False, True])
def test_the_output_layer_may_stay_the_model_s_own(tied: bool) -> None:
    config, weights = made(tie_word_embeddings=tied)
    whole, low = (quantised(weights, config, MXFP4, own=own) for own in ((), (OUTPUT,)))
    assert low.head.values.data_ptr() == weights.head.values.data_ptr()
    assert isinstance(whole.head.weight, QuantisedWeight)
    assert same_codes(replace(low, head=whole.head), whole)
    rows = config.vocab_size * config.hidden_size
    assert size_in(MXFP4, config) - size_in(MXFP4, config, own=(OUTPUT,)) >= rows * 17 // 32


def test_a_copy_of_a_low_bit_model_in_its_own_format_is_the_same() -> None:
    config, weights = made()
    low = quantised(weights, config, MXFP4)
    assert same_codes(quantised(low, config, MXFP4), low)
    other = quantised(low, config, INT4)
    assert {linear.format for linear in other.linears} == {"int4-g32"}
    assert other.embedding.data_ptr() == weights.embedding.data_ptr()


def test_weights_are_quantised_one_after_the_other_by_name() -> None:
    config, weights = made()
    named = dict(quantised_linears(weights, config, INT4))
    assert list(named) == list(linear_shapes(config))
    assert {name: w.shape for name, w in named.items()} == linear_shapes(config)


@needs_native
def test_weights_in_a_level_s_own_layout_are_not_quantised() -> None:
    level = next((level for level in reversed(HERE) if native.repacks(level)), None)
    if level is None:
        pytest.skip("no level here has a layout of its own")
    config, weights = made(hidden_size=64, intermediate_size=96, vocab_size=96)
    tensors = {name: tensor.clone() for name, tensor in weights.tensors.items()}
    aligned = assemble(tensors, config)
    own = repacked(aligned, level)
    if own.layouts == {"rows"}:
        pytest.skip("the memory does not begin at a line")
    with pytest.raises(ContractError, match="cannot be quantised; load the checkpoint mapped"):
        quantised(own, config, MXFP4)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("format", [MXFP4, format_of("int8"), INT4], ids=lambda format: format.label)
def test_a_weight_that_holds_no_number_is_named(format: Format, bad: float) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    config, weights = made()
    weights.tensors[name][3, 5] = bad
    nans, infinite = (1, 0) if bad != bad else (0, 1)
    with pytest.raises(CheckpointError) as error:
        quantised(weights, config, format)
    assert str(error.value).startswith(f"{name} holds {nans} NaN and {infinite} infinite numbers among 1536, which no")
    config, weights = made(tie_word_embeddings=True)
    weights.embedding[0, 0] = bad
    with pytest.raises(CheckpointError, match=r"^model\.embed_tokens\.weight holds "):
        quantised(weights, config, format)


@needs_native
@pytest.mark.parametrize("own", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "not tied"])
def test_layers_of_a_copy_may_stay_the_model_s_own(own: tuple[int, ...], tied: bool) -> None:
    config, weights = made(attention_bias=True, tie_word_embeddings=tied)
    mixed, low = quantised(weights, config, INT4, own=own), quantised(weights, config, INT4)
    for at, layer in enumerate(mixed.layers):
        model_s = at in own
        assert (layer.down.weight is weights.layers[at].down.weight) == model_s, "the same memory"
        assert all(getattr(layer, name).format == ("bfloat16" if model_s else "int4-g32") for name in LINEARS)
    assert mixed.head.format == "int4-g32"
    assert size_in(INT4, config, own) < size_in(INT4, config)
    expected, digests = outcomes(Decoder(config, dequantised(mixed), threads=1), (40,))
    assert expected != outcomes(Decoder(config, dequantised(low), threads=1), (40,))[0]
    for isa in HERE:
        # a target's weights may lie in an instruction set's own layout: what stays its own lies there, too
        model = repacked(assemble({name: t.clone() for name, t in weights.tensors.items()}, config), isa)
        own_layout = copy_of(model, config, cast(weights, config, INT4, own=own), inputs="bf16")
        for one in (mixed, own_layout):
            decoder = Decoder(config, one, threads=2, arithmetic=f"native {isa}")
            got, others = outcomes(decoder, (1, 40))
            assert all(row == expected[at % 2] for at, row in enumerate(got)), isa
            assert set(others) == set(digests), isa


def test_in_pytorch_layers_may_stay_the_model_s_own_too() -> None:
    config, weights = made()
    mixed = quantised(weights, config, INT4, own=(1,))
    expected, _ = outcomes(Decoder(config, dequantised(mixed), threads=1, arithmetic="pytorch"), (40,))
    assert outcomes(Decoder(config, mixed, threads=1, arithmetic="pytorch"), (40,))[0] == expected


@needs_native
def test_formats_that_cannot_stand_side_by_side_run_in_pytorch() -> None:
    config, weights = made()
    low = quantised(weights, config, MXFP4)
    other = quantised(weights, config, INT4)
    first, second = low.layers
    mixed = replace(low, layers=(first, replace(second, key=other.layers[1].key)))
    decoder = Decoder(config, mixed, threads=1)
    assert decoder.arithmetic == "pytorch"
    assert decoder.because == (
        "linear layers side by side are int4-g32 with inputs bf16 and mxfp4 with inputs bf16; give a dtype to convert "
        "them"
    )
    above = replace(low, layers=(first, other.layers[1]))  # another layer may be in another format
    expected, _ = outcomes(Decoder(config, dequantised(above), threads=1), (40,))
    for level in HERE:
        decoder = Decoder(config, above, threads=1, arithmetic=f"native {level}")
        assert outcomes(decoder, (40,))[0] == expected
