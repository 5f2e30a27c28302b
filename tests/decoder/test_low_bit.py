"""Low-bit decoders: the bits of the bf16 model that holds their values, what they share, and checkpoints of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from foretoken.decoder.config import DecoderConfig, parse_config, read_json
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.linear import Linear
from foretoken.decoder.low_bit import dequantised, quantised, quantised_linears
from foretoken.decoder.rows import Rows, chain
from foretoken.decoder.weights import Weights, assemble, linear_shapes, load_weights, repacked
from foretoken.errors import CheckpointError, ContractError, ForetokenError
from foretoken.formats import Format, format_of
from foretoken.formats.weight import QuantisedWeight
from foretoken.kernels import native
from tests.decoder.models import random_tokens, random_tree
from tests.decoder.outcomes import Outcome, read_committed, run
from tests.decoder.test_native_pass import expect_chain_and_tree
from tests.decoder.test_weights import file_under
from tests.formats.layout import ALL
from tests.kernels.low_bit import defined, weight
from tests.kernels.numbers import floats, same
from tests.levels import HERE
from tests.reference_decoder import ReferenceDecoder
from tests.tiny import BASE, needs_native, random_tensors, tiny_config

MXFP4, INT4 = format_of("mxfp4"), format_of("int4-g32")
formats = pytest.mark.parametrize("format", ALL, ids=lambda format: format.label)

SHAPES: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "odd widths": {"hidden_size": 47, "intermediate_size": 131, "head_dim": 10, "vocab_size": 113},
    "qwen2": {"model_type": "qwen2"},  # with biases
    "qwen2, tied": {"model_type": "qwen2", "tie_word_embeddings": True, "intermediate_size": 100},
    "all biases": {"attention_bias": True, "mlp_bias": True},
    "qwen3": {"model_type": "qwen3"},
}
SOME = (MXFP4, format_of("int8"), format_of("int3"))
# every format in two shapes, some formats in all
IN_SHAPES = [
    pytest.param(format, shape, id=f"{format.label}, {shape}")
    for shape in SHAPES
    for format in (ALL if shape in ("odd widths", "qwen2, tied") else SOME)
]


def made(dtype: torch.dtype = torch.bfloat16, seed: int = 3, **changes: Any) -> tuple[DecoderConfig, Weights]:
    """A tiny model."""
    config = tiny_config(**{"num_hidden_layers": 2, **changes})
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors(config, seed).items()}
    return config, assemble(tensors, config)


def outcomes(decoder: Decoder, sizes: tuple[int, ...] = (40, 1, 3, 17)) -> tuple[list[Outcome], list[str]]:
    """A text in chunks of several sizes and a tree after it: what comes out, and the caches' digests."""
    tokens, tree, parents = random_tokens(40, 1, 97), random_tokens(9, 2, 97), random_tree(9, 4)
    results, digests = [], []
    for size in sizes:
        cache = decoder.new_cache()
        results.append(read_committed(decoder, tokens, [size], cache))
        digests.append(cache.digest())
        results.append(run(decoder, Rows([(cache, tree, parents)])))
    return results, digests


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
    assert decoder.draft_chain(cache, 5, 12) == tokens
    assert len(set(tokens)) > 3


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
    low = quantised(mapped, config, MXFP4, share=own)
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


def same_codes(one: Weights, other: Weights) -> bool:
    def parts(linear: Linear) -> tuple[torch.Tensor, torch.Tensor]:
        assert isinstance(linear.weight, QuantisedWeight)
        return linear.weight.codes, linear.weight.scales

    return all(
        torch.equal(a, b)
        for x, y in zip(one.linears, other.linears, strict=True)
        for a, b in zip(parts(x), parts(y), strict=True)
    )


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


# -- checkpoints ------------------------------------------------------------------------------------------------------


def stored(low: Weights, config: DecoderConfig) -> dict[str, torch.Tensor]:
    """The tensors of a low-bit checkpoint."""
    tensors = dict(low.tensors)
    head, *of_layers = low.linears
    for name, linear in zip(linear_shapes(config), [*of_layers, head], strict=True):
        assert isinstance(linear.weight, QuantisedWeight)
        tensors[f"{name}.weight.codes"] = linear.weight.codes
        tensors[f"{name}.weight.scales"] = linear.weight.scales
    return {name: tensor.clone() for name, tensor in tensors.items()}


