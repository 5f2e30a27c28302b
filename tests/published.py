"""Drafters as others publish them, with random weights, for targets of any size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.decoder import Decoder
from foretoken.drafters.filling import FillingDrafter
from foretoken.formats.values import dequantise
from foretoken.sampling.sampler import MakeSampler, Sampler
from foretoken.trained.config import EAGLE3, VOCABULARY
from foretoken.trained.files import Trained
from foretoken.trained.filling import FillingDecoder
from foretoken.trained.published import OWN_EMBEDDING, OWN_HEAD, OWN_NORM, PublishedConfig
from foretoken.trained.published_block import DFLASH, PublishedBlock
from foretoken.trained.published_decoder import PublishedDecoder
from foretoken.trained.published_eagle import PublishedEagle

_OUTSIDE = {OWN_HEAD: "lm_head.weight", OWN_NORM: "norm.weight", OWN_EMBEDDING: "embed_tokens.weight"}
# variants of random ones, as `random_published` and `random_dflash` take them
EAGLES: dict[str, dict[str, Any]] = {
    "as published": {"residual_normed": False},
    "normed residual": {},
    "one norm of all that is seen": {"norms": "all"},
    "a norm of each state that is seen": {"norms": "each", "hands_on_normed": True},
    "two layers, norms of heads, biases": {
        "layers": 2,
        "qk_norm": True,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
    },
    "all tokens, an embedding of its own": {"are_all": True, "own_embedding": True},
}
BLOCKS: dict[str, dict[str, Any]] = {
    "with the model's output layer": {},
    "some tokens, norms of heads, two layers": {"reduced": True, "qk_norm": True, "layers": 2},
    "the last token says what follows it": {"from_last": True, "block": 3},
}


def random_published(
    target: Decoder, seed: int = 0, scale: float = 0.02, *, layers: int = 1, **switches: Any
) -> tuple[PublishedEagle, dict[str, torch.Tensor]]:
    """Sizes and tensors of a published EAGLE-3, as they are read from its files. Its attention looks at each row itself
    most of all, and hands its embedding on. It can draft six tokens of seven. switches: as `PublishedEagle` has
    them."""
    c = target.config
    own = _layers(c, layers, switches, wide=True)
    are_all, own_head = bool(switches.pop("are_all", False)), bool(switches.pop("own_head", True))
    tokens = torch.tensor([token for token in range(c.valid_vocab_size) if are_all or token % 7 != 3])
    usual = {"residual_normed": True, "norms": "", "hands_on_normed": False, "own_embedding": False}
    config = PublishedEagle(
        *(EAGLE3, "", 0, 0, own.head_dim, own.hidden_size, own.num_heads, own),
        sees=switches.pop("sees", (1, c.num_layers)),
        choices=len(tokens),
        are_all=are_all,
        own_head=own_head,
        target="",
        by_outputs=False,
        **{**usual, **switches},
    )
    tensors = _drawn(config, seed, scale)
    width, inner = own.hidden_size, own.num_heads * own.head_dim
    at = torch.arange(min(width, inner))
    for part in ("q", "k", "v"):
        tensors[f"layers.0.self_attn.{part}_proj.weight"][at, at] += 1.0 if part == "v" else 3.0
    tensors["layers.0.self_attn.o_proj.weight"][at, at] += 1.0
    tensors["seen_norm.weight"] *= 0.1
    tensors["embedded_norm.weight"] = tensors["layers.0.input_layernorm.weight"]
    return config, _with_output(target, tensors, tokens if own_head else None)


def published_decoder(target: Decoder, seed: int = 0, scale: float = 0.02, **switches: Any) -> PublishedDecoder:
    """The decoder of a published EAGLE-3 for a target."""
    trained = Trained(*random_published(target, seed, scale, **switches))
    config, weights = trained.weights(target)
    return PublishedDecoder(config, weights, trained, arithmetic=target.arithmetic, threads=1)


def random_dflash(
    target: Decoder, seed: int = 0, scale: float = 0.02, *, layers: int = 1, reduced: bool = False, **sizes: Any
) -> tuple[PublishedBlock, dict[str, torch.Tensor]]:
    """The same for a published DFlash. All places of a block hold what would follow the last token, more or less: its
    rows hand the mean of all embeddings on, in which there is little of the text, and nothing of the mask. reduced: it
    can draft six tokens of seven, and has an output layer for these."""
    c = target.config
    own = _layers(c, layers, sizes, wide=False)
    tokens = torch.tensor([token for token in range(c.valid_vocab_size) if token % 7 != 3])
    config = PublishedBlock(
        *(DFLASH, "", 0, 0, own.head_dim, own.hidden_size, own.num_heads, own),
        choices=len(tokens) if reduced else c.vocab_size,
        are_all=not reduced,
        own_head=reduced,
        own_embedding=False,
        target="",
        **{"sees": (0, c.num_layers - 1), "block": 6, "mask": 5, "from_last": False, **sizes},
    )
    tensors = _drawn(config, seed, scale)
    at = torch.arange(min(own.hidden_size, own.num_heads * own.head_dim))
    mask = target.weights.embedding[config.mask].float().cpu() * tensors["layers.0.input_layernorm.weight"]
    for_mask = torch.outer(mask, mask) / mask.pow(2).sum()
    tensors["layers.0.self_attn.v_proj.weight"][at, at] += 1.0
    tensors["layers.0.self_attn.v_proj.weight"][at] -= for_mask[at]
    if scale < 0.05:
        tensors["layers.0.self_attn.o_proj.weight"][at, at] += 300.0
        tensors["seen_norm.weight"] *= 0.001
    return config, _with_output(target, tensors, tokens if reduced else None)


def filling_decoder(target: Decoder, seed: int = 0, scale: float = 0.02, **sizes: Any) -> FillingDecoder:
    """The decoder of a published DFlash for a target."""
    trained = Trained(*random_dflash(target, seed, scale, **sizes))
    config, weights = trained.weights(target)
    return FillingDecoder(config, weights, trained, arithmetic=target.arithmetic, threads=1)


def _layers(target: DecoderConfig, count: int, switches: dict[str, Any], *, wide: bool) -> DecoderConfig:
    """A drafter's layers. switches: those of layers are taken out."""
    named = ("qkv_bias", "output_bias", "mlp_bias", "qk_norm")
    return replace(
        target,
        num_layers=count,
        num_kv_heads=target.num_heads,
        intermediate_sizes=None,
        windows=(None,) * count,
        rope=replace(target.rope, theta=5000.0),
        norm_eps=1e-4,
        tied=False,
        wide=wide,
        low_bit=None,
        **{name: bool(switches.pop(name, False)) for name in named},
    )


