"""Caches whose keys and values are numbers that say who they are."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import torch

from foretoken.decoder.cache import Cache, new_writer
from foretoken.decoder.memory import Memory
from foretoken.errors import ContractError

LAYERS, KV_HEADS, HEAD_DIM = 3, 2, 4


def new_cache(layers: range = range(LAYERS), dtype: torch.dtype = torch.float32) -> Cache:
    return Cache(layers, Memory.empty(len(layers), KV_HEADS, HEAD_DIM, dtype, torch.device("cpu")))


def rows_of(names: Sequence[int], layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of rows in a layer: numbers that no other row, layer, head or dimension has, exact in float32."""
    keys = torch.tensor([[float(name % 2048 * 8 + layer)] for name in names]).view(-1, 1, 1)
    inner = torch.arange(KV_HEADS * HEAD_DIM).view(1, KV_HEADS, HEAD_DIM) / 1024
    return keys + inner, -keys - inner


def fill(cache: Cache, names: Sequence[int], parents: Sequence[int] | None = None) -> int:
    """Place rows (a chain after the prefix if no parents are given), write them in all layers; returns the writer."""
    writer = new_writer()
    slots = cache.place(range(-1, len(names) - 1) if parents is None else parents)
    for layer in cache.layers:
        cache.write(layer, slots, *rows_of(names, layer), writer)
    return writer


def extend(cache: Cache, names: Sequence[int]) -> None:
    """Commit rows to the end of the prefix."""
    cache.commit(range(len(names)), fill(cache, names))


def holds(cache: Cache, names: Sequence[int], slots: Sequence[int] = ()) -> bool:
    """Whether the prefix, then scratch, are these rows in every layer."""
    if cache.length != len(names) or cache.scratch != len(slots):
        return False
    expected = [rows_of([*names, *slots], layer) for layer in cache.layers]
    return all(
        torch.equal(mine, theirs)
        for layer, both in zip(cache.layers, expected, strict=True)
        for mine, theirs in zip(cache.read(layer), both, strict=True)
    )


def plain(names: Sequence[int], layers: range = range(LAYERS)) -> Cache:
    """A cache without history: the rows one by one."""
    cache = new_cache(layers)
    for name in names:
        extend(cache, [name])
    return cache


def refused(message: str) -> pytest.RaisesExc[ContractError]:
    """A ContractError with this message, whole and in one line."""
    assert "\n" not in message
    return pytest.raises(ContractError, match=f"^{re.escape(message)}$")