def write(folder: Path, format: Format, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Weights:
    """A checkpoint in a format; returns what it holds."""
    config, weights = made(dtype, **changes)
    low = quantised(weights, config, format)
    save_file(stored(low, config), folder / "model.safetensors")
    raw = {**BASE, "num_hidden_layers": 2, **changes}
    raw["quantization_config"] = {"quant_method": "foretoken", "format": format.label}
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return low


def load(folder: Path, **options: Any) -> tuple[DecoderConfig, Weights]:
    config = parse_config(read_json(folder / "config.json"))
    return config, load_weights(folder, config, **options)


@formats
@pytest.mark.parametrize("shape", ["untied", "qwen2, tied", "odd widths"])
def test_a_low_bit_checkpoint_gives_the_bits_of_what_was_written(
    tmp_path: Path, format: Format, shape: str, arithmetic: str
) -> None:
    low = write(tmp_path, format, **SHAPES[shape])
    before, _ = made(**SHAPES[shape])
    expected = outcomes(Decoder(before, low, threads=1, arithmetic=arithmetic), (40,))
    for copy in (False, True):
        config, weights = load(tmp_path, copy=copy)
        assert config.low_bit == format
        assert weights.layouts == {"rows"}
        assert {linear.inputs for linear in weights.linears} == {"bf16"}
        assert same_codes(weights, low)
        assert set(weights.tensors) == set(low.tensors)
        assert outcomes(Decoder(config, weights, threads=1, arithmetic=arithmetic), (40,)) == expected


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no list of what is mapped")
def test_codes_stay_in_the_mapped_file_unless_they_are_copied(tmp_path: Path) -> None:
    write(tmp_path, MXFP4)
    for copy in (False, True):
        _, weights = load(tmp_path, copy=copy)
        for linear in weights.linears:
            assert isinstance(linear.weight, QuantisedWeight)
            for part in (linear.weight.codes, linear.weight.scales):
                assert file_under(part.data_ptr()).endswith("model.safetensors") != copy


def test_for_another_device_codes_stay_on_the_cpu(tmp_path: Path) -> None:
    low = write(tmp_path, INT4)
    _, weights = load(tmp_path, device="meta")
    assert {tensor.device.type for tensor in weights.tensors.values()} == {"meta"}
    assert same_codes(weights, low)
    assert {linear.values.device.type for linear in dequantised(weights).linears} == {"meta"}


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("format", [MXFP4, format_of("int8"), INT4], ids=lambda format: format.label)
def test_another_type_is_that_of_all_but_the_codes(
    tmp_path: Path, format: Format, dtype: torch.dtype, copy: bool
) -> None:
    low = write(tmp_path, format)
    config, weights = load(tmp_path, dtype=dtype, copy=copy)
    assert {tensor.dtype for tensor in weights.tensors.values()} == {dtype}
    assert same_codes(weights, low)
    decoder = Decoder(config, weights, threads=1)
    plain = Decoder(config, dequantised(weights), threads=1)
    assert outcomes(decoder, (40,)) == outcomes(plain, (40,))


def test_low_bit_shards_are_read(tmp_path: Path) -> None:
    low = write(tmp_path, INT4)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}  # codes here, scales there
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    for copy in (False, True):
        assert same_codes(load(tmp_path, copy=copy)[1], low)


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(ForetokenError) as caught:
        load(folder, **options)
    assert isinstance(caught.value, CheckpointError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


UP = "model.layers.1.mlp.up_proj.weight"  # [48, 32]


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("name", [f"{UP}.codes", f"{UP}.scales", "lm_head.weight.codes", "model.norm.weight"])
def test_a_part_that_is_missing_is_named(tmp_path: Path, name: str, copy: bool) -> None:
    write(tmp_path, INT4)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    count = len(tensors) + 1
    assert refusal(tmp_path, copy=copy) == (
        f"{tmp_path} lacks 1 of {count} tensors, the first is {name}; expected what config.json describes: fetch the "
        "checkpoint again"
    )


def test_of_many_parts_that_are_missing_the_first_of_the_model_is_named(tmp_path: Path) -> None:
    write(tmp_path, INT4)
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith((".codes", ".scales"))}
    save_file(kept, tmp_path / "model.safetensors")
    for _ in range(3):  # not of a set, whose order changes
        assert f"lacks 30 of {len(tensors)} tensors, the first is model.layers.0.self_attn.q_proj.weight.codes; " in (
            refusal(tmp_path)
        )


