"""What a pass costs: beside PyTorch's own count of a transformers model, and by hand."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from foretoken.decoder.cache import Cache
from foretoken.decoder.cost import CostModel
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.low_bit import quantised
from foretoken.decoder.rows import Rows, chain
from foretoken.errors import ContractError
from foretoken.formats import format_of
from foretoken.protocol.telemetry import Cost
from tests.costs import cost_of
from tests.costs import counting as counting
from tests.decoder.models import build_reference, family_case, load_decoder, logits_token_by_token, random_tokens
from tests.tiny import tiny_decoder

# of `tests.tiny.BASE`, in float32: hidden size 32, intermediate 48, 4 heads and 2 of keys and values of 8, 97 tokens
LAYER = 32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 48 * 32  # numbers in its linear layers
LAYER_BYTES = 4 * (LAYER + 2 * 32)  # with two norms
HEAD, HEAD_BYTES = 97 * 32, 4 * (97 * 32 + 32)  # with its norm
ROW = 4 * 32  # of the embedding
KEY = 4 * 2 * 2 * 8  # a key and its value, in one layer
PRODUCTS = 4 * 4 * 8  # operations of a row with one key, and with its value, in one layer


def spent(decoder: Decoder, before: Cost) -> tuple[int, int, int]:
    """flops, weight_bytes, cache_bytes since."""
    cost = cost_of(decoder) - before
    return cost.flops, cost.weight_bytes, cost.cache_bytes


def read(decoder: Decoder, count: int) -> tuple[Cache, Cost]:
    """A cache with so many positions committed, and what the decoder has cost until then."""
    cache = decoder.new_cache()
    rows = chain(cache, random_tokens(count, 1, 97))
    decoder.forward(rows)
    cache.commit(range(count), rows.writer)
    return cache, cost_of(decoder)


@pytest.mark.parametrize(
    "name",
    [
        "llama-tied",
        "llama-untied-biases",
        "llama-one-kv-head",
        "llama-head-dim",
        "mistral-window",
        "qwen2-window-from-layer-1",
        "qwen3",
    ],
)
def test_operations_are_those_that_pytorch_counts_of_transformers(name: str, arithmetic: str, tmp_path: Path) -> None:
    """Token by token, where transformers too multiplies a row with the keys that it sees and with no others; all tokens
    in one pass are as many operations, for a row costs what it costs alone."""
    case, tokens = family_case(name), random_tokens(20, 1)  # more than a window of 8 holds
    reference = build_reference(case)
    reference.save_pretrained(tmp_path)
    counter = FlopCounterMode(display=False)
    with counter:
        logits_token_by_token(reference, tokens)
    decoder = load_decoder(tmp_path, arithmetic=arithmetic)
    cache = decoder.new_cache()
    for token in tokens:
        rows = chain(cache, [token])
        decoder.run(rows)
        cache.commit([0], rows.writer)
    # transformers before 5.19 multiplies matrices for the angles of rotation, which we look up
    angles = sum(sum(its.values()) for name, its in counter.get_flop_counts().items() if name.endswith("rotary_emb"))
    assert cost_of(decoder).flops == counter.get_total_flops() - angles > 1_000_000
    whole = cost_of(decoder).flops
    decoder.run(chain(decoder.new_cache(), tokens))
    assert cost_of(decoder).flops == 2 * whole


def test_a_pass_by_hand(arithmetic: str) -> None:
    decoder = tiny_decoder(arithmetic=arithmetic)
    assert cost_of(decoder) == Cost()
    cache, before = read(decoder, 10)
    assert astuple(before) == (  # without the output layer
        2 * 10 * 3 * LAYER + 3 * PRODUCTS * sum(range(1, 11)),
        3 * LAYER_BYTES + 10 * ROW,
        3 * KEY * 10,
    )
    decoder.run(chain(cache, [1, 2, 3]))
    flops = 2 * 3 * (3 * LAYER + HEAD) + 3 * PRODUCTS * (11 + 12 + 13)
    assert spent(decoder, before) == (flops, 3 * LAYER_BYTES + HEAD_BYTES + 3 * ROW, 3 * KEY * (10 + 3))


def test_a_tree_has_rows_that_see_no_more_than_their_ancestors(arithmetic: str) -> None:
    decoder = tiny_decoder(arithmetic=arithmetic)
    cache, before = read(decoder, 10)
    decoder.forward(Rows([(cache, [1, 2, 3, 4], [-1, 0, 0, 1])]))
    flops = 2 * 4 * 3 * LAYER + 3 * PRODUCTS * (11 + 12 + 12 + 13)
    assert spent(decoder, before) == (flops, 3 * LAYER_BYTES + 4 * ROW, 3 * KEY * (10 + 4))


def test_sequences_in_one_pass_share_the_weights_and_not_the_keys(arithmetic: str) -> None:
    decoder = tiny_decoder(arithmetic=arithmetic)
    one, _ = read(decoder, 10)
    other, before = read(decoder, 4)
    decoder.run(Rows([(one, [1], [-1]), (other.view(), [2, 3], [-1, 0])]))
    flops = 2 * 3 * (3 * LAYER + HEAD) + 3 * PRODUCTS * (11 + 5 + 6)
    assert spent(decoder, before) == (flops, 3 * LAYER_BYTES + HEAD_BYTES + 3 * ROW, 3 * KEY * (10 + 4 + 3))


def test_a_window_bounds_what_is_seen_and_read(arithmetic: str) -> None:
    decoder = tiny_decoder(
        arithmetic=arithmetic,
        model_type="qwen3",
        use_sliding_window=True,
        sliding_window=4,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    )
    qk_norms = 4 * 2 * 8
    cache, before = read(decoder, 10)
    assert before.flops == 2 * 10 * 3 * LAYER + PRODUCTS * (2 * sum(range(1, 11)) + 1 + 2 + 3 + 7 * 4)
    decoder.forward(chain(cache, [1, 2, 3]))
    flops = 2 * 3 * 3 * LAYER + PRODUCTS * (2 * (11 + 12 + 13) + 3 * 4)
    weights = 3 * (LAYER_BYTES + qk_norms) + 3 * ROW
    # the first of the rows sees itself and three before it, and those after it nothing older
    assert spent(decoder, before) == (flops, weights, KEY * (2 * (10 + 3) + 3 + 3))
    short, before = read(decoder, 2)
    decoder.layers(torch.zeros(1, 32), chain(short, [1]), 1, 2)
    assert spent(decoder, before) == (2 * LAYER + 3 * PRODUCTS, LAYER_BYTES + qk_norms, KEY * 3)


def test_biases_and_a_tied_output_layer(arithmetic: str) -> None:
    tied = tiny_decoder(arithmetic=arithmetic, tie_word_embeddings=True, attention_bias=True, mlp_bias=True)
    tied.run(chain(tied.new_cache(), [1]))
    biases = 4 * (32 + 16 + 16 + 32 + 48 + 48 + 32)
    flops = 2 * (3 * LAYER + HEAD) + 3 * PRODUCTS
    assert spent(tied, Cost()) == (flops, 3 * (LAYER_BYTES + biases) + HEAD_BYTES + ROW, 3 * KEY)


@pytest.mark.parametrize(
    ("format", "layer", "head"),
    [
        # tiles of 16 outputs by blocks of 32 inputs, and scales: of int8 4 bytes an output, of int4 4 for 16 times 32
        ("int8", LAYER + 32 * 16 + 4 * (32 + 16 + 16 + 32 + 48 + 48 + 32), 112 * 32 + 4 * 112),
        ("int4-g32", (LAYER + 32 * 16) // 2 + (LAYER + 32 * 16) // 8, 112 * 32 // 2 + 112 * 32 // 8),
    ],
)
def test_a_low_bit_copy_reads_its_own_bytes(format: str, layer: int, head: int, arithmetic: str) -> None:
    model = tiny_decoder()
    weights = quantised(model.weights, model.config, format_of(format))
    copy = Decoder(model.config, weights, arithmetic=arithmetic)
    copy.run(chain(copy.new_cache(), [1, 2]))
    model.run(chain(model.new_cache(), [1, 2]))
    norms = 4 * (3 * 2 * 32 + 32)
    assert (cost_of(copy).flops, cost_of(copy).cache_bytes) == (cost_of(model).flops, cost_of(model).cache_bytes)
    assert cost_of(copy).weight_bytes == 3 * layer + head + norms + 2 * ROW


def test_weights_are_those_that_a_pass_reads(arithmetic: str) -> None:
    """As they were counted from the number of passes: all but the embedding, of which a row a token is added here."""
    for changes in ({}, {"model_type": "qwen3"}, {"model_type": "qwen2", "tie_word_embeddings": True}):
        decoder = tiny_decoder(arithmetic=arithmetic, dtype=torch.bfloat16, **changes)
        cache, before = read(decoder, 3)
        for count in (1, 4):
            decoder.run(chain(cache, [1] * count))
        assert spent(decoder, before)[1] == 2 * decoder.weights.nbytes + 5 * 2 * 32


def test_parts_add_up_to_the_whole(arithmetic: str) -> None:
    decoder = tiny_decoder(arithmetic=arithmetic, model_type="mistral", sliding_window=4)
    cache, before = read(decoder, 6)
    rows = chain(cache, [1, 2, 3])
    hidden = decoder.embed(rows.tokens)
    for lo, hi in ((0, 1), (1, 1), (1, 3)):
        hidden = decoder.layers(hidden, rows, lo, hi)
    decoder.head(hidden)
    parts = spent(decoder, before)
    before = cost_of(decoder)
    decoder.run(rows)
    assert spent(decoder, before) == parts
    assert CostModel(decoder.config, decoder.weights).head(0) == Cost()  # the output layer is not read for no row


def test_a_chain_costs_what_its_steps_do(arithmetic: str) -> None:
    decoder = tiny_decoder(arithmetic=arithmetic, model_type="mistral", sliding_window=8)
    cache, before = read(decoder, 6)
    for token in (1, 2, 3, 4, 5):
        decoder.run(chain(cache, [token]))
    steps = spent(decoder, before)
    cache, before = read(decoder, 6)
    assert len(decoder.draft_chain(cache, 1, 5).tokens) == 5
    assert spent(decoder, before) == steps
    before = cost_of(decoder)
    assert decoder.draft_chain(cache, 1, 0).tokens == []
    assert cost_of(decoder) == before


def test_a_chain_that_ends_at_a_nan_costs_the_steps_that_were_made(arithmetic: str) -> None:
    decoder = tiny_decoder(arithmetic=arithmetic)
    first, second = decoder.draft_chain(decoder.new_cache(), 1, 2).tokens
    assert second != 1
    assert first not in (1, second)
    decoder.weights.embedding[second] = torch.nan  # the third step meets it
    before = cost_of(decoder)
    assert decoder.draft_chain(decoder.new_cache(), 1, 9).tokens == [first, second]
    flops = 2 * 3 * (3 * LAYER + HEAD) + 3 * PRODUCTS * (1 + 2 + 3)
    assert spent(decoder, before) == (flops, 3 * (3 * LAYER_BYTES + HEAD_BYTES + ROW), 3 * KEY * 3)


def test_what_is_refused_costs_nothing(arithmetic: str) -> None:
    decoder = tiny_decoder(arithmetic=arithmetic)
    cache, before = read(decoder, 2)
    rows = chain(cache, [1])
    cache.discard()
    for call in (
        lambda: decoder.run(rows),
        lambda: decoder.forward(rows),
        lambda: decoder.layers(torch.zeros(1, 32), rows),
        lambda: decoder.embed([97]),
        lambda: decoder.head(torch.zeros(1, 31)),
        lambda: decoder.draft_chain(cache, -1, 3).tokens,
    ):
        with pytest.raises(ContractError):
            call()
    assert cost_of(decoder) == before


def test_costs_add_and_subtract() -> None:
    one, other = Cost(5, 7, 9), Cost(1, 2, 3)
    assert one + other == Cost(6, 9, 12)
    assert one - other == Cost(4, 5, 6)
    assert one + Cost() == one
