"""Checkpoints in low-bit formats: what is read of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from foretoken.decoder.config import DecoderConfig, parse_config, read_json
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.loading import load_weights
from foretoken.decoder.low_bit import dequantised, quantised
from foretoken.decoder.weights import Weights
from foretoken.errors import CheckpointError, ForetokenError
from foretoken.formats import Format, format_of
from foretoken.formats.weight import QuantisedWeight
from tests.decoder.low_bit import INT4, MXFP4, SHAPES, formats, made, outcomes, same_codes
from tests.decoder.low_bit_files import stored
from tests.decoder.test_weights import file_under
from tests.tiny import BASE


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