@pytest.mark.parametrize(
    ("format", "part", "change", "got", "has"),
    [
        ("int4-g32", "codes", lambda t: t[:2].clone(), "uint8 [2, 1, 256]", "uint8 [3, 1, 256]"),
        ("int4-g32", "codes", lambda t: t.view(torch.int8), "int8 [3, 1, 256]", "uint8 [3, 1, 256]"),
        ("int4-g32", "codes", lambda t: t.flatten(), "uint8 [768]", "uint8 [3, 1, 256]"),
        ("int4-g32", "codes", lambda t: t[..., :192].clone(), "uint8 [3, 1, 192]", "uint8 [3, 1, 256]"),
        ("int4-g32", "scales", lambda t: t.float(), "float32 [3, 1, 16, 2]", "bfloat16 [3, 1, 16, 2]"),
        ("int4-g32", "scales", lambda t: t.half(), "float16 [3, 1, 16, 2]", "bfloat16 [3, 1, 16, 2]"),
        ("int4-g32", "scales", lambda t: t[..., 0].clone(), "bfloat16 [3, 1, 16]", "bfloat16 [3, 1, 16, 2]"),
        ("mxfp4", "scales", lambda t: t.float(), "float32 [3, 1, 16]", "uint8 [3, 1, 16]"),
        ("mxfp4", "scales", lambda t: t.repeat(1, 2, 1), "uint8 [3, 2, 16]", "uint8 [3, 1, 16]"),
        ("int8", "scales", lambda t: t.bfloat16(), "bfloat16 [48]", "float32 [48]"),
        ("int8", "scales", lambda t: t[:47].clone(), "float32 [47]", "float32 [48]"),
    ],
)
@pytest.mark.parametrize("copy", [False, True])
def test_a_part_of_another_shape_or_type_is_named(
    tmp_path: Path, format: str, part: str, change: Any, got: str, has: str, copy: bool
) -> None:
    write(tmp_path, format_of(format))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"{UP}.{part}"] = change(tensors[f"{UP}.{part}"])
    save_file(tensors, tmp_path / "model.safetensors")
    assert refusal(tmp_path, copy=copy) == (
        f"the {part} of {UP} are {got}; {format} of [48, 32] has {has}: the file is damaged, or of another format"
    )


@pytest.mark.parametrize(
    ("format", "part", "place", "value", "reason"),
    [
        ("mxfp4", "scales", (1, 0, 3), 66, "1 scales outside 2**-60 .. 2**60 (bytes 67 .. 187)"),
        ("mxfp4", "scales", (1, 0, 3), 188, "1 scales outside 2**-60 .. 2**60 (bytes 67 .. 187)"),
        ("mxfp4", "scales", (1, 0, 3), 255, "1 scales outside 2**-60 .. 2**60 (bytes 67 .. 187)"),
        ("int8", "scales", (5,), torch.nan, "1 scales that are no finite number"),
        ("int8", "scales", (5,), -1.0, "1 scales that are no finite number, negative"),
        ("int8", "scales", (5,), 2.0**-101, "1 scales that are no finite number, negative, below 2**-100"),
        ("int8", "scales", (5,), 2.0**122, "1 scales that are no finite number"),
        ("int4-g32", "scales", (0, 0, 2, 0), torch.inf, "1 groups with a scale that is no finite number"),
        ("int4-g32", "scales", (0, 0, 2, 0), -1.0, "1 groups with a scale that is no finite number, negative"),
        ("int4-g32", "scales", (0, 0, 2, 1), torch.nan, "1 groups with a scale"),
        ("int4-g32", "scales", (0, 0, 2, 1), 2.0**-21, "1 groups with a scale"),
    ],
)
def test_scales_that_are_none_are_refused(
    tmp_path: Path, format: str, part: str, place: tuple[int, ...], value: float, reason: str
) -> None:
    write(tmp_path, format_of(format))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"{UP}.{part}"][place] = value
    save_file(tensors, tmp_path / "model.safetensors")
    message = refusal(tmp_path)
    assert message.startswith(f"{UP} ({format}) has {reason}")
    assert message.endswith("; quantise the weights again")


@pytest.mark.parametrize(("written", "said"), [("int4-g32", "int3-g32"), ("mxfp4", "int4-g32"), ("int8", "mxfp4")])
def test_a_checkpoint_that_says_another_format_than_it_holds_is_refused(
    tmp_path: Path, written: str, said: str
) -> None:
    write(tmp_path, format_of(written))
    raw = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    raw["quantization_config"]["format"] = said
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    message = refusal(tmp_path)
    assert "of model.layers.0.self_attn.q_proj.weight are" in message
    assert message.endswith("the file is damaged, or of another format")


def test_a_low_bit_checkpoint_that_does_not_say_so_lacks_its_weights(tmp_path: Path) -> None:
    write(tmp_path, MXFP4)
    raw = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    del raw["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    assert "the first is model.layers.0.self_attn.q_proj.weight; " in refusal(tmp_path)
