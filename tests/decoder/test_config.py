"""What config.json may say, and what is refused: each refusal one line, that names the key and the value."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretoken.decoder.config import parse_config, read_json
from foretoken.errors import CheckpointError, ModelError, ModelNotFoundError, UnsupportedModelError
from foretoken.formats import Format
from tests.decoder.configs import refusal, without
from tests.formats.layout import ALL
from tests.tiny import BASE, tiny_config

# -- the file -------------------------------------------------------------------------------------------------------


def test_a_missing_config_json_is_named_with_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        read_json(tmp_path / "config.json")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path} has no config.json; expected a Hugging Face checkpoint")
    assert "\n" not in message
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"model_type": "llama",}',
        b"model_type: llama\nlayers: 3\n",
        b"\xff\xfe\x00",
        b"<html>",
        b"[" * 100_000,
        b'{"vocab_size": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_config_json_that_is_not_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_json(path)
    message = str(caught.value)
    assert message.startswith(f"{path} is not JSON (")
    assert message.endswith("fetch the file again")
    assert "\n" not in message


@pytest.mark.parametrize(("content", "kind"), [("[1]", "list"), ('"llama"', "str"), ("null", "NoneType"), ("3", "int")])
def test_json_that_is_not_an_object_is_refused(tmp_path: Path, content: str, kind: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        read_json(path)
    assert str(caught.value) == f"{path} holds a {kind}, expected an object; fetch the file again"


def test_a_folder_in_the_place_of_config_json_is_an_error_about_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelError, match=r"config\.json"):
        read_json(tmp_path / "config.json")


# -- architectures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["gpt2", "llama4", "", None, ["llama"]])
def test_an_unknown_model_type_is_refused_with_those_that_are_known(model_type: Any) -> None:
    error = refusal({"model_type": model_type})
    assert isinstance(error, UnsupportedModelError)
    assert str(error) == f"model_type {model_type!r} is not supported; supported: llama, mistral, qwen2, qwen3"


def test_an_absent_model_type_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"^model_type None is not supported; supported: llama, mistral"):
        parse_config(without("model_type"))


@pytest.mark.parametrize("act", ["gelu", "relu", None])
def test_another_activation_is_refused(act: str | None) -> None:
    error = refusal({"hidden_act": act})
    assert isinstance(error, UnsupportedModelError)
    assert str(error) == f"hidden_act {act!r} is not supported; supported: silu"


@pytest.mark.parametrize(
    ("quantisation", "method"),
    [
        ({"quant_method": "gptq", "bits": 4}, "'gptq'"),
        ({"quant_method": "Foretoken", "format": "mxfp4"}, "'Foretoken'"),
        ({"quant_method": None}, "None"),
        ({"bits": 4}, "'?'"),
        ("awq", "'awq'"),
        ("foretoken", "'foretoken'"),
        (["foretoken"], "['foretoken']"),
    ],
)
def test_what_others_have_quantised_is_refused(quantisation: Any, method: str) -> None:
    error = refusal({"quantization_config": quantisation})
    assert isinstance(error, UnsupportedModelError)
    assert str(error) == (
        f"the checkpoint is quantised ({method}); use the bf16, fp16 or fp32 original, which `foretoken quantize` can "
        "make smaller"
    )


@pytest.mark.parametrize("format", ALL, ids=lambda format: format.label)
def test_a_checkpoint_in_a_low_bit_format_of_ours_says_which(format: Format) -> None:
    config = tiny_config(quantization_config={"quant_method": "foretoken", "format": format.label})
    assert config == replace(tiny_config(), low_bit=format)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"format": "int5"}, "the format 'int5' is not known; did you mean 'int"),
        ({"format": "int4-g48"}, "int4 got groups of 48; expected 32 or 64 or 128"),
        ({"format": "mxfp4-g64"}, "mxfp4 got groups of 64; expected 32"),
        ({"format": ""}, "the format '' is not known"),
        ({"format": 4}, "the format '4' is not known"),
        ({}, "the format 'None' is not known"),
    ],
)
def test_a_low_bit_format_that_there_is_not_is_damage(given: dict[str, Any], reason: str) -> None:
    error = refusal({"quantization_config": {"quant_method": "foretoken", **given}})
    assert isinstance(error, CheckpointError)
    assert str(error).startswith(f"config.json: quantization_config: {reason}")
    assert str(error).endswith("; quantise the model again")


@pytest.mark.parametrize("empty", [None, {}])
def test_a_quantisation_that_says_nothing_is_none(empty: Any) -> None:
    assert tiny_config(quantization_config=empty) == tiny_config()


# -- sizes ----------------------------------------------------------------------------------------------------------

REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
WITH_DEFAULT = ("num_key_value_heads", "head_dim", "max_position_embeddings", "valid_vocab_size")


@pytest.mark.parametrize("key", REQUIRED)
def test_an_absent_size_is_named(key: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse_config(without(key))
    assert str(caught.value) == f"config.json: {key} is None, expected a positive whole number"


@pytest.mark.parametrize("value", [0, -1, 2.5, 4.0, True, "4", [4]])
@pytest.mark.parametrize("key", REQUIRED + WITH_DEFAULT)
def test_a_size_that_is_none_is_named(key: str, value: Any) -> None:
    error = refusal({key: value})
    assert isinstance(error, CheckpointError)
    assert str(error) == f"config.json: {key} is {value!r}, expected a positive whole number"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 key/value heads; expected a divisor"),
        ({"num_key_value_heads": 8}, "4 query heads cannot share 8 key/value heads; expected a divisor"),
        ({"head_dim": 7}, "head_dim is 7, expected an even number (rotary positions need pairs)"),
        ({"head_dim": None, "hidden_size": 36}, "head_dim is 9, expected an even number (rotary positions need pairs)"),
        ({"head_dim": None, "hidden_size": 3}, "head_dim is 0, expected a positive whole number"),
        ({"valid_vocab_size": 98}, "valid_vocab_size is 98, expected at most vocab_size, 97"),
    ],
)
def test_sizes_that_do_not_fit_each_other_are_named(changes: dict[str, Any], message: str) -> None:
    error = refusal(changes)
    assert isinstance(error, CheckpointError)
    assert str(error) == f"config.json: {message}"


def test_sizes_that_are_absent_follow_from_the_others() -> None:
    config = parse_config({key: value for key, value in BASE.items() if key not in WITH_DEFAULT})
    assert (config.num_kv_heads, config.head_dim) == (4, 8)
    assert (config.context_length, config.valid_vocab_size) == (2048, 97)
    assert tiny_config(num_key_value_heads=None, head_dim=None) == tiny_config(num_key_value_heads=4, head_dim=8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected at most 10000"),
        ({"vocab_size": 2**31}, "vocab_size is 2147483648, expected at most 2147483647"),
        ({"hidden_size": 10**30}, f"hidden_size is {10**30}, expected at most 2147483647"),
        ({"max_position_embeddings": 2**63}, f"max_position_embeddings is {2**63}, expected at most 2147483647"),
    ],
)
def test_sizes_beyond_every_memory_are_refused_before_any_of_it_is_taken(changes: dict[str, Any], message: str) -> None:
    error = refusal(changes)
    assert isinstance(error, CheckpointError)
    assert str(error) == f"config.json: {message}"


def test_a_window_wider_than_any_context_is_one_that_native_code_can_count() -> None:
    assert tiny_config(model_type="mistral", sliding_window=10**30).windows == (2**31 - 1,) * 3


def test_dynamic_rope_does_not_shorten_the_context() -> None:
    error = refusal({"rope_parameters": {"rope_type": "dynamic", "factor": 0.5}})
    assert isinstance(error, CheckpointError)
    assert str(error) == "config.json: rope type 'dynamic' has factor 0.5, expected 1 or more"


def test_dynamic_rope_needs_more_than_one_pair() -> None:
    error = refusal({"head_dim": 2, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}})
    assert isinstance(error, CheckpointError)
    assert "head_dim is 2" in str(error)


@pytest.mark.parametrize("value", [None, "small", -1.0, math.nan, 10**400])
def test_an_epsilon_that_is_no_positive_number_is_named(value: Any) -> None:
    error = refusal({"rms_norm_eps": value})
    assert isinstance(error, CheckpointError)
    assert "rms_norm_eps" in str(error)


# -- biases and norms -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        # query, key and value; output; MLP; norms on query and key: without the keys of config.json, then with them
        ("llama", [(False, False, False, False), (True, True, True, False)]),
        ("mistral", [(False, False, False, False), (False, False, False, False)]),
        ("qwen2", [(True, False, False, False), (True, False, False, False)]),
        ("qwen3", [(False, False, False, True), (True, True, False, True)]),
    ],
)
def test_biases_and_norms_by_architecture(model_type: str, expected: list[tuple[bool, ...]]) -> None:
    for changes, parts in zip(({}, {"attention_bias": True, "mlp_bias": True}), expected, strict=True):
        config = tiny_config(model_type=model_type, **changes)
        assert (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm) == parts
