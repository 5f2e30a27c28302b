"""The decoder against transformers, architecture by architecture, on float32 checkpoints that transformers wrote.

Natively and in PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from foretoken.decoder.config import parse_config, read_json
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.families import FAMILIES
from foretoken.decoder.rows import Rows, chain
from foretoken.decoder.shapes import expected_shapes
from foretoken.decoder.weights import assemble
from foretoken.errors import ContractError
from tests.decoder.models import (
    FAMILIES_TABLE,
    SMALL,
    FamilyCase,
    build_reference,
    family_case,
    load_decoder,
    logits_token_by_token,
    old_style,
    path_to,
    random_tokens,
    random_tree,
    reference_logits,
    run,
    run_in_chunks,
)
from tests.tiny import tiny_decoder

PROMPT = 40  # tokens: five times the sliding window
PREFIX = 21  # tokens before a tree: more than the window, and no multiple of anything
TREE = 9  # rows


@dataclass(frozen=True)
class Pair:
    """A checkpoint, transformers' model of it and ours, and transformers' logits of a prompt."""

    case: FamilyCase
    folder: Path
    reference: Any
    decoder: Decoder
    tokens: list[int]
    expected: torch.Tensor

    def under(self, arithmetic: str) -> Pair:
        """The same with a decoder of that arithmetic."""
        decoder = load_decoder(self.folder, arithmetic=arithmetic)
        assert decoder.arithmetic.startswith("pytorch" if arithmetic == "pytorch" else "native")
        return replace(self, decoder=decoder)


def make_pair(case: FamilyCase, folder: Path) -> Pair:
    reference = build_reference(case)
    reference.save_pretrained(folder)
    tokens = random_tokens(PROMPT, seed=1)
    return Pair(case, folder, reference, load_decoder(folder), tokens, reference_logits(reference, tokens))


@pytest.fixture(scope="module", params=FAMILIES_TABLE, ids=lambda case: case.name)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(request.param, tmp_path_factory.mktemp(request.param.name))


@pytest.fixture
def pair(checkpoint: Pair, arithmetic: str) -> Pair:
    return checkpoint.under(arithmetic)


@pytest.fixture(scope="module")
def llama_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(family_case("llama-untied-biases"), tmp_path_factory.mktemp("llama"))


@pytest.fixture
def llama(llama_checkpoint: Pair, arithmetic: str) -> Pair:
    return llama_checkpoint.under(arithmetic)


def difference(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    assert logits.shape == expected.shape
    return float((logits - expected).abs().max() / expected.abs().max())


def test_every_supported_model_type_is_compared() -> None:
    compared = {getattr(transformers, case.config_class).model_type for case in FAMILIES_TABLE}
    assert compared == set(FAMILIES)
    assert len({case.name for case in FAMILIES_TABLE}) == len(FAMILIES_TABLE)


# -- every family ---------------------------------------------------------------------------------------------------


def test_prefill_equals_transformers(pair: Pair) -> None:
    logits = run(pair.decoder, chain(pair.decoder.new_cache(), pair.tokens))
    assert logits.dtype == torch.float32
    assert difference(logits, pair.expected) < 1e-5


def test_decoding_token_by_token_equals_transformers(pair: Pair) -> None:
    assert difference(run_in_chunks(pair.decoder, pair.tokens, 1), pair.expected) < 1e-5


def test_prefill_in_chunks_equals_transformers(pair: Pair) -> None:
    # 11 leaves an odd rest, and cuts within and across the window
    assert difference(run_in_chunks(pair.decoder, pair.tokens, 11), pair.expected) < 1e-5


def test_each_row_of_a_tree_equals_its_own_path_in_transformers_and_bit_for_bit_in_foretoken(pair: Pair) -> None:
    decoder, prefix = pair.decoder, pair.tokens[:PREFIX]
    tokens, parents = random_tokens(TREE, seed=2), random_tree(TREE, seed=3)
    assert len(set(parents)) < TREE  # some row has two children, or this would be a chain
    assert max(len(path_to(parents, row)) for row in range(TREE)) > 2

    cache = decoder.new_cache()
    before = chain(cache, prefix)
    run(decoder, before)
    cache.commit(range(PREFIX), before.writer)
    tree = run(decoder, Rows([(cache, tokens, parents)]))

    for row in range(TREE):
        sequence = prefix + [tokens[ancestor] for ancestor in path_to(parents, row)]
        assert difference(tree[row], reference_logits(pair.reference, sequence)[-1]) < 1e-5
        alone = run(decoder, chain(decoder.new_cache(), sequence))[-1]
        assert torch.equal(tree[row], alone)


@pytest.mark.parametrize(
    "checkpoint",
    [case for case in FAMILIES_TABLE if case.without is not None],
    indirect=True,
    ids=lambda case: case.name,
)
def test_the_logits_notice_when_the_feature_is_off(pair: Pair, arithmetic: str) -> None:
    assert pair.case.without is not None
    blind = load_decoder(pair.folder, arithmetic=arithmetic, **pair.case.without)
    logits = run(blind, chain(blind.new_cache(), pair.tokens))
    # a hundred times what the tests above let pass
    assert difference(logits, pair.expected) > 1e-3


def test_an_old_style_config_json_says_the_same(checkpoint: Pair) -> None:
    raw = read_json(checkpoint.folder / "config.json")
    old = old_style(raw)
    assert "rope_parameters" in raw
    assert "rope_parameters" not in old
    assert parse_config(old) == parse_config(raw)


# -- what only some families have -----------------------------------------------------------------------------------


def test_window_layers_of_qwen_follow_the_layer_number_when_layer_types_are_absent(tmp_path: Path) -> None:
    build_reference(family_case("qwen2-window-from-layer-1")).save_pretrained(tmp_path)
    raw = read_json(tmp_path / "config.json")
    assert raw.pop("layer_types") == ["full_attention", "sliding_attention", "sliding_attention"]
    assert parse_config(raw).windows == (None, 8, 8)


def test_dynamic_rope_beyond_the_trained_length_equals_token_by_token_decoding_in_transformers(arithmetic: str) -> None:
    # transformers stretches all positions of a pass to the longest one's length, so that a row depends on its
    # companions; only its decoding one token at a time gives each row the length that the row itself has reached
    case = family_case("llama-rope-dynamic")
    reference = build_reference(
        FamilyCase(case.name, case.config_class, {**case.overrides, "max_position_embeddings": 16})
    )
    config = parse_config({**reference.config.to_dict(), "dtype": "float32"})
    assert config.context_length == 48
    state = reference.state_dict()
    weights = assemble({name: state[name] for name in expected_shapes(config)}, config)
    decoder = Decoder(config, weights, threads=1, arithmetic=arithmetic)
    tokens = random_tokens(PROMPT, seed=1)
    stretched = logits_token_by_token(reference, tokens)
    assert difference(run_in_chunks(decoder, tokens, len(tokens)), stretched) < 1e-5
    # and the stretch is seen
    assert difference(reference_logits(reference, tokens), stretched) > 1e-3


# -- how a checkpoint lies on disk ----------------------------------------------------------------------------------


def test_a_sharded_checkpoint_is_the_same_model(llama: Pair, tmp_path: Path, arithmetic: str) -> None:
    llama.reference.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert not (tmp_path / "model.safetensors").exists()
    sharded = load_decoder(tmp_path, arithmetic=arithmetic)
    assert sharded.weights.tensors.keys() == llama.decoder.weights.tensors.keys()
    for name, tensor in sharded.weights.tensors.items():
        assert torch.equal(tensor, llama.decoder.weights.tensors[name])
    assert difference(run(sharded, chain(sharded.new_cache(), llama.tokens)), llama.expected) < 1e-5


def test_valid_vocab_size_cuts_the_logits(llama: Pair, arithmetic: str) -> None:
    cut = load_decoder(llama.folder, arithmetic=arithmetic, valid_vocab_size=90)
    assert cut.config.vocab_size == SMALL["vocab_size"]
    whole = run(llama.decoder, chain(llama.decoder.new_cache(), llama.tokens))
    logits = run(cut, chain(cut.new_cache(), llama.tokens))
    assert logits.shape == (PROMPT, 90)
    assert torch.equal(logits, whole[:, :90])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)], ids=str)
@pytest.mark.parametrize("name", ["llama-tied", "qwen2", "qwen3-window-biases"])
def test_a_half_precision_checkpoint_runs_in_its_own_type(
    name: str, dtype: torch.dtype, bound: float, tmp_path: Path, arithmetic: str
) -> None:
    build_reference(family_case(name)).to(dtype).save_pretrained(tmp_path)
    decoder = load_decoder(tmp_path, arithmetic=arithmetic)
    assert decoder.config.dtype == str(dtype).removeprefix("torch.")
    assert {tensor.dtype for tensor in decoder.weights.tensors.values()} == {dtype}
    tokens = random_tokens(PROMPT, seed=1)
    cache = decoder.new_cache()
    logits = run(decoder, chain(cache, tokens))
    assert {tensor.dtype for tensor in cache.read(0)} == {dtype}
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()

    wide = load_decoder(tmp_path, dtype=torch.float32, arithmetic=arithmetic)
    assert {tensor.dtype for tensor in wide.weights.tensors.values()} == {torch.float32}
    # the weights are the same numbers; what is left are the roundings of activations, `bound` each
    far = difference(logits, run(wide, chain(wide.new_cache(), tokens)))
    assert 0 < far < 5 * bound


# -- layer ranges ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("middle", [0, 1, 2, 3])
def test_two_layer_ranges_over_the_same_rows_are_the_whole(llama: Pair, middle: int) -> None:
    decoder, tokens = llama.decoder, llama.tokens[:12]
    whole_cache, cache = decoder.new_cache(), decoder.new_cache()
    whole_rows, rows = chain(whole_cache, tokens), chain(cache, tokens)
    hidden = decoder.embed(tokens)
    whole = decoder.layers(hidden, whole_rows, 0, 3)
    halves = decoder.layers(decoder.layers(hidden, rows, 0, middle), rows, middle, 3)
    assert torch.equal(halves, whole)
    # and as one writer wrote all layers, the rows may be committed
    for each, its_rows in ((whole_cache, whole_rows), (cache, rows)):
        each.commit(range(12), its_rows.writer)
    assert cache.digest() == whole_cache.digest()


def test_two_layer_ranges_over_caches_of_their_own_are_the_whole(llama: Pair) -> None:
    decoder, tokens = llama.decoder, llama.tokens[:12]
    hidden = decoder.embed(tokens)
    whole = decoder.layers(hidden, chain(decoder.new_cache(), tokens))
    lower, upper = chain(decoder.new_cache(range(2)), tokens), chain(decoder.new_cache(range(2, 3)), tokens)
    assert torch.equal(decoder.layers(decoder.layers(hidden, lower, 0, 2), upper, 2, 3), whole)


@pytest.mark.parametrize(("lo", "hi", "states"), [(-1, 3, 4), (0, 4, 4), (2, 1, 4), (0, 3, 3), (0, 3, 5)])
def test_a_layer_range_or_hidden_states_that_do_not_fit_are_refused(
    lo: int, hi: int, states: int, arithmetic: str
) -> None:
    decoder = tiny_decoder(threads=1, arithmetic=arithmetic)
    rows = chain(decoder.new_cache(), [1, 2, 3, 4])
    with pytest.raises(ContractError) as error:
        decoder.layers(decoder.embed([1] * states), rows, lo, hi)
    assert str(error.value) == (
        f"layers {lo} to {hi} over hidden states [{states}, 32]; expected a range within 0 to 3, and hidden states "
        "[4, 32]"
    )


@pytest.mark.parametrize("shape", [(4, 31), (4, 33), (32,), (1, 4, 32)])
def test_hidden_states_of_another_shape_are_refused(shape: tuple[int, ...], arithmetic: str) -> None:
    decoder = tiny_decoder(threads=1, arithmetic=arithmetic)
    rows = chain(decoder.new_cache(), [1, 2, 3, 4])
    with pytest.raises(ContractError, match=r"^layers 0 to 3 over hidden states .*; expected .* \[4, 32\]$"):
        decoder.layers(torch.zeros(shape), rows)
    with pytest.raises(ContractError) as error:
        decoder.head(torch.zeros(shape))
    assert str(error.value) == f"hidden states are {list(shape)} on cpu; expected [N, 32] on cpu"
