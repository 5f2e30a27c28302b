"""Layers in which a row sees only so many keys before it: where a window begins changes nothing else.

Compared with `torch.equal`, natively and in PyTorch, with poison in memory that nobody wrote.
"""

from __future__ import annotations

import pytest
import torch

from foretoken.decoder.rows import Rows, chain
from tests.decoder.models import random_tokens
from tests.decoder.outcomes import Make, after, compare_chunks, dtypes, read_committed, run

pytestmark = pytest.mark.usefixtures("poison")


@dtypes
def test_the_address_at_which_a_window_begins_does_not_matter(make: Make, dtype: torch.dtype) -> None:
    # with 64 keys and heads of 10 without groups, MKL's product is another one where the first key is not aligned
    heads = {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 10}
    decoder = make("window", dtype, sliding_window=64, num_hidden_layers=1, **heads)
    for prefix in range(64, 72):
        cache = after(decoder, random_tokens(prefix, seed=10, vocab=97))
        in_place = run(decoder, chain(cache, [42]))
        gathered = run(decoder, Rows([(cache, [42], [-1])]))  # behind the scratch of the first
        assert gathered == in_place, prefix


@pytest.mark.parametrize("window", [1, 100, 255, 257])
@dtypes
def test_where_a_window_begins_within_a_block_of_positions_does_not_matter(
    make: Make, window: int, dtype: torch.dtype
) -> None:
    # natively, attention works in blocks of 256 positions: windows begin in the first and end in the second
    decoder = make("window", dtype, sliding_window=window, num_hidden_layers=1)
    compare_chunks(decoder, random_tokens(275, seed=10, vocab=97), (1, 19, 256))


@dtypes
def test_what_lies_before_a_window_does_not_matter(make: Make, dtype: torch.dtype) -> None:
    decoder = make("window", dtype, sliding_window=20, num_hidden_layers=1)
    for length in (40, 260, 275):
        cache = after(decoder, random_tokens(length, seed=10, vocab=97))
        rows = ([42, 43, 44], [-1, 0, -1])
        clean = run(decoder, Rows([(cache, *rows)]))
        cache.discard()
        cache._memory.keys[:, : length - 19] = torch.nan  # the first row sees itself and 19 before it
        cache._memory.values[:, : length - 19] = torch.nan
        assert run(decoder, Rows([(cache, *rows)])) == clean, length


@dtypes
def test_a_window_as_long_as_the_text_is_none(make: Make, dtype: torch.dtype) -> None:
    tokens = random_tokens(270, seed=10, vocab=97)
    outcomes = [
        read_committed(make("window", dtype, sliding_window=window), tokens, [200, 7]) for window in (270, 1000, None)
    ]
    assert outcomes[0] == outcomes[1] == outcomes[2]
