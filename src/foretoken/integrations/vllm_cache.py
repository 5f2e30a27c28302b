"""vLLM's keys and values, read out of its paged cache, for drafts that see what the model has computed.

A request's positions lie in blocks, in any order. Its row of the batch's block table names the blocks. How a block lays
its numbers out differs between processors, because vLLM packs keys for their instructions, and nothing says so. So the
layout is found out: vLLM's own code writes a block of numbers that are all different, and each is looked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from foretoken.errors import UnsupportedModelError

_WHOLE = ("auto", "bfloat16", "float16", "half", "float32", "float")  # types of a cache whose numbers have no scales
_DIGIT = 128  # all whole numbers below it are exact in every floating-point type that a cache may have


def why_not(config: Any) -> str:
    """Why the keys and values of a model cannot be read, in words; empty if they can. config: vLLM's."""
    parallel, cache = config.parallel_config, config.cache_config
    if config.device_config.device_type != "cpu":
        return "that is done on the CPU only so far"
    if parallel.world_size > 1:
        return "each of several workers has a part of them"
    if cache.cache_dtype not in _WHOLE:
        return f"they are kept as {cache.cache_dtype}"
    if config.model_config.get_sliding_window() is not None:
        return "the model forgets them behind a sliding window"
    if any(layer is None for layer in _layers(config)):
        return "its layers are not called as usual"
    return ""


def _layers(config: Any) -> list[Any]:
    """The attention of each layer, in order; None for those that are not where they are looked for."""
    known = config.compilation_config.static_forward_context
    count = config.model_config.get_num_layers(config.parallel_config)
    return [known.get(f"model.layers.{at}.self_attn.attn") for at in range(count)]


class PagedCache:
    """The keys and values of vLLM's batch. batch: vLLM's input batch; it is set before drafts are made."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self.batch: Any = None

    def read(self, row: int, layer: int, positions: range) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of some positions: [N, kv_heads, head_dim]. row: of the batch."""
        blocks, layout = self._blocks[layer], self._layout
        table = self.batch.block_table.block_tables[0].block_table.np[row]
        at = np.arange(positions.start, positions.stop)
        within = torch.from_numpy(at % layout.size)
        of = torch.from_numpy(table[at // layout.size].astype(np.int64))[:, None, None]
        return blocks[of, layout.keys[within]], blocks[of, layout.values[within]]

    @cached_property
    def _blocks(self) -> list[torch.Tensor]:
        """The cache of each layer, [blocks, numbers of a block]."""
        return [layer.kv_cache.view(len(layer.kv_cache), -1) for layer in _layers(self._config)]

    @cached_property
    def _layout(self) -> _Layout:
        tables = self.batch.block_table.block_tables
        layout = _found(_layers(self._config)[0], tables[0].block_size) if len(tables) == 1 else None
        if layout is None:
            raise UnsupportedModelError(
                "vLLM keeps keys and values here in a way that cannot be read; use a copy with its own, such as "
                "mxfp4:own-cache, or lookup, and report it with the processor and vLLM's version"
            )
        return layout


@dataclass(frozen=True)
class _Layout:
    """Where in a block what lies. size: positions of a block. keys, values: the place in the block's numbers of each
    number, [size, kv_heads, head_dim]."""

    size: int
    keys: torch.Tensor
    values: torch.Tensor


def _found(layer: Any, size: int) -> _Layout | None:
    """The layout of a layer's blocks; None if some number is not found where it was written."""
    impl, block = layer.impl, torch.zeros_like(layer.kv_cache[:1])
    shape = (size, impl.num_kv_heads, impl.head_size)
    count = int(np.prod(shape))
    slots = torch.arange(size)
    numbers = torch.arange(1, 2 * count + 1)  # of the keys, then of the values; 0 is what was there before
    read, weight = torch.zeros(block.numel(), dtype=torch.int64), 1
    while weight <= 2 * count:
        digits = (numbers // weight % _DIGIT).to(block.dtype)
        block.zero_()
        impl.do_kv_cache_update(layer, digits[:count].view(shape), digits[count:].view(shape), block, slots)
        read += block.flatten().to(torch.int64) * weight
        weight *= _DIGIT
    places = torch.full((2 * count + 1,), -1)
    places[read] = torch.arange(len(read))
    if (places[1:] < 0).any() or not torch.equal(read[places[1:]], numbers):
        return None
    return _Layout(size, places[1 : count + 1].view(shape), places[count + 1 :].view(shape))
