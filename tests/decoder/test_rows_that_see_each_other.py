"""Where a drafter fills a block, its rows see those behind them, too."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention, silu

from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import Rows, chain
from foretoken.errors import ContractError
from tests.tiny import tiny_decoder


def decoder(arithmetic: str) -> Decoder:
    return tiny_decoder(threads=1, arithmetic=arithmetic, num_hidden_layers=1, max_position_embeddings=2048)


def begun(its: Decoder, length: int, seed: int) -> Cache:
    cache = its.new_cache()
    generator = torch.Generator().manual_seed(seed)
    if length:
        rows = chain(cache, torch.randint(0, 90, (length,), generator=generator).tolist())
        its.forward(rows)
        cache.commit(range(length), rows.writer)
    return cache


def block(caches: list[Cache], count: int) -> Rows:
    rows = Rows([(cache, [7, *range(20, 19 + count)], range(-1, count - 1)) for cache in caches])
    rows.see_each_other()
    return rows


@pytest.mark.parametrize("arithmetic", ["auto", "pytorch"])
@pytest.mark.parametrize("length", [0, 1, 17, 250])  # 250: across a block of 256 positions
def test_each_row_sees_the_whole_block_and_the_prefix(arithmetic: str, length: int) -> None:
    its = decoder(arithmetic)
    cache, count = begun(its, length, 1), 16
    rows = block([cache], count)
    found = its.layers(its.embed(rows), rows)
    keys, values = (each[: length + count].float() for each in cache.read(0))
    w, config = its.weights.layers[0], its.config

    def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.norm_eps) * weight

    x = its.embed(rows.tokens)
    half, places = config.head_dim // 2, torch.arange(length, length + count)
    angles = places[:, None] * config.rope.theta ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    query = (normed(x, w.input_norm) @ w.query.values.T).view(count, -1, config.head_dim)
    one, other = query[..., :half], query[..., half:]
    query = torch.cat((one * cos - other * sin, other * cos + one * sin), dim=-1)
    by_heads = [each.transpose(0, 1)[None] for each in (query, keys, values)]
    attended = scaled_dot_product_attention(*by_heads, enable_gqa=True)[0]
    x = x + attended.transpose(0, 1).flatten(1) @ w.output.values.T
    h = normed(x, w.post_norm)
    inner = silu(h @ w.gate.values.T) * (h @ w.up.values.T)
    torch.testing.assert_close(found, x + inner @ w.down.values.T, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("arithmetic", ["auto", "pytorch"])
def test_blocks_of_several_texts_see_their_own_alone(arithmetic: str) -> None:
    its = decoder(arithmetic)
    both = block([begun(its, 9, 1), begun(its, 30, 2)], 5)
    together = its.layers(its.embed(both), both)
    for at, (length, seed) in enumerate(((9, 1), (30, 2))):
        rows = block([begun(its, length, seed)], 5)
        assert torch.equal(its.layers(its.embed(rows), rows), together[5 * at : 5 * at + 5])


def test_nothing_but_a_chain_at_the_end_of_the_prefix_can() -> None:
    its = decoder("auto")
    tree = Rows([(begun(its, 3, 1), [1, 2, 3], [-1, 0, 0])])
    with pytest.raises(ContractError, match="must be a chain"):
        tree.see_each_other()
    cache = begun(its, 3, 1)
    chain(cache, [1])
    behind = chain(cache, [2, 3])
    with pytest.raises(ContractError, match="the only scratch"):
        behind.see_each_other()
