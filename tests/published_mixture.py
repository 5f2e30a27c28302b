"""Published Mixtures of Attentions with random weights, for targets of any size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from foretoken.decoder.config import MOA_SPEC
from foretoken.decoder.decoder import Decoder
from foretoken.trained.crossing import CrossingDecoder
from foretoken.trained.files import Trained, expected_shapes
from foretoken.trained.observer import ObservingLayers
from foretoken.trained.published_mixture import PublishedMixture, stored_name

LAYOUTS = ("training", "vllm")


def random_published_mixture(
    target: Decoder, seed: int = 0, scale: float = 0.02
) -> tuple[PublishedMixture, dict[str, torch.Tensor]]:
    """Sizes and tensors, as they are read from files. With a small scale it repeats what the token alone suggests."""
    c = target.config
    sizes = (c.intermediate_size // 2, c.intermediate_size)
    own = replace(
        c,
        num_layers=2,
        num_kv_heads=1,
        intermediate_size=max(sizes),
        intermediate_sizes=sizes,
        windows=(None, None),
        rope=replace(c.rope, theta=5000.0),
        norm_eps=0.1,
        tied=False,
        low_bit=None,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
    )
    width = 2 * c.num_kv_heads * c.head_dim  # of which each head of the observer has an even share
    heads = next(count for count in range(c.num_heads, 0, -1) if width % (2 * count) == 0)
    config = PublishedMixture(
        method=MOA_SPEC,
        fingerprint="",
        target_layers=0,
        target_kv_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        hidden_size=c.hidden_size,
        num_heads=c.num_heads,
        kv_heads=1,
        intermediate_size=max(sizes),
        observer_heads=heads,
        observer_kv_heads=heads // 2 if heads % 2 == 0 else heads,
        observer_intermediate_size=96,
        layers=(),
        own=own,
    )
    chance = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(config).items():
        drawn = torch.randn(shape, generator=chance)
        one = 0.0 if name.endswith(".bias") else 1.0
        tensors[name] = (drawn * scale if len(shape) == 2 else drawn * 0.1 + one).to(torch.bfloat16).float()
    return config, tensors


def crossing_and_observer(
    target: Decoder, seed: int = 0, scale: float = 0.02
) -> tuple[CrossingDecoder, ObservingLayers]:
    """The parts of which a published Mixture of Attentions for a target is made."""
    config, tensors = random_published_mixture(target, seed, scale)
    trained = Trained(config.of_target(target.config), tensors)
    observer = trained.observer(target)
    assert observer is not None
    its, weights = trained.weights(target)
    return CrossingDecoder(its, weights, trained, arithmetic=target.arithmetic, threads=1), observer


def write_published_mixture(
    folder: Path, config: PublishedMixture, tensors: dict[str, torch.Tensor], vocab_size: int, layout: str
) -> None:
    """A folder in the layout of the authors' training, or of their vLLM."""
    folder.mkdir(parents=True)
    stored = {stored_name(name): tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(stored, folder / "model.safetensors")
    raw: dict[str, Any] = {
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.own.norm_eps,
        "rope_theta": config.own.rope.theta,
        "rope_scaling": None,
        "vocab_size": vocab_size,
        "max_position_embeddings": 2048,
    }
    if layout == "training":  # the sizes are those of the model, not of the drafter
        its = {"num_hidden_layers": 7, "intermediate_size": 999, "num_key_value_heads": config.target_kv_heads}
        raw |= {"architectures": ["MOASpec"], "model_type": "llama", **its}
    else:
        its = {"self": config.own.intermediate_of(0), "cross": config.own.intermediate_of(1)}
        raw |= {"architectures": ["MOASpecModel"], "model_type": MOA_SPEC, "kv_hidden_size": config.observed}
        raw |= {f"{name}_attention_intermediate_size": size for name, size in its.items()}
        raw["disable_LSA"] = False
    (folder / "config.json").write_text(json.dumps(raw))
