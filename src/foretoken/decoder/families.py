"""The members of the Llama family, one row for each architecture, with their differences.

To add a member, add a row here and a line to the table in `tests/decoder/models.py`, which the parity tests read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from foretoken.errors import CheckpointError, UnsupportedModelError

Windows = tuple[int | None, ...]
_FULL, _SLIDING = "full_attention", "sliding_attention"


def _no_window(config: Mapping[str, Any], layers: int) -> Windows:
    return (None,) * layers


def _window_everywhere(config: Mapping[str, Any], layers: int) -> Windows:
    return (_window(config),) * layers


def _window_if_asked(config: Mapping[str, Any], layers: int) -> Windows:
    """Qwen's windows. They are off by default. If they are on, they apply from layer `max_window_layers` up, unless
    `layer_types` names the layers."""
    window = _window(config) if config.get("use_sliding_window", False) else None
    kinds = config.get("layer_types")
    if kinds is None:
        first = config.get("max_window_layers", 28)
        if not isinstance(first, int):
            raise CheckpointError(f"config.json: max_window_layers is {first!r}, expected a whole number")
        kinds = [_SLIDING if i >= first else _FULL for i in range(layers)]
    if not isinstance(kinds, list):
        raise CheckpointError(f"config.json: layer_types is {kinds!r}, expected a list")
    for kind in kinds:
        if kind not in (_SLIDING, _FULL):
            raise UnsupportedModelError(f"layer type {kind!r} is not supported; supported: {_FULL}, {_SLIDING}")
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def _window(config: Mapping[str, Any]) -> int | None:
    window = config.get("sliding_window", 4096)
    if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 1):
        raise CheckpointError(f"config.json: sliding_window is {window!r}, expected a whole number, 1 or more, or null")
    return None if window is None else min(window, 2**31 - 1)  # wider than any context


@dataclass(frozen=True)
class Family:
    """The differences of an architecture from the plain Llama block. A bias of None follows the configuration's key."""

    architecture: str
    qkv_bias: bool | None = None  # None: `attention_bias`
    output_bias: bool | None = None  # None: `attention_bias`
    mlp_bias: bool | None = False  # None: `mlp_bias`
    qk_norm: bool = False  # RMS norm on each query and key head, before rotation
    windows: Callable[[Mapping[str, Any], int], Windows] = _no_window
    head_dim: int | None = None  # if config.json does not say; None: hidden_size / num_attention_heads


# by `model_type` in config.json
FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", mlp_bias=None),
    "mistral": Family("MistralForCausalLM", qkv_bias=False, output_bias=False, windows=_window_everywhere),
    "qwen2": Family("Qwen2ForCausalLM", qkv_bias=True, output_bias=False, windows=_window_if_asked),
    "qwen3": Family("Qwen3ForCausalLM", qk_norm=True, windows=_window_if_asked, head_dim=128),
}
