"""A pass of which logits may be asked for: they have the bits of a pass that computes all, and where nobody asks
nothing is computed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate

import pytest
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import _AT_ONCE, _TOGETHER, Decoder
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows, chain
from tests.costs import cost_of
from tests.costs import counting as counting
from tests.decoder.models import random_tokens, random_tree
from tests.decoder.outcomes import Make, after, dtypes, pieces, run, shapes, together
from tests.tiny import all_logits, tiny_decoder

Part = tuple[Cache, Sequence[int], Sequence[int]]
TREE = 300  # rows: more than are computed before somebody asks


class Heads:
    """How many rows each call of the output layer has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[int] = []
        head = Decoder.head

        def counted(decoder: Decoder, hidden: torch.Tensor, rows: Rows | None = None) -> torch.Tensor:
            self.counts.append(len(hidden))
            return head(decoder, hidden, rows)

        monkeypatch.setattr(Decoder, "head", counted)

    def of(self, outputs: Outputs, row: int) -> int:
        """How many rows it takes to ask for one."""
        known = len(self.counts)
        outputs.logits(row)
        outputs.choice(row)
        assert len(self.counts) <= known + 1
        return sum(self.counts[known:])


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> Heads:
    return Heads(monkeypatch)


def parts_of(decoder: Decoder) -> list[Part]:
    """A large tree, a chain, and a text of five tokens with a tree behind it: of three sequences."""
    lengths, vocab = (20, 3, 33), decoder.config.vocab_size
    first, second, third = (after(decoder, random_tokens(length, length, vocab)) for length in lengths)
    behind = [*range(-1, 4), *(parent + 5 for parent in random_tree(40, 4))]
    return [
        (first, random_tokens(TREE, 1, vocab), random_tree(TREE, 2)),
        (second, random_tokens(20, 3, vocab), range(-1, 19)),
        (third, random_tokens(45, 5, vocab), behind),
    ]


WANTED = [range(TREE), range(TREE, TREE + 20), range(TREE + 20 + 4, TREE + 65)]  # not of the text but its last token
ROWS = [row for walk in WANTED for row in walk]


# -- the bits ---------------------------------------------------------------------------------------------------------


@shapes
@dtypes
def test_logits_asked_for_in_any_order_are_those_of_a_pass_that_computes_all(
    make: Make, shape: str, dtype: torch.dtype
) -> None:
    decoder = make(shape, dtype)
    whole = decoder.run(Rows(parts_of(decoder)))
    logits = all_logits(whole)
    assert not logits.isnan().any()
    for seed in range(1 if shape != "plain" else 3):
        outputs = decoder.check(Rows(parts_of(decoder)), WANTED)
        assert torch.equal(outputs.hidden, whole.hidden)
        for row in random.Random(seed).sample(ROWS, len(ROWS)):
            if row % 2:  # either may be the first to be asked for
                assert outputs.choice(row) == whole.choice(row), (seed, row)
            assert torch.equal(outputs.logits(row), logits[row]), (seed, row)
            assert outputs.choice(row) == whole.choice(row) == int(logits[row].argmax()), (seed, row)


