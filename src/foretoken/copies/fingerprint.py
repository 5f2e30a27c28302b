"""Whose copy it is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.loading import mapped_tensors
from foretoken.decoder.shapes import expected_shapes

_PIECE = 4096  # bytes
# what says how weights are put together. Positions, context and end tokens may be set differently for the same weights,
# and a copy takes them from its model
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
    """A SHA-256 in hexadecimal digits, of how the weights of a checkpoint are put together, of each tensor's name, type
    and shape, and of 4096 bytes at its beginning, in its middle and at its end.

    It is to tell that a copy belongs to a model: that the model has not been trained further or exchanged since, which
    changes nearly every number of it. It is no proof: who changes a few numbers between those that are looked at gets
    the same one, and a draft that accepts less. What would prove it is a hash of every byte, for which all of the model
    would have to be read at every load; and a copy that is not the model's costs time only, never a token. How tensors
    are divided among files makes no difference.
    """
    digest = hashlib.sha256(json.dumps({name: getattr(config, name) for name in _FIELDS}).encode())
    tensors = mapped_tensors(folder, config)
    for name in expected_shapes(config):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        data = tensor.view(-1).view(torch.uint8)
        middle = max(len(data) // 2 - _PIECE // 2, 0)
        for piece in (data[:_PIECE], data[middle : middle + _PIECE], data[-_PIECE:]):
            digest.update(piece.numpy().data)
    return digest.hexdigest()
