"""Tiny random decoders, in milliseconds and without a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from foretoken.decoder.config import DecoderConfig, parse_config
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.shapes import expected_shapes
from foretoken.decoder.weights import assemble
from foretoken.kernels import native

needs_native = pytest.mark.skipif(native.module() is None, reason="the native module is not built, or off")

# what a decoder's `arithmetic` may be here: for tests of what must hold on both
ARITHMETICS = ("pytorch", pytest.param("auto", id="native", marks=needs_native))

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def tiny_config(**changes: Any) -> DecoderConfig:
    """A configuration like `BASE` but for some keys of config.json."""
    return parse_config({**BASE, **changes})


def random_tensors(config: DecoderConfig, seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Random weights by name: matrices keep a vector's size, norms are near one, biases small."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        if "norm" in name:
            tensors[name] = 1 + 0.1 * noise
        elif name.endswith("bias"):
            tensors[name] = 0.1 * noise
        elif "embed" in name:
            tensors[name] = noise
        else:
            tensors[name] = scale * noise / shape[1] ** 0.5
    return tensors


def tiny_decoder(
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    threads: int | None = None,
    arithmetic: str = "auto",
    **changes: Any,
) -> Decoder:
    """A decoder with random weights. It runs natively where it can, unless `arithmetic` is "pytorch"."""
    config = tiny_config(**changes)
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors(config, seed).items()}
    return Decoder(config, assemble(tensors, config), threads=threads, arithmetic=arithmetic)


def all_logits(outputs: Outputs) -> torch.Tensor:
    """The logits of all rows of a pass: float32 [N, vocabulary]."""
    return torch.stack([outputs.logits(row) for row in range(len(outputs.hidden))])


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products are many times slower on two threads when something else runs; tests of threads say how many.

    For the conftest of a folder to import: every test of the folder uses it.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
