"""Weights that are not always in memory: a home is asked before its part of a layer runs, and told after; no bit
differs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.homes.parts import PartHome, stretches
from foretoken.decoder.linear import Linear
from foretoken.decoder.low_bit import quantised
from foretoken.decoder.rows import Rows, chain
from foretoken.decoder.weights import Weights, assemble
from foretoken.errors import ContractError, ModelError
from foretoken.formats.weight import QuantisedWeight
from tests.decoder.low_bit import INT4, made, outcomes
from tests.isas import HERE
from tests.tiny import one_thread

__all__ = ["one_thread"]
WAYS = ["pytorch", *(f"native {isa}" for isa in HERE[-1:])]


class Away:
    """A part's weights lie elsewhere, and nonsense lies where the part reads them while nobody has asked for them."""

    name = "away"

    def __init__(self, linears: Sequence[Linear], log: list[str], index: int) -> None:
        self._places = list(_memory(linears))
        self._kept = [place.clone() for place in self._places]
        self._log, self._index = log, index
        self.fails = False
        self._leave()

    def acquire(self) -> None:
        if self.fails:
            raise ModelError("the disk is gone; put it back")
        self._log.append(f"+{self._index}")
        for place, kept in zip(self._places, self._kept, strict=True):
            place.copy_(kept)

    def release(self) -> None:
        self._log.append(f"-{self._index}")
        self._leave()

    def _leave(self) -> None:
        for place in self._places:
            place.fill_(float("nan") if place.dtype.is_floating_point else 77)


def _memory(linears: Sequence[Linear]) -> Iterator[torch.Tensor]:
    for linear in linears:
        weight = linear.weight
        yield from (weight.codes, weight.scales) if isinstance(weight, QuantisedWeight) else (weight,)


def away(weights: Weights, parts: Collection[int]) -> tuple[Weights, list[str]]:
    """The same weights, some parts of which are away. Part 4 i is the attention of layer i."""
    log: list[str] = []
    homes: list[PartHome | None] = [
        Away(weights.linears_of(part), log, part) if part in parts else None for part in range(4 * len(weights.layers))
    ]
    return replace(weights, homes=tuple(homes)), log


def copies(config: DecoderConfig, weights: Weights) -> Weights:
    return assemble({name: tensor.clone() for name, tensor in weights.tensors.items()}, config)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "parts", [(0,), (1,), (2,), (7,), (1, 2), (2, 3), (3, 4), (0, 5, 10), tuple(range(12))], ids=str
)
def test_passes_have_the_same_bits_wherever_weights_lie(parts: tuple[int, ...], way: str) -> None:
    config, weights = made(num_hidden_layers=3, attention_bias=True)
    expected = outcomes(Decoder(config, weights, threads=1, arithmetic=way), (1, 3, 40))
    there, log = away(copies(config, weights), parts)
    decoder = Decoder(config, there, threads=1, arithmetic=way)
    assert decoder.home == "copied and away"
    log.clear()
    assert outcomes(decoder, (1, 3, 40)) == expected
    assert log[: 2 * len(parts)] == [f"{sign}{part}" for part in parts for sign in "+-"], "a pass asks for each once"
    assert len(log) % (2 * len(parts)) == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_range_of_layers_asks_for_no_other(way: str) -> None:
    config, weights = made(num_hidden_layers=3)
    there, log = away(copies(config, weights), range(12))
    decoder, plain = (Decoder(config, its, threads=1, arithmetic=way) for its in (there, weights))
    log.clear()
    once = [f"{sign}{part}" for part in range(12) for sign in "+-"]
    results, asked = [], []
    for its in (decoder, plain):
        rows = chain(its.new_cache(), [1, 2, 3])
        hidden = its.layers(its.embed(rows.tokens), rows, 0, 1)
        asked.append(list(log))
        results.append(its.layers(hidden, rows, 1, 3))
    assert torch.equal(*results)
    assert asked[0] == once[:8], "those of the first layer"
    assert log == once
    log.clear()
    chains = [its.draft_chain(its.new_cache(), 1, 4).tokens for its in (decoder, plain)]
    assert chains[0] == chains[1]
    assert len(chains[0]) == 4
    assert log == once * 4