@pytest.mark.parametrize("count", [1, 17, _AT_ONCE, _AT_ONCE + 1])
def test_few_rows_are_those_of_a_pass_that_computes_all(make: Make, count: int) -> None:
    decoder = make("plain")
    tokens, parents = random_tokens(count, 1, 97), random_tree(count, 2)
    whole = decoder.run(Rows([(decoder.new_cache(), tokens, parents)]))
    for first in {0, count // 2}:
        outputs = decoder.check(Rows([(decoder.new_cache(), tokens, parents)]), [range(first, count)])
        for row in range(first, count):
            assert torch.equal(outputs.logits(row), whole.logits(row))
            assert outputs.choice(row) == whole.choice(row)


def test_rows_may_be_prepared_in_any_order(make: Make, heads: Heads) -> None:
    decoder, count = make("plain"), _AT_ONCE + 20
    tokens, parents = random_tokens(count, 1, 97), random_tree(count, 2)
    whole = decoder.run(Rows([(decoder.new_cache(), tokens, parents)]))
    order = random.Random(0).sample(range(count), count)
    for prepared in ([70, 3, 66], order):
        outputs = decoder.check(Rows([(decoder.new_cache(), tokens, parents)]), [])
        outputs.prepare(prepared)
        assert heads.counts.pop() == len(prepared)
        for row in prepared:
            assert torch.equal(outputs.logits(row), whole.logits(row))
            assert outputs.choice(row) == whole.choice(row)
        assert heads.counts == []


def test_a_nan_is_no_choice_and_no_other_row_s(make: Make) -> None:
    decoder = make("plain")
    parts = parts_of(decoder)
    decoder.weights.embedding[int(parts[0][1][200])] = torch.nan
    outputs = decoder.check(Rows(parts), WANTED)
    whole = decoder.run(Rows(parts_of(make("plain"))))
    bad = [row for row in ROWS if outputs.hidden[row].isnan().any()]
    assert 200 in bad
    assert 0 < len(bad) < len(ROWS) / 2
    for row in random.Random(0).sample(ROWS, len(ROWS)):
        assert outputs.choice(row) == (None if row in bad else whole.choice(row))


@pytest.mark.parametrize("taps", [(0,), (2, 1), (1, 1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("count", [5, TREE])
def test_what_goes_into_layers_is_kept_and_changes_nothing(make: Make, taps: tuple[int, ...], count: int) -> None:
    decoder = make("plain")
    tokens, parents = random_tokens(count, 1, 97), random_tree(count, 2)

    def rows() -> Rows:
        return Rows([(decoder.new_cache(), tokens, parents)])

    whole, outputs = decoder.run(rows()), decoder.check(rows(), [range(count)], taps)
    assert torch.equal(outputs.hidden, whole.hidden)
    assert torch.equal(all_logits(outputs), all_logits(whole))
    assert set(outputs.taps) == set(taps)
    for layer, hidden in outputs.taps.items():
        assert torch.equal(hidden, decoder.layers(decoder.embed(tokens), rows(), 0, layer))


# -- what is computed -------------------------------------------------------------------------------------------------


def test_rows_that_nobody_asks_for_are_not_computed(make: Make, heads: Heads) -> None:
    decoder = make("plain")
    rows = Rows(parts_of(decoder))
    heads.counts.clear()
    outputs = decoder.check(rows, WANTED)
    (begun,) = heads.counts
    assert begun == sum(len(rows.followers(walk.start, _AT_ONCE // 3)) for walk in WANTED) <= _AT_ONCE
    for walk in WANTED:
        assert heads.of(outputs, walk.start) == 0, "the beginning of a walk is there"
    known = set[int]().union(*(rows.followers(walk.start, _AT_ONCE // 3) for walk in WANTED))
    for row in known:
        assert heads.of(outputs, row) == 0
    for row in random.Random(0).sample(ROWS, len(ROWS)):
        near = rows.followers(row, _TOGETHER)
        assert near[0] == row
        assert len(near) <= _TOGETHER
        assert heads.of(outputs, row) == (0 if row in known else len({*near} - known)), row
        known |= {*near} if row not in known else set()
        assert heads.of(outputs, row) == 0, "once is enough"
    assert known == set(ROWS)
    assert sum(heads.counts) == len(ROWS), "no row twice, and none of the text but its last"


def test_a_walk_down_a_tree_computes_few_of_its_rows(make: Make, heads: Heads) -> None:
    decoder, width = make("plain"), 4
    parents = [-1, *((row - 1) // width for row in range(1, 1 + 4 + 16 + 64 + 256))]
    rows = Rows([(decoder.new_cache(), random_tokens(len(parents), 1, 97), parents)])
    outputs = decoder.check(rows, [range(len(parents))])
    row, depth = 0, 0
    while row * width + width < len(parents):
        outputs.choice(row)
        row, depth = row * width + width, depth + 1  # the last child
    outputs.choice(row)
    assert depth == 4
    assert sum(heads.counts) <= _AT_ONCE + depth * _TOGETHER < len(parents) / 2


@pytest.mark.parametrize("count", [1, 16, _AT_ONCE])
def test_few_rows_are_computed_at_once(make: Make, heads: Heads, count: int) -> None:
    decoder = make("plain")
    text = after(decoder, [1, 2, 3]), random_tokens(count, 1, 97), random_tree(count, 2)
    heads.counts.clear()
    before = cost_of(decoder)
    outputs = decoder.check(Rows([text]), [range(count)])
    spent = cost_of(decoder) - before
    text[0].discard()
    before = cost_of(decoder)
    decoder.run(Rows([text]))
    assert spent == cost_of(decoder) - before, "all of them, in the call that is the pass"
    assert heads.counts == []
    assert sum(heads.of(outputs, row) for row in range(count)) == 0
    # rows of a text, which nobody looks at
    longer = Rows([(decoder.new_cache(), [1, 2, 3, *text[1]], [-1, 0, 1, *(parent + 3 for parent in text[2])])])
    outputs = decoder.check(longer, [range(3, 3 + count)])
    assert heads.counts == [count]
    assert sum(heads.of(outputs, row) for row in range(3, 3 + count)) == 0


def test_a_pass_that_nobody_looks_at_has_no_logits(make: Make, heads: Heads) -> None:
    decoder = make("plain")
    rows = chain(decoder.new_cache(), random_tokens(80, 1, 97))
    before = cost_of(decoder)
    decoder.check(rows, [])
    spent, before = cost_of(decoder) - before, cost_of(decoder)
    decoder.forward(rows)
    assert spent == cost_of(decoder) - before
    assert heads.counts == []


def test_of_many_walks_every_beginning_is_computed_at_once(make: Make, heads: Heads) -> None:
    decoder, walks = make("plain"), _AT_ONCE + 6
    rows = Rows([(decoder.new_cache(), random_tokens(3, seed, 97), [-1, 0, 0]) for seed in range(walks)])
    outputs = decoder.check(rows, [range(at * 3, at * 3 + 3) for at in range(walks)])
    assert heads.counts == [walks]
    assert [heads.of(outputs, at * 3) for at in range(walks)] == [0] * walks
    assert heads.of(outputs, 4) == 1


def test_logits_that_are_asked_for_are_counted(make: Make) -> None:
    decoder = make("plain")
    c = decoder.config
    before = cost_of(decoder)
    outputs = decoder.check(Rows(parts_of(decoder)), WANTED)
    begun, before = cost_of(decoder) - before, cost_of(decoder)
    for row in ROWS:
        outputs.choice(row)
    rest = cost_of(decoder) - before
    before = cost_of(decoder)
    decoder.run(Rows(parts_of(decoder)))
    texts = 2 * c.hidden_size * c.vocab_size * 4  # four rows whose logits nobody wants
    assert (begun + rest).flops == (cost_of(decoder) - before).flops - texts
    assert rest.cache_bytes == 0 < rest.weight_bytes


# -- many rows --------------------------------------------------------------------------------------------------------

MANY = 1_100
SIZES = [1 + at % 17 for at in range(127)]  # rows of each pass: 1 to 17, and again


@pytest.mark.parametrize(("shape", "dtype"), [("plain", torch.float32), ("window-odd-heads", torch.bfloat16)], ids=str)
def test_rows_are_independent_where_there_are_many(arithmetic: str, shape: str, dtype: torch.dtype, make: Make) -> None:
    decoder = make(shape, dtype, max_position_embeddings=2048)
    prefix = random_tokens(15, 1, 97)
    tokens, tree_tokens, parents = random_tokens(MANY, 2, 97), random_tokens(MANY, 3, 97), random_tree(MANY, 4)
    caches = after(decoder, prefix), after(decoder, prefix)
    whole = run(decoder, Rows([(caches[0], tokens, range(-1, MANY - 1)), (caches[1], tree_tokens, parents)]))

    cache = after(decoder, prefix)
    chained = together([run(decoder, chain(cache, piece)) for piece in pieces(tokens, SIZES)])
    cache = after(decoder, prefix)
    cuts = [*accumulate(SIZES, initial=0)]
    assert cuts[-2] < MANY <= cuts[-1]
    grown = together(
        [
            run(decoder, Rows([(cache, tree_tokens[start:stop], parents[start:stop])]))
            for start, stop in zip(cuts, [*cuts[1:-1], MANY], strict=False)
        ]
    )
    assert together([chained, grown]) == whole


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_logits_of_many_rows_are_those_of_few(arithmetic: str, kind: str) -> None:
    decoder = tiny_decoder(arithmetic=arithmetic, max_position_embeddings=2048)
    tokens = random_tokens(MANY, 2, 97)
    parents = [*range(-1, MANY - 1)] if kind == "chain" else random_tree(MANY, 4)

    def whole() -> Rows:
        return Rows([(decoder.new_cache(), tokens, parents)])

    at_once, asked = decoder.run(whole()), decoder.check(whole(), [range(MANY)])
    cache, start = decoder.new_cache(), 0
    for size in SIZES:
        rows = Rows([(cache, tokens[start : start + size], parents[start : start + size])])
        outputs = decoder.run(rows)
        for row in range(len(rows)):
            for others in (at_once, asked):
                assert torch.equal(others.hidden[start + row], outputs.hidden[row])
                assert torch.equal(others.logits(start + row), outputs.logits(row))
                assert others.choice(start + row) == outputs.choice(row) is not None
        start += size
    assert start >= MANY


@pytest.mark.parametrize("taps", [(), (0, 2)])
def test_a_pass_that_lets_others_in_between_has_the_same_bits(taps: tuple[int, ...]) -> None:
    decoder = tiny_decoder(num_hidden_layers=6)
    rows = [chain(decoder.new_cache(), random_tokens(9, 1, decoder.config.vocab_size)) for _ in range(2)]
    came: list[int] = []
    plain = decoder.check(rows[0], [range(9)], taps)
    paused = decoder.check(rows[1], [range(9)], taps, between=lambda: came.append(1))
    assert len(came) >= 2
    assert all(torch.equal(plain.logits(row), paused.logits(row)) for row in range(9))
    assert rows[0].cost == rows[1].cost
    assert all(torch.equal(plain.taps[layer], paused.taps[layer]) for layer in taps)
