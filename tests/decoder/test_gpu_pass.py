"""Passes on a GPU: on one if there is one, else as Triton interprets its kernels on the CPU."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from foretoken.decoder.decoder import Decoder
from foretoken.decoder.gpu_pass import GpuPass, _Placed
from foretoken.decoder.low_bit import quantised
from foretoken.decoder.rows import Rows, chain
from foretoken.decoder.weights import assemble
from foretoken.errors import ContractError
from foretoken.formats import FORMATS
from foretoken.kernels.gpu import CHUNK
from tests.decoder.low_bit import SHAPES, made
from tests.tiny import one_thread

__all__ = ["one_thread"]

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed here")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
recorded = pytest.mark.skipif(DEVICE.type != "cuda", reason="a recording is a CUDA graph, so it needs a GPU")
TEXT = [5, 9, 2, 7, 11, 3, 8, 1, 6, 4, 10, 12]
FAMILIES: list[dict[str, Any]] = [
    {},
    SHAPES["odd widths"],
    {"model_type": "mistral", "sliding_window": 6},
    {"model_type": "qwen2"},
    {"model_type": "qwen3", "head_dim": 16},
]


def pair(format: str | None = None, **shape: Any) -> tuple[Decoder, Decoder]:
    """A decoder whose arithmetic is checked elsewhere, and the one to check."""
    config, weights = made(num_hidden_layers=2, **shape)
    placed = assemble({name: tensor.to(DEVICE) for name, tensor in weights.tensors.items()}, config)
    both = []
    for arithmetic, its in (("pytorch", weights), ("triton", placed)):
        its = its if format is None else quantised(its, config, FORMATS[format])
        both.append(Decoder(config, its, threads=1, arithmetic=arithmetic))
    return both[0], both[1]


@pytest.mark.parametrize("shape", FAMILIES, ids=str)
def test_logits_are_those_of_pytorch(shape: dict[str, Any]) -> None:
    logits = [each.run(chain(each.new_cache(), TEXT)).logits(len(TEXT) - 1) for each in pair(**shape)]
    torch.testing.assert_close(logits[1], logits[0], rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("shape", FAMILIES, ids=str)
def test_a_tree_has_the_bits_of_plain_decoding(shape: dict[str, Any]) -> None:
    decoder = pair(**shape)[1]
    assert (decoder.promise, decoder.arithmetic) == ("exact", "triton")
    plain = decoder.new_cache()
    expected = []
    for token in TEXT:
        rows = chain(plain, [token])
        expected.append(decoder.run(rows).logits(0))
        plain.commit(range(1), rows.writer)
    cache = decoder.new_cache()
    rows = chain(cache, TEXT[:4])
    found = decoder.run(rows)
    assert all(torch.equal(found.logits(at), expected[at]) for at in range(4))
    cache.commit(range(4), rows.writer)
    view = cache.view()
    tree = Rows([(view, [TEXT[4], 15, TEXT[5], 14, TEXT[6], 13], [-1, -1, 0, 0, 2, 2])])
    found = decoder.run(tree)
    assert all(torch.equal(found.logits(row), expected[at]) for row, at in ((0, 4), (2, 5), (4, 6)))
    view.commit([0, 2, 4], tree.writer)
    assert view.digest() != cache.digest()
    for layer in range(2):
        for mine, theirs in zip(view.read(layer), plain.read(layer), strict=True):
            assert torch.equal(mine[:7], theirs[:7])


@pytest.mark.parametrize("format", ["int4", "mxfp4", "int8"])
def test_low_bit_weights_stay_low_bit(format: str) -> None:
    plain, decoder = pair(format)
    logits = [each.run(chain(each.new_cache(), TEXT)).logits(len(TEXT) - 1) for each in (plain, decoder)]
    torch.testing.assert_close(logits[1], logits[0], rtol=0.1, atol=0.1)
    one = decoder.run(chain(decoder.new_cache(), TEXT[:1])).logits(0)
    assert torch.equal(one, decoder.run(chain(decoder.new_cache(), TEXT)).logits(0))


@pytest.mark.parametrize("lo", [0, 1])
def test_a_layer_reads_what_it_is_given_in_place_of_its_norm(lo: int) -> None:
    made = pair()[1]
    layers = tuple(replace(layer, input_norm=made.weights.norm) for layer in made.weights.layers)
    decoder = Decoder(made.config, replace(made.weights, layers=layers), threads=1, arithmetic="triton")
    found = []
    for factor in (None, 1, 2):
        rows = chain(decoder.new_cache(), TEXT)
        hidden = decoder.layers(decoder.embed(rows), rows, 0, lo)
        entering = None if factor is None else factor * decoder.norm(hidden)
        found.append(decoder.layers(hidden, rows, lo, None, entering))
    assert torch.equal(found[0], found[1]), "given its own norm, it does what it does without"
    assert not torch.allclose(found[0], found[2])


def test_a_chain_in_one_call_is_that_of_a_pass_for_each_token() -> None:
    decoder = pair()[1]
    cache, tokens = decoder.new_cache(), [TEXT[0]]
    drafted = decoder.draft_chain(decoder.new_cache(), TEXT[0], 4)
    for _ in range(4):
        rows = chain(cache, tokens[-1:])
        choice = decoder.run(rows).choice(0)
        cache.commit(range(1), rows.writer)
        assert choice is not None
        tokens.append(choice)
    assert drafted.tokens == tokens[1:]


def test_rows_that_see_each_other_are_refused() -> None:
    decoder = pair()[1]
    rows = chain(decoder.new_cache(), TEXT[:3])
    rows.see_each_other()
    with pytest.raises(ContractError, match="sees its ancestors and itself"):
        decoder.run(rows)


def test_texts_in_one_pass_are_independent() -> None:
    decoder = pair()[1]
    texts = [TEXT[:5], TEXT[5:8]]
    both = decoder.run(Rows([(decoder.new_cache(), text, range(-1, len(text) - 1)) for text in texts]))
    alone = [decoder.run(chain(decoder.new_cache(), text)) for text in texts]
    assert torch.equal(both.logits(4), alone[0].logits(4))
    assert torch.equal(both.logits(7), alone[1].logits(2))


def test_keys_beyond_a_chunk_and_views_on_views() -> None:
    decoder = pair(max_position_embeddings=1024)[1]
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(0, 90, (300,), generator=generator).tolist()
    whole = decoder.new_cache()
    expected = decoder.run(chain(whole, text))
    cache = decoder.new_cache()
    for tokens in (text[:250], text[250:260]):
        rows = chain(cache, tokens)
        decoder.forward(rows)
        cache.commit(range(len(tokens)), rows.writer)
    view = cache.view(length=255)
    for at, tokens in ((255, text[255:270]), (270, text[270:299])):
        rows = chain(view, tokens)
        found = decoder.run(rows)
        assert torch.equal(found.logits(3), expected.logits(at + 3))
        view.commit(range(len(tokens)), rows.writer)
    other = view.view(length=280)
    found = decoder.run(Rows([(other, [3, text[280], text[281]], [-1, -1, 1])]))
    assert torch.equal(found.logits(2), expected.logits(281))


@recorded
def test_a_recorded_pass_has_the_bits_of_one_that_is_not() -> None:
    decoder = pair(max_position_embeddings=1024)[1]
    cache = decoder.new_cache()
    text = torch.randint(0, 90, (600,), generator=torch.Generator().manual_seed(0)).tolist()
    expected = decoder.run(chain(decoder.new_cache(), text))  # more rows than are recorded
    for at in range(0, 600, 5):
        rows = chain(cache, text[at : at + 5])
        found = decoder.run(rows)
        assert all(torch.equal(found.logits(row), expected.logits(at + row)) for row in range(5)), at
        cache.commit(range(5), rows.writer)
    assert isinstance(decoder._pass, GpuPass)
    assert len(decoder._pass._recordings)


@recorded
@pytest.mark.parametrize("count", [2, 4, 7])
def test_a_recorded_pass_over_several_texts_has_the_bits_of_each_alone(count: int) -> None:
    decoder = pair(max_position_embeddings=1024)[1]
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(0, 90, (40 + 60 * at,), generator=generator).tolist() for at in range(count)]
    expected = [decoder.run(chain(decoder.new_cache(), [*text, *text[:30]])) for text in texts]
    assert isinstance(decoder._pass, GpuPass)
    decoder._pass._recordings.drop()
    caches = [decoder.new_cache() for _ in texts]
    for cache, text in zip(caches, texts, strict=True):
        rows = chain(cache, text)
        decoder.forward(rows)
        cache.commit(range(len(text)), rows.writer)
    before = len(decoder._pass._recordings)
    for turn in range(10):
        some = list(zip(caches, texts, strict=True))[: count - turn % 2]  # one recording serves two numbers of texts
        begin = [cache.length - len(text) for cache, text in some]
        both = Rows([(cache, text[at : at + 3], [-1, 0, 1]) for (cache, text), at in zip(some, begin, strict=True)])
        found = decoder.run(both)
        for number, ((cache, text), at) in enumerate(zip(some, begin, strict=True)):
            for row in range(3):
                alone = expected[number].logits(len(text) + at + row)
                assert torch.equal(found.logits(3 * number + row), alone), (at, number, row)
            cache.commit(both.segments[number].slots, both.writer)
    assert len(decoder._pass._recordings) > before


# a row that is not there computes with what its memory held before, and nobody reads what comes of it
@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
def test_rows_and_texts_that_are_not_there_change_nothing() -> None:
    decoder = pair()[1]
    its = decoder._pass
    assert isinstance(its, GpuPass)

    def rows() -> Rows:
        caches = [decoder.new_cache() for _ in range(6)]
        for cache in caches:  # what a row that is not there would write before the slots
            read = chain(cache, TEXT[5:8])
            decoder.forward(read)
            cache.commit(range(3), read.writer)
        segments = [(cache, TEXT[:at], range(-1, at - 1)) for cache, at in zip(caches, (2, 1, 3, 1, 1), strict=False)]
        return Rows([*segments, (caches[5], TEXT[:5], [-1, -1, 0, 0, 2])])

    placed = _Placed.of(rows())
    expected = its._whole(placed.on(DEVICE))
    again = _Placed.of(rows())
    filled = again.filled(16)
    assert (again.texts, filled.count, filled.texts, filled.aligned) == (6, 16, 16, placed.aligned)
    assert torch.equal(its._whole(filled.on(DEVICE, 2 * CHUNK - 1))[:13], expected)


@recorded
def test_a_text_outgrows_the_table_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretoken.decoder.gpu_pass._POSITIONS", 256)
    decoder = pair(max_position_embeddings=2048)[1]
    text = torch.randint(0, 90, (1200,), generator=torch.Generator().manual_seed(0)).tolist()
    expected = decoder.run(chain(decoder.new_cache(), text))
    decoder = pair(max_position_embeddings=2048)[1]
    cache = decoder.new_cache()
    for at in range(0, 1200, 6):
        rows = chain(cache, text[at : at + 6])
        found = decoder.run(rows)
        assert all(torch.equal(found.logits(row), expected.logits(at + row)) for row in range(6)), at
        cache.commit(range(6), rows.writer)