@pytest.mark.parametrize("way", WAYS)
def test_what_fails_while_it_comes_in_is_raised_and_the_next_pass_is_whole(way: str) -> None:
    config, weights = made(num_hidden_layers=3)
    there, log = away(copies(config, weights), (0, 11))
    decoder = Decoder(config, there, threads=1, arithmetic=way)
    last = there.homes[11]
    assert isinstance(last, Away)
    last.fails = True
    log.clear()
    cache = decoder.new_cache()
    with pytest.raises(ModelError, match="the disk is gone"):
        decoder.forward(Rows([(cache, [1, 2], [-1, 0])]))
    assert log[:2] == ["+0", "-0"], "who has been asked is told"
    assert set(log[2:]) <= {"-0", "-11"}, "and nothing is held behind a pass that was broken off"
    cache.discard()
    last.fails = False
    plain = Decoder(config, weights, threads=1, arithmetic=way)
    both = [its.run(chain(c, [1, 2])).logits(1) for its, c in ((decoder, cache), (plain, plain.new_cache()))]
    assert torch.equal(*both)


def test_low_bit_layers_come_in_too_where_the_native_module_is_and_are_refused_where_it_is_not() -> None:
    config, weights = made(num_hidden_layers=2)
    expected = outcomes(Decoder(config, quantised(weights, config, INT4), threads=1), (1, 40))
    there, log = away(quantised(weights, config, INT4), (4,))
    if HERE:
        assert outcomes(Decoder(config, there, threads=1), (1, 40)) == expected
        assert log[:2] == ["+4", "-4"]
    with pytest.raises(ContractError, match="cannot come in while a pass runs; install the native module"):
        Decoder(config, there, threads=1, arithmetic="pytorch")


def test_a_copy_in_memory_asks_for_no_layer_but_those_that_stay_the_model_s_own() -> None:
    config, weights = made(num_hidden_layers=3)
    there, log = away(copies(config, weights), range(12))
    low, mixed = quantised(there, config, INT4), quantised(there, config, INT4, own=(1,))
    assert log.count("+0") == log.count("-0") == 2, "each part came in once for each copy"
    assert log.count("+5") == log.count("-5") == 1, "the other copy has no use for this one"
    assert low.homes == (None,) * 12
    assert mixed.homes == (*[None] * 4, *there.homes[4:8], *[None] * 4)
    for copy, its, asked in ((low, (), []), (mixed, (1,), [f"{sign}{part}" for part in range(4, 8) for sign in "+-"])):
        log.clear()
        expected = outcomes(Decoder(config, quantised(weights, config, INT4, own=its), threads=1), (40,))
        if HERE or not asked:  # in PyTorch a copy is made bf16 at once
            assert outcomes(Decoder(config, copy, threads=1), (40,)) == expected
            assert log[:8] == asked


def test_a_weight_that_is_no_number_is_found_where_it_lies() -> None:
    config, weights = made(num_hidden_layers=2)
    broken = copies(config, weights)
    broken.layers[1].up.values[3, 5] = float("inf")
    there, log = away(broken, range(8))
    assert (
        there.first_not_finite()
        == f"1 of {broken.layers[1].up.values.numel()} numbers in model.layers.1.mlp.up_proj.weight"
    )
    assert log.count("+0") == log.count("-0") > 1
    assert log.count("+6") == log.count("-6") > 0


def test_parts_that_are_in_memory_run_together() -> None:
    home = Away.__new__(Away)
    homes = (*[None] * 4, home, home, None, None)
    assert list(stretches((), 1, 4)) == [(range(4, 16), None)]
    assert list(stretches(homes, 0, 2)) == [
        (range(4), None),
        (range(4, 5), home),
        (range(5, 6), home),
        (range(6, 8), None),
    ]
    assert list(stretches(homes, 1, 2)) == [(range(4, 5), home), (range(5, 6), home), (range(6, 8), None)]
    assert list(stretches(homes, 1, 1)) == [(range(4, 4), None)]
