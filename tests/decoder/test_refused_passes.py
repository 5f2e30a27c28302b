"""Passes that cannot be right are refused, natively (where they would read or write anywhere) as in PyTorch."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.memory import Memory
from foretoken.decoder.rows import Rows, chain
from foretoken.errors import ContractError
from tests.decoder.models import random_tokens
from tests.decoder.outcomes import Make, after, read_committed
from tests.tiny import needs_native, tiny_decoder


def expect_refused(decoder: Decoder, rows: Rows) -> None:
    """Every way to run a pass is refused. A native one has noted no writer (PyTorch's may have run some layers)."""
    hidden = torch.zeros(len(rows), decoder.config.hidden_size)
    tags = [segment.cache._memory.tags.copy() for segment in rows.segments]
    for run in (decoder.run, decoder.forward, lambda rows: decoder.layers(hidden, rows)):
        with pytest.raises(ContractError) as error:
            run(rows)
        assert "\n" not in str(error.value)
        for segment, before in zip(rows.segments, tags, strict=True):
            assert decoder.because is not None or np.array_equal(segment.cache._memory.tags, before)


def test_a_pass_without_rows_is_refused() -> None:
    with pytest.raises(ContractError, match="a pass came without rows; expected some"):
        Rows([])


@pytest.mark.parametrize("how", ["discard", "commit", "truncate", "commit and place"])
def test_rows_whose_slots_are_gone_are_refused(make: Make, how: str) -> None:
    # natively they would be written beyond the cache's memory: it holds 256 positions
    decoder = make("plain")
    cache = after(decoder, random_tokens(100, seed=1, vocab=97))
    first = chain(cache, random_tokens(150, seed=2, vocab=97))
    stale = Rows([(cache, [5] * 6, [-1] * 6)])
    decoder.forward(first)
    if how == "discard":
        cache.discard()
    elif how == "truncate":
        cache.truncate(99)
    else:
        cache.commit(range(150), first.writer)
    if how == "commit and place":
        cache.place([-1] * 156)
    digest = cache.digest()
    expect_refused(decoder, stale)
    assert cache.digest() == digest


def test_rows_whose_slots_were_given_to_others_are_refused(make: Make) -> None:
    # the same slots at the same position, and yet not the same rows: their parents are others
    decoder = make("plain")
    cache = after(decoder, [1, 2, 3])
    stale = chain(cache, [4, 5, 6])
    cache.discard()
    Rows([(cache, [4, 5, 6], [-1, 0, 0])])
    expect_refused(decoder, stale)


@needs_native
def test_a_cache_does_not_grow_while_a_pass_writes_to_it_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = tiny_decoder()
    view = after(decoder, [1, 2, 3]).view()
    rows = chain(view, [4])
    real, seen = decoder._pass._plan.run, []

    class Watched:
        def run(self, *args: object) -> None:
            with pytest.raises(ContractError, match="a cache cannot grow while another thread's pass writes to it"):
                view.place([-1] * 1000)
            seen.append(1)
            real(*args)

    monkeypatch.setattr(decoder._pass, "_plan", Watched())
    decoder.forward(rows)
    assert seen == [1]


@needs_native
def test_a_cache_grows_while_a_pass_over_its_view_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # as a verifier in a thread of its own does while a drafter works: the pass reads what lay there when it began
    decoder = tiny_decoder()
    tokens = random_tokens(250, seed=3, vocab=97)
    truth = decoder.forward(chain(after(decoder, tokens).view(), [4, 5]))
    below = after(decoder, tokens)
    rows = chain(below.view(), [4, 5])
    real, grown = decoder._pass._plan.run, []

    class Watched:
        def run(self, *args: object) -> None:
            before = weakref.ref(below._memory.keys)
            below.place([-1] * 1000)
            for tensor in below._memory[:2]:
                tensor.fill_(torch.nan)  # where the prefix lies now is not where this pass reads it
            assert before() is not None, "what the pass reads by address was freed"
            grown.append(before)
            real(*args)

    monkeypatch.setattr(decoder._pass, "_plan", Watched())
    assert torch.equal(decoder.forward(rows), truth)
    assert grown
    assert grown[0]() is None, "the old memory is kept no longer than the pass"


def test_a_pass_over_a_view_of_a_cache_that_was_truncated_is_refused_however_deep(make: Make) -> None:
    decoder = make("plain")
    bottom = after(decoder, [1, 2, 3])
    middle = bottom.view()
    read_committed(decoder, [4, 5], [2], middle)
    top = middle.view()
    read_committed(decoder, [6], [1], top)
    placed = chain(top, [7])
    bottom.truncate(1)
    expect_refused(decoder, placed)


@pytest.mark.parametrize("layers", [range(1), range(1, 2), range(0)], ids=str)
def test_a_pass_over_a_cache_of_some_layers_is_refused(make: Make, layers: range) -> None:
    decoder = make("plain")
    expect_refused(decoder, chain(decoder.new_cache(layers), [1, 2]))
    with pytest.raises(ContractError):
        decoder.draft_chain(decoder.new_cache(layers), 1, 3)
    bottom = after(decoder, [1, 2, 3])
    view = bottom.view(layers)
    expect_refused(decoder, chain(view, [1, 2]))
    with pytest.raises(ContractError):
        decoder.draft_chain(view, 1, 3)
    # the layers that it has may run
    rows = chain(bottom.view(range(1, 2)), [4])
    decoder.layers(torch.zeros(1, 32), rows, 1, 2)
    with pytest.raises(ContractError):
        decoder.layers(torch.zeros(1, 32), rows, 0, 2)


@needs_native
@pytest.mark.parametrize(
    ("kv_heads", "head_dim", "dtype", "came"),
    [
        (2, 4, torch.float32, "2 heads of 4, float32"),
        (1, 8, torch.float32, "1 heads of 8, float32"),
        (4, 4, torch.float32, "4 heads of 4, float32"),
        (2, 8, torch.bfloat16, "2 heads of 8, bfloat16"),
        (2, 8, torch.float64, "2 heads of 8, float64"),
    ],
)
def test_a_cache_of_another_model_is_refused(kv_heads: int, head_dim: int, dtype: torch.dtype, came: str) -> None:
    decoder = tiny_decoder(threads=1)
    cache = Cache(range(3), Memory.empty(3, kv_heads, head_dim, dtype, torch.device("cpu")))
    expect_refused(decoder, chain(cache, [1, 2]))
    cache.discard()
    with pytest.raises(ContractError) as error:
        decoder.draft_chain(cache, 1, 3)
    assert str(error.value) == f"a cache holds {came}; expected 2 heads of 8, float32: one that this decoder made"
    # two sequences of one pass, of which one is wrong
    good = decoder.new_cache()
    expect_refused(decoder, Rows([(good, [1], [-1]), (cache, [1], [-1])]))
