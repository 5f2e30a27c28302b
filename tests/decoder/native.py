"""What tests of native passes share: decoders of every instruction set, and one made of the reference's operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import Rows, chain
from foretoken.decoder.weights import Weights, assemble
from tests.decoder.models import random_tokens, random_tree
from tests.isas import HERE
from tests.kernels.numbers import DTYPES, floats, same
from tests.reference_decoder import KeysValues, Part, ReferenceDecoder, Result, committed
from tests.tiny import all_logits, random_tensors, tiny_config

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def tensors_of(config: DecoderConfig, dtype: torch.dtype, seed: int = 3, scale: float = 1.0) -> Weights:
    tensors = random_tensors(config, seed, scale)
    for name, tensor in tensors.items():
        if name.endswith("bias"):
            tensor.mul_(4)  # as large as what they are added to
    return assemble({name: tensor.to(dtype) for name, tensor in tensors.items()}, config)


def reference_of(dtype: torch.dtype, seed: int = 3, scale: float = 1.0, **changes: Any) -> ReferenceDecoder:
    config = tiny_config(**{"num_hidden_layers": 2, **changes})
    return ReferenceDecoder(config, tensors_of(config, dtype, seed, scale))


def decoders(reference: ReferenceDecoder, threads: int = 1) -> list[Decoder]:
    """The same weights with every instruction set."""
    return [Decoder(reference.config, reference.weights, threads=threads, arithmetic=f"native {isa}") for isa in HERE]


def stored_in(rows: Rows, layers: range) -> dict[int, KeysValues]:
    """The keys and values of a pass, row after row."""

    def of(layer: int, which: int) -> torch.Tensor:
        parts = []
        for segment in rows.segments:
            start = segment.cache.length + segment.slots.start
            parts.append(segment.cache.read(layer)[which][start : start + len(segment.slots)])
        return torch.cat(parts)

    return {layer: (of(layer, 0).clone(), of(layer, 1).clone()) for layer in layers}


def expect_same(decoder: Decoder, rows: Rows, expected: Result, numbers_only: bool = True) -> None:
    """A pass comes to what the reference came to: hidden states, logits, choices, keys and values."""
    if numbers_only:  # or there would be little to compare
        assert expected.hidden.isfinite().all()
    outputs = decoder.run(rows)
    assert same(outputs.hidden, expected.hidden), decoder.arithmetic
    assert same(all_logits(outputs), expected.logits), decoder.arithmetic
    for row, logits in enumerate(expected.logits):
        nan = bool(logits.isnan().any())
        assert outputs.choice(row) == (None if nan else int((logits == logits.max()).nonzero()[0])), decoder.arithmetic
    for layer, stored in stored_in(rows, range(decoder.config.num_layers)).items():
        for mine, theirs in zip(stored, expected.stored[layer], strict=True):
            assert same(mine, theirs), (decoder.arithmetic, layer)


def random_prefix(decoder: Decoder, cache: Cache, count: int, seed: int, scale: float = 1.0) -> None:
    """Commit positions whose keys and values nobody computed: a long text without reading one."""
    rows = chain(cache, [0] * count)
    c = decoder.config
    for layer in cache.layers:
        keys, values = (floats("normal", (count, c.num_kv_heads, c.head_dim), seed + layer + at) for at in (0, 100))
        cache.write(layer, rows.segments[0].slots, keys * scale, values, rows.writer)
    cache.commit(range(count), rows.writer)


def expect_chain_and_tree(reference: ReferenceDecoder, threads: int = 1) -> None:
    """A text of 9 tokens in one pass; then, in another, a tree of 7 after it, and a chain of 2 after nothing."""
    vocabulary = reference.config.vocab_size
    text, tree = random_tokens(9, 1, vocabulary), random_tokens(7, 2, vocabulary)
    parents = random_tree(7, 4)
    assert len(set(parents)) < 7
    begun = reference.run([Part(reference.nothing(), text, range(-1, 8))])
    both = reference.run([Part(begun.stored, tree, parents), Part(reference.nothing(), text[:2], range(-1, 1))])
    for decoder in decoders(reference, threads):
        caches = decoder.new_cache(), decoder.new_cache()
        rows = chain(caches[0], text)
        expect_same(decoder, rows, begun)
        caches[0].commit(range(9), rows.writer)
        expect_same(decoder, Rows([(caches[0], tree, parents), (caches[1], text[:2], range(-1, 1))]), both)


def expect_after_a_prefix(
    reference: ReferenceDecoder, length: int, parents: list[int], scale: float = 1.0, numbers_only: bool = True
) -> None:
    tokens = random_tokens(len(parents), length, 97)
    expected = None
    for threads in (1, 3):
        for decoder in decoders(reference, threads):
            cache = decoder.new_cache()
            random_prefix(decoder, cache, length, seed=length, scale=scale)
            if expected is None:
                expected = reference.run([Part(committed(cache), tokens, parents)])
            expect_same(decoder, Rows([(cache, tokens, parents)]), expected, numbers_only)
