"""Tiny checkpoints of every supported architecture, made by transformers: what the decoder is compared with.

To add a member of the family: a row here, beside the one in `foretoken/decoder/families.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from foretoken.decoder.config import parse_config, read_json
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.loading import load_weights
from foretoken.decoder.rows import Rows, chain

SMALL: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class FamilyCase:
    """One row: how transformers makes the model, and how to make Foretoken blind to what the row is about.

    `without` are keys of config.json that switch the feature off. The logits must notice, or the parity test would
    pass for a decoder that does not have the feature. None where a change of configuration cannot switch it off.
    """

    name: str
    config_class: str
    overrides: dict[str, Any] = field(default_factory=dict)
    without: dict[str, Any] | None = None


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


_PLAIN_ROPE = _rope("default")
_YARN = {"factor": 4.0, "original_max_position_embeddings": 1024}
_LONG = {"head_dim": 16, "max_position_embeddings": 4096}
_BIASES = {"attention_bias": True, "mlp_bias": True}
_NO_BIASES = {"attention_bias": False, "mlp_bias": False}

# positions up to 40 must feel the scaling: the lengths trained on are chosen so that the ramps of llama3 and YaRN begin
# and end within the 8 frequencies of a head of 16
FAMILIES_TABLE: tuple[FamilyCase, ...] = (
    FamilyCase("llama-tied", "LlamaConfig", {"tie_word_embeddings": True}),
    FamilyCase("llama-untied-biases", "LlamaConfig", _BIASES, _NO_BIASES),
    FamilyCase("llama-attention-bias", "LlamaConfig", {"attention_bias": True}, {"attention_bias": False}),
    FamilyCase("llama-one-kv-head", "LlamaConfig", {"num_key_value_heads": 1}),
    FamilyCase("llama-no-groups", "LlamaConfig", {"num_key_value_heads": 4}),
    FamilyCase("llama-head-dim", "LlamaConfig", {"hidden_size": 36, "head_dim": 10}),
    FamilyCase("llama-theta", "LlamaConfig", _rope("default", rope_theta=300.0), _PLAIN_ROPE),
    FamilyCase("llama-rope-linear", "LlamaConfig", _rope("linear", factor=2.5), _PLAIN_ROPE),
    FamilyCase("llama-rope-dynamic", "LlamaConfig", _rope("dynamic", factor=3.0)),
    FamilyCase(
        "llama-rope-llama3",
        "LlamaConfig",
        {
            "head_dim": 16,
            **_rope(
                "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
            ),
        },
        _PLAIN_ROPE,
    ),
    FamilyCase("llama-rope-yarn", "LlamaConfig", {**_LONG, **_rope("yarn", **_YARN)}, _PLAIN_ROPE),
    FamilyCase(
        "llama-rope-yarn-attention-factor",
        "LlamaConfig",
        {**_LONG, **_rope("yarn", **_YARN, attention_factor=0.7)},
        _rope("yarn", **_YARN),
    ),
    FamilyCase(
        "llama-rope-yarn-mscale",
        "LlamaConfig",
        {**_LONG, **_rope("yarn", **_YARN, mscale=1.4, mscale_all_dim=0.6)},
        _rope("yarn", **_YARN),
    ),
    FamilyCase(
        "llama-rope-yarn-betas-untruncated",
        "LlamaConfig",
        {**_LONG, **_rope("yarn", **_YARN, beta_fast=20.0, beta_slow=2.0, truncate=False)},
        _rope("yarn", **_YARN, beta_fast=20.0, beta_slow=2.0),
    ),
    FamilyCase("mistral-window", "MistralConfig", {"sliding_window": 8}, {"sliding_window": None}),
    FamilyCase("mistral-no-window", "MistralConfig", {"sliding_window": None}, {"sliding_window": 8}),
    FamilyCase("qwen2", "Qwen2Config", {}, {"model_type": "llama"}),
    FamilyCase(
        "qwen2-window-from-layer-1",
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        {"use_sliding_window": False},
    ),
    FamilyCase("qwen3", "Qwen3Config", {"head_dim": 12}, {"model_type": "llama"}),
    FamilyCase(
        "qwen3-window-biases",
        "Qwen3Config",
        {
            "head_dim": 8,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ),
)


def family_case(name: str) -> FamilyCase:
    """The row of that name."""
    return next(case for case in FAMILIES_TABLE if case.name == name)


def build_reference(case: FamilyCase, seed: int = 0) -> Any:
    """transformers' model with random weights; nothing is left at 0 or 1, where a missing term would not show."""
    config = getattr(transformers, case.config_class)(**{**SMALL, **case.overrides})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.4 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.4 * noise)
            elif "embed" in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(noise / parameter.shape[1] ** 0.5)
    return model.eval()


def logits_token_by_token(reference: Any, tokens: list[int]) -> torch.Tensor:
    """(tokens, vocabulary): the logits of a transformers model that reads one token a pass, with its own cache.

    The cache stands where every release of transformers takes it: its name was `past_key_values` before 5.24.
    """
    cache = transformers.DynamicCache(config=reference.config)
    with torch.inference_mode():
        passes = [reference(torch.tensor([[token]]), None, None, cache, use_cache=True) for token in tokens]
    return torch.stack([output.logits[0, 0] for output in passes])


def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """transformers' logits of every position of one sequence: [len(tokens), vocab]."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


def load_decoder(
    folder: Path, *, dtype: torch.dtype | None = None, arithmetic: str = "auto", **config_changes: Any
) -> Decoder:
    """A checkpoint as Foretoken loads it, or with some keys of config.json changed."""
    config = parse_config({**read_json(folder / "config.json"), **config_changes})
    return Decoder(config, load_weights(folder, config, dtype=dtype), threads=1, arithmetic=arithmetic)


def old_style(raw: dict[str, Any]) -> dict[str, Any]:
    """A config.json of transformers 5 in the layout of transformers 4."""
    old: dict[str, Any] = json.loads(json.dumps(raw))
    rope = old.pop("rope_parameters")
    old["rope_theta"] = rope.pop("rope_theta")
    old["torch_dtype"] = old.pop("dtype")
    kind = rope.pop("rope_type")
    old["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    return old


def random_tokens(count: int, seed: int, vocab: int = SMALL["vocab_size"]) -> list[int]:
    """Token ids."""
    generator = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(vocab, (count,), generator=generator)]


def random_tree(count: int, seed: int) -> list[int]:
    """Parents of a random tree, -1 for the end of the prefix."""
    generator = torch.Generator().manual_seed(seed)
    return [int(torch.randint(-1, row, (1,), generator=generator)) if row else -1 for row in range(count)]


def path_to(parents: list[int], row: int) -> list[int]:
    """The rows from the root down to and including `row`."""
    path: list[int] = []
    while row >= 0:
        path.insert(0, row)
        row = parents[row]
    return path


def run(decoder: Decoder, rows: Rows) -> torch.Tensor:
    """The logits of a pass."""
    return decoder.head(decoder.forward(rows))


def run_in_chunks(decoder: Decoder, tokens: list[int], size: int) -> torch.Tensor:
    """The logits of a sequence that is read `size` tokens at a time, each chunk committed."""
    cache = decoder.new_cache()
    logits = []
    for start in range(0, len(tokens), size):
        rows = chain(cache, tokens[start : start + size])
        logits.append(run(decoder, rows))
        cache.commit(range(len(rows)), rows.writer)
    return torch.cat(logits)
