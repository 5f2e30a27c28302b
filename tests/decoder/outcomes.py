"""What rows come to, to compare bit for bit: decoders of awkward shapes, passes over them, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import Rows, chain

Make = Callable[..., Decoder]  # of a shape, a type, threads, and changes to the configuration

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# widths that are no multiple of a vector, where kernels treat the rest of a row differently; a wide one whose products
# are worth splitting; windows, whose keys begin at any address
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd-widths": {
        "hidden_size": 100,
        "intermediate_size": 130,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "head_dim": 20,
    },
    "odd-heads": {
        "hidden_size": 33,
        "intermediate_size": 51,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 10,
    },
    "wide": {"vocab_size": 500, "hidden_size": 256, "intermediate_size": 520, "head_dim": 64, "num_hidden_layers": 1},
    "window": {"model_type": "mistral", "sliding_window": 12},
    "window-odd-heads": {"model_type": "mistral", "sliding_window": 13, "num_key_value_heads": 1, "head_dim": 10},
    "qwen3": {"model_type": "qwen3", "attention_bias": True},
}


@dataclass(frozen=True)
class Outcome:
    """What some rows came to."""

    hidden: torch.Tensor
    logits: torch.Tensor
    stored: list[torch.Tensor]  # keys and values, layer by layer

    def row(self, row: int) -> Outcome:
        return Outcome(self.hidden[row], self.logits[row], [tensor[row] for tensor in self.stored])

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Outcome)
        mine, theirs = (
            [self.hidden, self.logits, *self.stored],
            [other.hidden, other.logits, *other.stored],
        )
        assert [tensor.shape for tensor in mine] == [tensor.shape for tensor in theirs]
        assert not any(tensor.isnan().any() for tensor in mine + theirs)
        return all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def run(decoder: Decoder, rows: Rows) -> Outcome:
    """One pass: what its rows came to, in the order in which they stand in it."""
    hidden = decoder.forward(rows)
    stored = []
    for layer in range(decoder.config.num_layers):
        read = [(segment, segment.cache.read(layer)) for segment in rows.segments]
        for which in (0, 1):
            parts = [
                both[which][segment.cache.length + segment.slots.start : segment.cache.length + segment.slots.stop]
                for segment, both in read
            ]
            stored.append(torch.cat(parts).clone())
    return Outcome(hidden, decoder.head(hidden), stored)


def together(outcomes: Sequence[Outcome]) -> Outcome:
    return Outcome(
        torch.cat([outcome.hidden for outcome in outcomes]),
        torch.cat([outcome.logits for outcome in outcomes]),
        [torch.cat(tensors) for tensors in zip(*(outcome.stored for outcome in outcomes), strict=True)],
    )


def pieces(tokens: list[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Cut a list; the last size is used again as often as needed."""
    sizes, start = list(sizes), 0
    while start < len(tokens):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        yield tokens[start : start + size]
        start += size


def read_committed(decoder: Decoder, tokens: list[int], sizes: Sequence[int], cache: Cache | None = None) -> Outcome:
    """Read a sequence chunk by chunk, each committed before the next."""
    cache = decoder.new_cache() if cache is None else cache
    outcomes = []
    for piece in pieces(tokens, sizes):
        rows = chain(cache, piece)
        outcomes.append(run(decoder, rows))
        cache.commit(range(len(rows)), rows.writer)
    return together(outcomes)


def read_in_scratch(decoder: Decoder, tokens: list[int], sizes: Sequence[int], cache: Cache | None = None) -> Outcome:
    """Read a sequence chunk by chunk and commit none."""
    cache = decoder.new_cache() if cache is None else cache
    return together([run(decoder, chain(cache, piece)) for piece in pieces(tokens, sizes)])


def after(decoder: Decoder, prefix: list[int]) -> Cache:
    """A cache with a prefix that was read in one pass."""
    cache = decoder.new_cache()
    read_committed(decoder, prefix, [len(prefix)], cache)
    return cache


shapes = pytest.mark.parametrize("shape", SHAPES)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def compare_chunks(decoder: Decoder, tokens: list[int], sizes: Sequence[int]) -> None:
    whole_cache = decoder.new_cache()
    whole = read_committed(decoder, tokens, [len(tokens)], whole_cache)
    for size in sizes:
        cache = decoder.new_cache()
        assert read_committed(decoder, tokens, [size], cache) == whole, size
        assert cache.digest() == whole_cache.digest(), size
