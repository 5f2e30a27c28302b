"""A layer may be given what its attention reads, in place of its own norm of the hidden states."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.errors import ContractError
from tests.tiny import tiny_decoder

ARITHMETIC = ["auto", "pytorch"]
TOKENS = [5, 9, 2, 11, 7]


def with_one_norm(arithmetic: str) -> Decoder:
    """A decoder each of whose layers begins with the final norm, which it can be asked for."""
    made = tiny_decoder(threads=1, arithmetic="pytorch", num_hidden_layers=3)
    layers = tuple(replace(layer, input_norm=made.weights.norm) for layer in made.weights.layers)
    return Decoder(made.config, replace(made.weights, layers=layers), threads=1, arithmetic=arithmetic)


def wide(arithmetic: str) -> Decoder:
    """A decoder whose first layer reads two states side by side."""
    made = tiny_decoder(threads=1, arithmetic="pytorch", num_hidden_layers=2)
    first = made.weights.layers[0]
    twice = {
        name: replace(linear, weight=torch.cat((linear.values, 2 * linear.values), dim=1))
        for name, linear in (("query", first.query), ("key", first.key), ("value", first.value))
    }
    weights = replace(made.weights, layers=(replace(first, **twice), *made.weights.layers[1:]))
    return Decoder(replace(made.config, wide=True), weights, threads=1, arithmetic=arithmetic)


@pytest.mark.parametrize("arithmetic", ARITHMETIC)
@pytest.mark.parametrize("lo", [0, 1])
def test_its_own_norm_changes_nothing(arithmetic: str, lo: int) -> None:
    decoder, found = with_one_norm(arithmetic), []
    for given in (False, True):
        cache = decoder.new_cache()
        rows = chain(cache, TOKENS)
        hidden = decoder.layers(decoder.embed(rows), rows, 0, lo)
        entering = decoder.norm(hidden) if given else None
        found.append(decoder.layers(hidden, rows, lo, None, entering))
    assert torch.equal(*found)


@pytest.mark.parametrize("arithmetic", ARITHMETIC)
def test_two_states_are_read_and_one_is_added_to(arithmetic: str) -> None:
    decoder, narrow = wide(arithmetic), tiny_decoder(threads=1, arithmetic=arithmetic, num_hidden_layers=2)
    cache, other = decoder.new_cache(), narrow.new_cache()
    rows, others = chain(cache, TOKENS), chain(other, TOKENS)
    hidden = decoder.embed(rows)
    one, two = torch.randn(2, *hidden.shape, generator=torch.Generator().manual_seed(1))
    found = decoder.layers(hidden, rows, entering=torch.cat((one, two), dim=1))
    expected = narrow.layers(hidden, others, entering=one + 2 * two)
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, narrow.layers(hidden, others, entering=one))


@pytest.mark.parametrize("arithmetic", ARITHMETIC)
def test_what_does_not_fit_is_refused(arithmetic: str) -> None:
    decoder = wide(arithmetic)
    cache = decoder.new_cache()
    rows = chain(cache, TOKENS)
    hidden = decoder.embed(rows)
    for entering in (None, hidden, torch.zeros(2, 2 * hidden.shape[1]), torch.zeros(2 * hidden.shape[1], 5).T):
        with pytest.raises(ContractError, match="the attention of layer 0 was given"):
            decoder.layers(hidden, rows, entering=entering)
