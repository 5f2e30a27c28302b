"""The fingerprint of a model, by which its copies are recognised."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch

from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.loading import mapped_tensors
from foretoken.decoder.shapes import expected_shapes

_PIECE = 4096  # bytes
# the structure of a model. Positions, context and end tokens may be set differently for the same weights, and a copy
# takes these from its model
_FIELDS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "tied",
)


def fingerprint(folder: Path, config: DecoderConfig) -> str:
    """A SHA-256, in hexadecimal digits, of a model's structure, of each tensor's name, type and shape, and of 4096
    bytes at the beginning, in the middle and at the end of each tensor.

    The fingerprint shows that a copy belongs to a model: that the model was not trained further or replaced since,
    which changes nearly every number. It is no proof: if only numbers between the hashed bytes have changed, the
    fingerprint stays the same, and fewer draft tokens are accepted. A proof would hash every byte, and so read the
    whole model at every load. And a copy of the wrong model costs only time: it changes no token. How tensors are
    divided among files makes no difference.
    """
    return fingerprint_of(mapped_tensors(folder, config), config)


def fingerprint_of(tensors: Mapping[str, torch.Tensor], config: DecoderConfig) -> str:
    """The same of tensors in memory, by their names in a checkpoint."""
    digest = hashlib.sha256(json.dumps({name: getattr(config, name) for name in _FIELDS}).encode())
    for name in expected_shapes(config):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        data = tensor.view(-1).view(torch.uint8)
        middle = max(len(data) // 2 - _PIECE // 2, 0)
        for piece in (data[:_PIECE], data[middle : middle + _PIECE], data[-_PIECE:]):
            digest.update(piece.numpy().data)
    return digest.hexdigest()