def _drawn(config: PublishedConfig, seed: int, scale: float) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in config.shapes().items():
        if len(shape) == 2:
            tensors[name] = torch.randn(shape) * scale
        else:
            tensors[name] = torch.randn(shape) * 0.1 + (0.0 if name.endswith(".bias") else 1.0)
    return tensors


def _with_output(
    target: Decoder, tensors: dict[str, torch.Tensor], tokens: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """With the target's final norm, and its output layer for some tokens; all as a file would have them."""
    tensors[OWN_NORM] = target.weights.norm.float().cpu()
    if tokens is not None:
        head = target.weights.head.weight
        values = head if isinstance(head, torch.Tensor) else dequantise(head)
        tensors[OWN_HEAD] = values.float().cpu()[tokens]
        if VOCABULARY in tensors:
            tensors[VOCABULARY] = tokens
    return {n: t.int() if n == VOCABULARY else t.to(torch.bfloat16).float() for n, t in tensors.items()}


def _sizes(own: DecoderConfig, vocab_size: int) -> dict[str, Any]:
    """Of a drafter's layers, as a config.json has them."""
    return {
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


def write_published(
    folder: Path, config: PublishedConfig, tensors: dict[str, torch.Tensor], vocab_size: int, layout: str
) -> None:
    """A folder in the layout of "speculators", or of the authors of its kind, which for EAGLE-3 SGLang shares."""
    raw = _of_block(config, vocab_size, layout) if isinstance(config, PublishedBlock) else None
    if isinstance(config, PublishedEagle):
        raw = _of_eagle(config, vocab_size, layout)
    stored = {}
    for name, tensor in tensors.items():
        if name == VOCABULARY:
            tokens = tensor.long()
            stored["d2t"] = tokens - torch.arange(len(tokens))
            stored["t2d"] = torch.isin(torch.arange(vocab_size), tokens)
            continue
        called = {**_OUTSIDE, **{ours: theirs for ours, (theirs, _) in config.beside.items()}}.get(name, name)
        stored[called.replace("layers.0.", "midlayer.") if layout == "sglang" else called] = tensor.to(torch.bfloat16)
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))


def _of_eagle(config: PublishedEagle, vocab_size: int, layout: str) -> dict[str, Any]:
    switches = {
        "draft_vocab_size": config.choices,
        "norm_before_residual": config.residual_normed,
        "norm_before_fc": config.norms == "all",
        "fc_norm": config.norms == "each",
        "norm_output": config.hands_on_normed,
        "embed_requires_grad": config.own_embedding,
    }
    ids = {"eagle_aux_hidden_state_layer_ids": list(config.sees)}
    sizes = _sizes(config.own, vocab_size)
    if layout == "speculators":
        its = {"speculators_model_type": "eagle3", "transformer_layer_config": sizes}
        return {"architectures": ["Eagle3DraftModel"], **its, **switches, **ids}
    return {"architectures": ["LlamaForCausalLMEagle3"], **sizes, **switches, "eagle_config": ids}


def _of_block(config: PublishedBlock, vocab_size: int, layout: str) -> dict[str, Any]:
    sizes, sees = _sizes(config.own, vocab_size), list(config.sees)
    if layout == "speculators":
        its = {"speculators_model_type": "dflash", "transformer_layer_config": sizes, "mask_token_id": config.mask}
        more = {"draft_vocab_size": config.choices, "sample_from_anchor": config.from_last}
        return {**its, **more, "block_size": config.block, "aux_hidden_state_layer_ids": sees}
    its = {"mask_token_id": config.mask, "target_layer_ids": [at - 1 for at in sees]}
    its |= {"sample_from_anchor": config.from_last} if config.from_last else {}
    reduced = {} if config.are_all else {"draft_vocab_size": config.choices}
    return {"architectures": ["DFlashDraftModel"], **sizes, **reduced, "block_size": config.block, "dflash_config": its}


def filling_drafter(
    model: FillingDecoder,
    vocab_size: int,
    *,
    shape: str = "best-first",
    confidence: float = 0.0,
    samplers: MakeSampler = Sampler,
) -> FillingDrafter:
    """What drafts with a published DFlash. vocab_size: the target's."""
    return FillingDrafter(
        model=model,
        samplers=samplers,
        name="dflash",
        vocab_size=vocab_size,
        shape=shape,
        sharpness=1.0,
        pauses=True,
        confidence=confidence,
    )
