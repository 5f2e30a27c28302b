"""What config.json may say of positions: how they turn, and how far back a layer looks."""

from __future__ import annotations

import math
from typing import Any

import pytest

from foretoken.errors import CheckpointError, ModelError, UnsupportedModelError
from tests.decoder.configs import refusal
from tests.tiny import tiny_config

# -- rotary positions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
@pytest.mark.parametrize("kind", ["longrope", "su", "mrope", ["linear"]])
def test_an_unknown_rope_type_is_refused_with_those_that_are_known(layout: str, key: str, kind: Any) -> None:
    error = refusal({layout: {key: kind, "factor": 2.0}})
    assert isinstance(error, UnsupportedModelError)
    assert str(error) == f"rope type {kind!r} is not supported; supported: default, linear, dynamic, llama3, yarn"


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3"])
def test_a_scaled_rope_without_its_factor_is_refused(kind: str) -> None:
    error = refusal({"rope_scaling": {"type": kind}})
    assert isinstance(error, CheckpointError)
    assert str(error) == f"config.json: rope type {kind!r} needs a factor; add it to rope_parameters"


def test_the_factor_of_yarn_follows_from_the_lengths() -> None:
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 128}
    assert tiny_config(rope_parameters=yarn).rope.factor == 4.0


@pytest.mark.parametrize("partial", [0.5, 0.25, 2])
@pytest.mark.parametrize("inside", [False, True])
def test_partly_rotated_heads_are_refused(partial: float, inside: bool) -> None:
    given = {"partial_rotary_factor": partial}
    error = refusal({"rope_parameters": {"rope_type": "default", **given}} if inside else given)
    assert isinstance(error, UnsupportedModelError)
    assert str(error) == f"partial_rotary_factor {partial} is not supported; supported: 1"
    assert tiny_config(partial_rotary_factor=1.0) == tiny_config()


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": "two"},
        {"rope_type": "linear", "factor": 0},
        {"rope_type": "linear", "factor": -2.0},
        {"rope_type": "linear", "factor": [2.0]},
        {"rope_type": "linear", "factor": math.nan},
        {"rope_type": "linear", "factor": math.inf},
        {"rope_type": "dynamic", "factor": math.nan},
        {"rope_type": "dynamic", "factor": math.inf},
        {"rope_type": "dynamic", "factor": 1e300},
        {"rope_type": "linear", "factor": 10**400},
        {"rope_type": "default", "rope_theta": 1},
        {"rope_type": "default", "rope_theta": 1e300},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1e-9},
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1e-300},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
        {"rope_type": "default", "rope_theta": "ten"},
        {"rope_type": "default", "rope_theta": -1.0},
        {"rope_type": "default", "rope_theta": math.nan},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": -5},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": "long"},
    ],
    ids=str,
)
def test_rope_parameters_that_make_no_sense_are_named(rope: dict[str, Any]) -> None:
    error = refusal({"rope_parameters": rope})
    assert isinstance(error, CheckpointError)
    assert str(error).startswith("config.json: rope parameters {'rope_type': ")


@pytest.mark.parametrize("theta", [-1.0, "ten"])
def test_a_bad_theta_beside_the_rope_parameters_is_named(theta: Any) -> None:
    error = refusal({"rope_theta": theta})
    assert isinstance(error, CheckpointError)
    assert "theta" in str(error)
    assert str(theta) in str(error)


@pytest.mark.parametrize("layout", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("value", ["linear", [1], 2.0])
def test_rope_parameters_that_are_no_object_are_refused(layout: str, value: Any) -> None:
    error = refusal({layout: value})
    assert isinstance(error, ModelError)
    assert "rope" in str(error)


def test_rope_parameters_by_layer_type_are_not_read_as_the_default() -> None:
    # transformers 5 may nest them; read flat, they would say nothing, and positions would turn at the wrong speed
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    raw = {"model_type": "qwen2", "layer_types": ["full_attention"] * 3, "rope_parameters": {"full_attention": rope}}
    assert isinstance(refusal(raw), ModelError)


def test_both_layouts_say_the_same() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    new = tiny_config(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **scaling}, dtype="bfloat16")
    assert new.rope.theta == 5e5
    assert new.rope.original == 64
    assert new.dtype == "bfloat16"
    for key in ("type", "rope_type"):
        assert new == tiny_config(rope_scaling={key: "llama3", **scaling}, rope_theta=5e5, torch_dtype="bfloat16")


def test_only_dynamic_rope_reaches_beyond_the_trained_length() -> None:
    for kind in ("linear", "llama3", "yarn"):
        assert tiny_config(rope_parameters={"rope_type": kind, "factor": 2.0}).context_length == 512
    assert tiny_config(rope_parameters={"rope_type": "dynamic", "factor": 2.5}).context_length == 1280


# -- windows --------------------------------------------------------------------------------------------------------


def test_windows_by_architecture() -> None:
    sliding = {"sliding_window": 8, "use_sliding_window": True}
    assert tiny_config(sliding_window=8).windows == (None,) * 3
    assert tiny_config(model_type="mistral", sliding_window=8).windows == (8,) * 3
    assert tiny_config(model_type="mistral", sliding_window=None).windows == (None,) * 3
    assert tiny_config(model_type="mistral").windows == (4096,) * 3  # as transformers has it
    for model_type in ("qwen2", "qwen3"):
        assert tiny_config(model_type=model_type, sliding_window=8).windows == (None,) * 3
        assert tiny_config(model_type=model_type, **sliding).windows == (None,) * 3  # from layer 28 up
        assert tiny_config(model_type=model_type, **sliding, max_window_layers=2).windows == (None, None, 8)
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        assert tiny_config(model_type=model_type, **sliding, layer_types=kinds).windows == (8, None, 8)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_layer_types_for_another_number_of_layers_are_refused(count: int) -> None:
    error = refusal({"model_type": "qwen3", "layer_types": ["full_attention"] * count})
    assert isinstance(error, CheckpointError)
    assert str(error) == f"config.json: layer_types names {count} layers, expected 3"


@pytest.mark.parametrize("kind", ["linear_attention", "chunked_attention", 7])
def test_a_layer_type_that_is_not_known_is_not_read_as_full_attention(kind: Any) -> None:
    error = refusal({"model_type": "qwen3", "layer_types": ["full_attention", kind, "full_attention"]})
    assert isinstance(error, ModelError)
    assert str(kind) in str(error)


@pytest.mark.parametrize("value", [0, -1, "8", 2.5, True])
@pytest.mark.parametrize("model_type", ["mistral", "qwen2"])
def test_a_window_that_is_no_positive_whole_number_is_named(model_type: str, value: Any) -> None:
    error = refusal(
        {"model_type": model_type, "sliding_window": value, "use_sliding_window": True, "max_window_layers": 0}
    )
    assert isinstance(error, CheckpointError)
    assert "sliding_window" in str(error)


@pytest.mark.parametrize(
    "changes", [{"layer_types": 5}, {"use_sliding_window": True, "max_window_layers": "x"}], ids=str
)
def test_windows_that_make_no_sense_are_named(changes: dict[str, Any]) -> None:
    error = refusal({"model_type": "qwen2", **changes})
    assert isinstance(error, CheckpointError)
    assert list(changes)[-1] in str(error)
