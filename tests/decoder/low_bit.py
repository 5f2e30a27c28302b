"""Tiny models in low-bit formats."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.linear import Linear
from foretoken.decoder.rows import Rows
from foretoken.decoder.weights import Weights, assemble
from foretoken.formats import format_of
from foretoken.formats.weight import QuantisedWeight
from tests.decoder.models import random_tokens, random_tree
from tests.decoder.outcomes import Outcome, read_committed, run
from tests.formats.layout import ALL
from tests.tiny import random_tensors, tiny_config

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


def same_codes(one: Weights, other: Weights) -> bool:
    def parts(linear: Linear) -> tuple[torch.Tensor, torch.Tensor]:
        assert isinstance(linear.weight, QuantisedWeight)
        return linear.weight.codes, linear.weight.scales

    return all(
        torch.equal(a, b)
        for x, y in zip(one.linears, other.linears, strict=True)
        for a, b in zip(parts(x), parts(y), strict=True)
    )
