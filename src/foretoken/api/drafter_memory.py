"""The memory that a trained drafter takes under a bound: what stays, and what is there only while it is loaded."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch

from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.low_bit import size_in
from foretoken.decoder.memory import FIRST_CAPACITY, doubled
from foretoken.decoder.shards import weight_files
from foretoken.drafters.recipe import Level
from foretoken.trained.config import BlockConfig, MixtureConfig, StackConfig, TrainedConfig
from foretoken.trained.files import expected_shapes, read_trained_config
from foretoken.trained.published import OWN_EMBEDDING, OWN_HEAD, PublishedConfig

_FLOAT = 4  # bytes of a number in what it sees


class DrafterBytes(NamedTuple):
    """Bytes of memory. stays: weights, keys and values, and what is seen of a text. loading: what is there only while
    the drafter is loaded."""

    stays: int
    loading: int


def memory_of_drafter(level: Level, target: DecoderConfig, positions: int, dtype: torch.dtype) -> DrafterBytes:
    """The memory of a trained drafter with a text of so many positions. target: the model's configuration. dtype: of
    its weights, keys and values."""
    assert level.folder is not None
    its, _ = read_trained_config(level.folder)
    decoder = its.decoder(target)
    file = sum(file.stat().st_size for file in weight_files(level.folder))
    numbers = {name: prod(shape) for name, shape in expected_shapes(its).items() if name != OWN_HEAD}
    embedding = numbers.pop(OWN_EMBEDDING, 0) * dtype.itemsize
    beside = sum(count for name, count in numbers.items() if not name.startswith("layers."))
    layers = (sum(numbers.values()) - beside) * dtype.itemsize
    loading = file + (2 * _FLOAT * beside if isinstance(its, MixtureConfig) else 0)  # an observer in float32, twice
    choices = _choices(its)
    table = (choices or target.vocab_size) * its.rank if isinstance(its, BlockConfig) else 0  # made in float32
    loading += 2 * _FLOAT * table
    beside += table
    own_head = choices * target.hidden_size * dtype.itemsize
    if level.format is None:
        weights = layers + own_head + (2 + _FLOAT) * beside  # in PyTorch, the observer stays in float32, too
    else:
        weights = size_in(level.format, its.linears(target)) + 2 * beside  # matrices beside the layers are in int8
        loading += 0 if dtype == torch.bfloat16 else layers  # which are converted before they are cast
        loading += own_head  # of which the cast is made
    reads_theirs = not (isinstance(its, PublishedConfig) and its.own_head)
    if reads_theirs and (level.format is not None or own_head):
        # a head that lies in the processor's layout is read again from its file
        loading += 0 if target.tied else target.vocab_size * target.hidden_size * dtype.itemsize
    weights += embedding
    grown = doubled(FIRST_CAPACITY, positions)  # while a cache grows, the one from which it has grown is there, too
    cache = decoder.bytes_of_position(dtype.itemsize) * (grown + grown // 2)
    return DrafterBytes(weights + cache + 2 * _FLOAT * _seen(its) * positions, loading)


def _choices(its: TrainedConfig) -> int:
    """For how many tokens it has an output layer of its own."""
    if isinstance(its, PublishedConfig):
        return its.choices if its.own_head else 0
    return its.choices if isinstance(its, MixtureConfig) else 0


def _seen(its: TrainedConfig) -> int:
    """How many numbers of what the model computes are kept for a position, those that are made of them included."""
    if isinstance(its, MixtureConfig):
        return its.observed + its.hidden_size
    if isinstance(its, PublishedConfig):
        return its.hidden_size * (its.reduced_from + 1)
    assert isinstance(its, StackConfig)
    return its.hidden_size * (len(its.sees) + 1) if its.sees else 0
