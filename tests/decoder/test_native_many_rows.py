"""Passes over so many rows that AMX multiplies them in another way, with every instruction set: by their bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import foretoken
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.low_bit import quantised
from foretoken.decoder.rows import chain
from foretoken.decoder.weights import repacked
from foretoken.formats import Format
from tests.decoder.low_bit import formats
from tests.decoder.models import random_tokens
from tests.decoder.native import decoders, expect_same, reference_of, tensors_of
from tests.isas import HERE, with_isa
from tests.reference_decoder import Part, ReferenceDecoder
from tests.tiny import needs_native, tiny_config

pytestmark = needs_native

# groups of 16 rows that are full or not, one or two shares of rows; blocks of 16 outputs that are odd in number, or not
# full
ROWS = (49, 64, 100, 270, 512, 530)
SHAPES: dict[str, dict[str, Any]] = {
    "odd widths": {"hidden_size": 47, "intermediate_size": 31, "vocab_size": 113},
    "an odd number of blocks": {"hidden_size": 96, "intermediate_size": 272, "attention_bias": True, "mlp_bias": True},
    "more blocks than at a time": {"hidden_size": 64, "intermediate_size": 1120},
    "wide": {"hidden_size": 1088, "intermediate_size": 560, "head_dim": 16},
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_many_rows_are_the_reference_s(shape: str, rows: int) -> None:
    reference = reference_of(torch.bfloat16, **{**SHAPES[shape], "num_hidden_layers": 1})
    text = random_tokens(rows, 1, 97)
    expected = reference.run([Part(reference.nothing(), text, range(-1, rows - 1))])
    for decoder in decoders(reference, threads=2):
        expect_same(decoder, chain(decoder.new_cache(), text), expected)


def test_what_was_enough_for_more_rows_is_enough_for_fewer() -> None:
    # of 530 rows 288 go together, of 512 all of them
    reference = reference_of(
        torch.bfloat16, hidden_size=1088, intermediate_size=96, vocab_size=1000, num_hidden_layers=1
    )
    ours = decoders(reference)
    for rows in (530, 512):
        text = random_tokens(rows, 5, 97)
        expected = reference.run([Part(reference.nothing(), text, range(-1, rows - 1))])
        for decoder in ours:
            expect_same(decoder, chain(decoder.new_cache(), text), expected)


@pytest.mark.parametrize("isa", [isa for isa in HERE if isa.startswith(("amx", "avx512"))])
def test_many_rows_meet_weights_in_a_level_s_own_layout(isa: str) -> None:
    reference = reference_of(torch.bfloat16, hidden_size=1088, intermediate_size=96, num_hidden_layers=1)
    for rows in (100, 512):
        text = random_tokens(rows, 2, 97)
        expected = reference.run([Part(reference.nothing(), text, range(-1, rows - 1))])
        with with_isa(isa):
            decoder = Decoder(reference.config, repacked(tensors_of(reference.config, torch.bfloat16)), threads=2)
        expect_same(decoder, chain(decoder.new_cache(), text), expected)


@pytest.mark.parametrize("inputs", ["bf16", "int8"])
@formats
def test_many_rows_meet_low_bit_weights(format: Format, inputs: str) -> None:
    config = tiny_config(num_hidden_layers=1, hidden_size=96, intermediate_size=176, attention_bias=True)
    low = quantised(tensors_of(config, torch.bfloat16), config, format, inputs=inputs)
    reference = ReferenceDecoder(config, low)
    for rows in (60, 530):
        text = random_tokens(rows, 3, 97)
        expected = reference.run([Part(reference.nothing(), text, range(-1, rows - 1))])
        for decoder in decoders(reference, threads=2):
            expect_same(decoder, chain(decoder.new_cache(), text), expected)


def test_many_rows_meet_a_layer_s_projections_one_by_one() -> None:
    # the parts of a layer that is read in each pass run when they are there
    text = random_tokens(700, 4, 4000)
    asked: dict[str, Any] = {"max_new_tokens": 2, "ignore_eos": True, "hash_logits": True}
    hashes = {
        foretoken.load("stdlib-7m", draft="none", prefill_chunk=600, stream_layers=layers)
        .generate(text, **asked)
        .logits_sha256
        for layers in (None, "all")
    }
    assert len(hashes) == 1
