"""Drafters of EAGLE-3 as others publish them, with random weights, for targets of any size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from foretoken.decoder.decoder import Decoder
from foretoken.formats.values import dequantise
from foretoken.trained.config import EAGLE3, VOCABULARY
from foretoken.trained.files import Trained
from foretoken.trained.published import OWN_EMBEDDING, OWN_HEAD, OWN_NORM, PublishedConfig
from foretoken.trained.published_decoder import PublishedDecoder

_NAMES = {
    "reduction.weight": "fc.weight",
    OWN_HEAD: "lm_head.weight",
    OWN_NORM: "norm.weight",
    OWN_EMBEDDING: "embed_tokens.weight",
    "embedded_norm.weight": "layers.0.input_layernorm.weight",
    "seen_norm.weight": "layers.0.hidden_norm.weight",
    "seen.weight": "input_norm.weight",
}


def random_published(
    target: Decoder, seed: int = 0, scale: float = 0.02, *, layers: int = 1, **switches: Any
) -> tuple[PublishedConfig, dict[str, torch.Tensor]]:
    """Sizes and tensors of a published EAGLE-3, as they are read from its files. Its attention looks at each row itself
    most of all, and hands its embedding on. It can draft six tokens of seven. switches: as `PublishedConfig` has
    them."""
    c = target.config
    own = replace(
        c,
        num_layers=layers,
        num_kv_heads=c.num_heads,
        intermediate_sizes=None,
        windows=(None,) * layers,
        rope=replace(c.rope, theta=5000.0),
        norm_eps=1e-4,
        tied=False,
        wide=True,
        low_bit=None,
        **{name: bool(switches.pop(name, False)) for name in ("qkv_bias", "output_bias", "mlp_bias", "qk_norm")},
    )
    tokens = torch.tensor([token for token in range(c.valid_vocab_size) if token % 7 != 3])
    usual = {"residual_normed": True, "norms": "", "hands_on_normed": False, "own_embedding": False}
    config = PublishedConfig(
        *(EAGLE3, "", 0, 0, own.head_dim, own.hidden_size, own.num_heads, own),
        sees=switches.pop("sees", (1, c.num_layers)),
        choices=len(tokens),
        are_all=False,
        **{**usual, **switches},
    )
    torch.manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in config.shapes().items():
        if len(shape) == 2:
            tensors[name] = torch.randn(shape) * scale
        else:
            tensors[name] = torch.randn(shape) * 0.1 + (0.0 if name.endswith(".bias") else 1.0)
    width, inner = own.hidden_size, own.num_heads * own.head_dim
    at = torch.arange(min(width, inner))
    for part in ("q", "k", "v"):
        tensors[f"layers.0.self_attn.{part}_proj.weight"][at, at] += 1.0 if part == "v" else 3.0
    tensors["layers.0.self_attn.o_proj.weight"][at, at] += 1.0
    tensors["seen_norm.weight"] *= 0.1
    tensors["embedded_norm.weight"] = tensors["layers.0.input_layernorm.weight"]
    head = target.weights.head.weight
    values = head if isinstance(head, torch.Tensor) else dequantise(head)
    tensors[OWN_HEAD], tensors[OWN_NORM] = values.float().cpu()[tokens], target.weights.norm.float().cpu()
    tensors[VOCABULARY] = tokens
    return config, {n: t.int() if n == VOCABULARY else t.to(torch.bfloat16).float() for n, t in tensors.items()}


def published_decoder(target: Decoder, seed: int = 0, scale: float = 0.02, **switches: Any) -> PublishedDecoder:
    """The decoder of a published EAGLE-3 for a target."""
    trained = Trained(*random_published(target, seed, scale, **switches))
    config, weights = trained.weights(target)
    return PublishedDecoder(config, weights, trained, arithmetic=target.arithmetic, threads=1)


def write_published(
    folder: Path, config: PublishedConfig, tensors: dict[str, torch.Tensor], vocab_size: int, layout: str
) -> None:
    """A folder as SGLang or speculators would have it."""
    own = config.own
    sizes = {
        "model_type": "qwen3" if own.qk_norm else "llama",
        "vocab_size": vocab_size,
        "hidden_size": own.hidden_size,
        "intermediate_size": own.intermediate_size,
        "num_hidden_layers": own.num_layers,
        "num_attention_heads": own.num_heads,
        "num_key_value_heads": own.num_kv_heads,
        "head_dim": own.head_dim,
        "rms_norm_eps": own.norm_eps,
        "rope_theta": own.rope.theta,
        "max_position_embeddings": 2048,
    }
    switches = {
        "draft_vocab_size": config.choices,
        "norm_before_residual": config.residual_normed,
        "norm_before_fc": config.norms == "all",
        "fc_norm": config.norms == "each",
        "norm_output": config.hands_on_normed,
        "embed_requires_grad": config.own_embedding,
    }
    ids = {"eagle_aux_hidden_state_layer_ids": list(config.sees)}
    if layout == "speculators":
        own_part = {"speculators_model_type": "eagle3", "transformer_layer_config": sizes}
        raw: dict[str, Any] = {"architectures": ["Eagle3DraftModel"], **own_part, **switches, **ids}
    else:
        raw = {"architectures": ["LlamaForCausalLMEagle3"], **sizes, **switches, "eagle_config": ids}
    stored = {}
    for name, tensor in tensors.items():
        if name == VOCABULARY:
            tokens = tensor.long()
            stored["d2t"] = tokens - torch.arange(len(tokens))
            stored["t2d"] = torch.isin(torch.arange(vocab_size), tokens)
            continue
        called = _NAMES.get(name, name)
        if called.startswith("seen"):
            called = f"fc_norm.{called[4]}.weight"
        if layout == "sglang":
            called = called.replace("layers.0.", "midlayer.")
        stored[called] = tensor.to(torch.bfloat16)
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
