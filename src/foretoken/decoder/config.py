"""The shape of a decoder, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretoken.common import other_formats
from foretoken.common.files import read_bytes
from foretoken.decoder.families import FAMILIES, Windows
from foretoken.errors import (
    CheckpointError,
    ModelError,
    ModelNotFoundError,
    SettingError,
    UnsupportedModelError,
    quoted,
)
from foretoken.formats import Format, format_of

QUANT_METHOD, QUANT_VERSION = "foretoken", 1  # in config.json of the checkpoints that we quantise
MOA_SPEC = "moa_spec"  # the `model_type` of a published Mixture of Attentions, in vLLM's layout
DRAFTER = "foretoken_drafter"  # in config.json of drafters that were trained for a model: their kind
_MOST_LAYERS = 10_000
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions. Keys that a type does not use are ignored; `original` is the context length in training."""

    theta: float = 10000.0
    type: str = "default"
    factor: float = 1.0
    original: int = 2048
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    attention_factor: float | None = None  # yarn
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn


@dataclass(frozen=True)
class DecoderConfig:
    """Everything that the forward pass must know beside the weights. Sizes are counts, lengths are in tokens."""

    model_type: str
    vocab_size: int
    valid_vocab_size: int  # tokens from here up exist as rows (padding) but are never generated
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    context_length: int
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    rope: RopeConfig
    windows: Windows  # by layer: how many keys a row sees, itself included; None for all
    dtype: str | None = None  # as the checkpoint names it
    low_bit: Format | None = None  # the format of the linear layers, if it is a low-bit format
    # by layer, where feed-forward layers differ, as in trained drafters; `intermediate_size` is the largest then
    intermediate_sizes: tuple[int, ...] | None = None
    wide: bool = False  # the attention of layer 0 reads two states side by side, as in published drafters of EAGLE-3

    def bytes_of_position(self, itemsize: int) -> int:
        """The bytes of the keys and values of one position in all layers. itemsize: of one number."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * itemsize

    def intermediate_of(self, layer: int) -> int:
        """The width of a layer's feed-forward layer."""
        return self.intermediate_size if self.intermediate_sizes is None else self.intermediate_sizes[layer]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or an error that names the file."""
    try:
        value = json.loads(read_bytes(path).decode("utf-8"))
    except FileNotFoundError:
        other = other_formats.found_in(path.parent)
        raise ModelNotFoundError(
            f"{path.parent} has no {path.name}; expected a Hugging Face checkpoint: a folder with config.json, "
            "*.safetensors and a tokenizer; what holds GGUF files, or a LoRA adapter, is none"
            if other is None
            else f"{path.parent} {other}"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); expected a file") from None
    except (ValueError, RecursionError) as error:  # also for endless brackets, and numbers of thousands of digits
        raise CheckpointError(f"{path} is not JSON ({error!s:.100}); fetch the file again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, expected an object; fetch the file again")
    return value


def read_config(folder: Path) -> DecoderConfig:
    """The configuration of the model in a checkpoint's folder. Raises what `read_json` and `parse_config` raise."""
    try:
        raw = read_json(folder / "config.json")
        if DRAFTER in raw or is_published_drafter(raw):
            raise UnsupportedModelError(f"{folder} holds a drafter that was trained for a model; give it to --draft")
        return parse_config(raw)
    except ModelError as error:
        if str(error).startswith("config.json: "):
            raise type(error)(f"{folder}/{error}") from None
        raise


def is_published_drafter(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a drafter that others have trained for a model, whatever its kind."""
    keys = ("speculators_model_type", "draft_vocab_size", "dflash_config")
    named = _has_architecture(raw, "eagle3") or is_published_mixture(raw)
    return DRAFTER not in raw and (named or any(key in raw for key in keys))


def is_published_mixture(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a published Mixture of Attentions."""
    return _has_architecture(raw, "moaspec") or raw.get("model_type") == MOA_SPEC


def _has_architecture(raw: Mapping[str, Any], part: str) -> bool:
    """Whether one of the names of architectures has a part, in small letters."""
    names = raw.get("architectures")
    return isinstance(names, list) and any(part in str(name).lower() for name in names)


def parse_config(raw: Mapping[str, Any]) -> DecoderConfig:
    """Read a `config.json`'s contents, in the layout of transformers 4 or 5. Refuses what the decoder cannot do."""
    model_type = raw.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        raise UnsupportedModelError(
            f"model_type {model_type!r} is not supported; supported: {', '.join(sorted(FAMILIES))}"
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"hidden_act {raw['hidden_act']!r} is not supported; supported: silu")

    def size(key: str, default: int | None = None, most: int = 2**31 - 1) -> int:
        value = raw.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise CheckpointError(f"config.json: {key} is {quoted(value)}, expected a positive whole number")
        if value > most:
            raise CheckpointError(f"config.json: {key} is {quoted(value)}, expected at most {most}")
        return value

    hidden, heads, layers = (
        size("hidden_size"),
        size("num_attention_heads"),
        size("num_hidden_layers", most=_MOST_LAYERS),
    )
    kv_heads = size("num_key_value_heads", heads)
    vocab, context = size("vocab_size"), size("max_position_embeddings", 2048)
    head_dim = size("head_dim", family.head_dim or hidden // heads)
    if heads % kv_heads:
        raise CheckpointError(
            f"config.json: {heads} query heads cannot share {kv_heads} key/value heads; expected a divisor"
        )
    if head_dim % 2:
        raise CheckpointError(
            f"config.json: head_dim is {head_dim}, expected an even number (rotary positions need pairs)"
        )
    valid = size("valid_vocab_size", vocab)
    if valid > vocab:
        raise CheckpointError(f"config.json: valid_vocab_size is {valid}, expected at most vocab_size, {vocab}")
    eps = raw.get("rms_norm_eps", 1e-6)
    if not _is_positive(eps):
        raise CheckpointError(f"config.json: rms_norm_eps is {quoted(eps)}, expected a positive number")
    rope = _parse_rope(raw, context)
    if rope.type == "dynamic" and head_dim == 2:
        raise CheckpointError(
            "config.json: head_dim is 2, expected 4 or more (rope type 'dynamic' divides by two less)"
        )
    windows = family.windows(raw, layers)
    if len(windows) != layers:
        raise CheckpointError(f"config.json: layer_types names {len(windows)} layers, expected {layers}")
    attention_bias = bool(raw.get("attention_bias", False))
    return DecoderConfig(
        model_type=str(model_type),
        vocab_size=vocab,
        valid_vocab_size=valid,
        hidden_size=hidden,
        intermediate_size=size("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=float(eps),
        # dynamic NTK is meant to be used beyond the length that the model was trained on
        context_length=min(int(context * rope.factor), 2**31 - 1) if rope.type == "dynamic" else context,
        tied=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=bool(raw.get("mlp_bias", False)) if family.mlp_bias is None else family.mlp_bias,
        qk_norm=family.qk_norm,
        rope=rope,
        windows=windows,
        dtype=raw.get("dtype") or raw.get("torch_dtype"),
        low_bit=_parse_low_bit(raw.get("quantization_config")),
    )


def _parse_low_bit(given: object) -> Format | None:
    """The format of a checkpoint that `foretoken quantize` has written; the formats of others are refused."""
    if not given:
        return None
    method = given.get("quant_method", "?") if isinstance(given, dict) else given
    if not isinstance(given, dict) or method != QUANT_METHOD:
        raise UnsupportedModelError(
            f"the checkpoint is quantised ({quoted(method, 40)}); use the bf16, fp16 or fp32 original, which "
            "`foretoken quantize` can make smaller"
        )
    try:
        format = format_of(str(given.get("format")))
    except SettingError as error:
        raise CheckpointError(f"config.json: quantization_config: {error}; quantise the model again") from None
    version = given.get("version", QUANT_VERSION)
    if version != QUANT_VERSION:
        raise CheckpointError(
            f"config.json: quantization_config: version is {quoted(version, 20)}, expected {QUANT_VERSION}; use the "
            "Foretoken that wrote it, or quantise the model again"
        )
    return format


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def _parse_rope(raw: Mapping[str, Any], context: int) -> RopeConfig:
    """`rope_parameters` (transformers 5) or `rope_scaling` with `rope_theta` beside it (transformers 4)."""
    given: dict[str, Any] = {}
    for layout in ("rope_scaling", "rope_parameters"):
        part = raw.get(layout)
        if part is not None and not isinstance(part, dict):
            raise CheckpointError(f"config.json: {layout} is {part!r}, expected an object or null")
        given.update(part or {})
    if any(isinstance(value, dict) for value in given.values()):
        raise UnsupportedModelError(f"rope parameters by layer type ({', '.join(given)}) are not supported")
    for key in ("rope_theta", "original_max_position_embeddings"):  # these keys may be outside the object
        if given.get(key) is None:
            given.pop(key, None)
            if raw.get(key) is not None:
                given[key] = raw[key]

    kind = given.get("rope_type") or given.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(f"rope type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
    partial = given.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1):
        raise UnsupportedModelError(f"partial_rotary_factor {partial} is not supported; supported: 1")

    numbers = {key: given[key] for key in _ROPE_NUMBERS if given.get(key) is not None}
    for key, value in numbers.items():
        usual = _is_positive(value) and _ROPE_LEAST.get(key, 1e-6) <= value <= _ROPE_MOST
        if not usual and not (key in _MAY_BE_ZERO and value == 0):
            raise CheckpointError(
                f"config.json: rope parameters {quoted(given, 200)} do not make sense: {key} is {quoted(value)}"
            )
    if kind == "llama3" and numbers.get("low_freq_factor", 1.0) >= numbers.get("high_freq_factor", 4.0):
        raise CheckpointError(
            f"config.json: rope parameters {quoted(given, 200)} do not make sense: low_freq_factor must be below "
            "high_freq_factor"
        )
    original = int(numbers.pop("original_max_position_embeddings", context))
    theta = float(numbers.pop("rope_theta", 10000.0))
    if kind == "yarn":
        numbers.setdefault("factor", context / original)
        numbers = {key: value for key, value in numbers.items() if value or key not in ("beta_fast", "beta_slow")}
    if kind == "dynamic" and numbers.get("factor", 1) < 1:
        raise CheckpointError(f"config.json: rope type 'dynamic' has factor {numbers['factor']}, expected 1 or more")
    if kind not in ("default", "yarn") and "factor" not in numbers:
        raise CheckpointError(f"config.json: rope type {kind!r} needs a factor; add it to rope_parameters")
    return RopeConfig(
        theta=theta,
        type=kind,
        original=context if kind == "dynamic" else original,
        truncate=bool(given.get("truncate", True)),
        **{key: float(value) for key, value in numbers.items()},
    )


_ROPE_NUMBERS = (
    "rope_theta",
    "original_max_position_embeddings",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)
_ROPE_LEAST = {"rope_theta": 1.000001, "original_max_position_embeddings": 1}  # with 1, all dimensions turn alike
_ROPE_MOST = 1e12  # beyond, powers overflow
_MAY_BE_ZERO = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # read as absent
