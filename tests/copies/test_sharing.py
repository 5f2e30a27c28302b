"""What the low-bit copies of a model share with it and with each other, and what options reach them."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken.api.levels import DRAFT_INPUTS
from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder, Drafted
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows
from foretoken.drafters.chain import ModelDrafter
from foretoken.formats.weight import QuantisedWeight
from tests.copies.loaded import PROMPT, SAMPLED, copies, generate, load, samplings


@pytest.mark.parametrize("weights", ["mapped", "copied"])
@pytest.mark.parametrize("model", ["stdlib-1m", "stdlib-7m"])
def test_what_is_in_no_format_is_the_target_s_memory(model: str, weights: str) -> None:
    loaded = load("mxfp4,int2:own-cache", model, weights=weights)
    assert len(copies(loaded)) == 2
    for copy in copies(loaded):
        mine, theirs = copy.model.weights, loaded.target.weights
        assert mine.embedding.data_ptr() == theirs.embedding.data_ptr()
        assert mine.norm.data_ptr() == theirs.norm.data_ptr()
        assert set(mine.tensors) <= set(theirs.tensors)
        for name, tensor in mine.tensors.items():
            assert tensor.data_ptr() == theirs.tensors[name].data_ptr(), name
        assert {linear.format for linear in mine.linears} <= {"mxfp4", "int2-g64"}
        assert copy.model.threads == loaded.target.threads


def test_a_copy_is_the_same_whatever_layout_the_target_s_weights_have() -> None:
    one, other = (copies(load("mxfp4", weights=weights))[0].model.weights for weights in ("mapped", "copied"))
    for mine, theirs in zip(one.linears, other.linears, strict=True):
        assert isinstance(mine.weight, QuantisedWeight)
        assert isinstance(theirs.weight, QuantisedWeight)
        assert torch.equal(mine.weight.codes, theirs.weight.codes)
        assert torch.equal(mine.weight.scales, theirs.weight.scales)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no list of what is mapped")
def test_no_file_stays_mapped_for_a_copy_of_copied_weights() -> None:
    def files() -> list[str]:
        gc.collect()
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.endswith(".safetensors")]

    before = files()
    model = load("mxfp4,lookup", weights="copied")
    assert files() == before
    assert generate(model).tokens


def test_options_reach_the_copy() -> None:
    def linears(draft: str) -> set[tuple[str, str]]:
        return {(linear.format, linear.inputs) for linear in copies(load(draft))[0].model.weights.linears}

    assert linears("mxfp4") == {("mxfp4", DRAFT_INPUTS)}
    assert linears("int4") == linears("int4-g64") == {("int4-g64", DRAFT_INPUTS)}
    assert linears("int4:group=32:inputs=bf16") == {("int4-g32", "bf16")}
    assert linears("int2:inputs=int8:k=2") == {("int2-g64", "int8")}
    assert linears("stdlib-1m:format=int8:inputs=bf16") == {("int8", "bf16")}
    assert linears("stdlib-1m") == {("bfloat16", "bf16")}


class Counted:
    """How many rows each pass of a decoder has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._passes: dict[int, list[int]] = {}
        forward, run, chain = Decoder.forward, Decoder.run, Decoder.draft_chain

        def counted_forward(decoder: Decoder, rows: Rows) -> torch.Tensor:
            self.of(decoder).append(len(rows))
            return forward(decoder, rows)

        def counted_run(decoder: Decoder, rows: Rows) -> Outputs:
            self.of(decoder).append(len(rows))
            return run(decoder, rows)

        def counted_chain(decoder: Decoder, cache: Cache, token: int, count: int, **options: Any) -> Drafted:
            self.of(decoder).extend([1] * count)
            return chain(decoder, cache, token, count, **options)

        monkeypatch.setattr(Decoder, "forward", counted_forward)
        monkeypatch.setattr(Decoder, "run", counted_run)
        monkeypatch.setattr(Decoder, "draft_chain", counted_chain)

    def of(self, decoder: Decoder) -> list[int]:
        return self._passes.setdefault(id(decoder), [])


LONG = tuple(range(2, 302))


@samplings
def test_copies_that_share_keys_and_values_read_no_prompt(
    monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any]
) -> None:
    model, tree = load("int4:tokens=6,int2:tokens=4,lookup:tokens=3"), load("mxfp4:k=2:depth=3")
    counted = Counted(monkeypatch)  # not what a load times
    done = model.generate(LONG, max_new_tokens=30, ignore_eos=True, **sampling)
    assert sum(counted.of(model.target)) >= len(LONG)
    upper, lower = (counted.of(copy.model) for copy in copies(model))
    assert upper
    assert lower
    assert max(upper) <= 1 + 4  # a root and what the level below guessed
    assert max(lower) <= 1 + 3
    assert sum(upper) + sum(lower) < 12 * len(done.tokens)
    tree.generate(LONG, max_new_tokens=20, ignore_eos=True, **sampling)
    (rows,) = (counted.of(copy.model) for copy in copies(tree))
    assert 0 < max(rows) <= 2


def test_one_that_has_its_own_reads_the_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("mxfp4:own-cache,int2:tokens=4")
    counted = Counted(monkeypatch)
    text = LONG * 2
    model.generate(text, max_new_tokens=20, ignore_eos=True)
    upper, lower = (counted.of(copy.model) for copy in copies(model))
    # a chunk as the target reads one, then the rest: perhaps with the first token, in the pass that checks a draft
    assert upper[0] == 512
    assert 0 <= upper[1] - (len(text) - 512) <= 1 + 4
    assert max(upper[2:]) < 10
    assert max(lower) < 10  # on views of the upper one's


@pytest.mark.parametrize("draft", ["mxfp4", "mxfp4,int2,lookup", "mxfp4:own-cache,int2"])
def test_nothing_of_a_sequence_stays_when_it_has_ended(draft: str) -> None:
    model = load(draft)
    generate(model)
    model.completions(PROMPT, n=2, max_new_tokens=5, **SAMPLED)
    for drafter in copies(model):
        assert not drafter._readings
        checked = getattr(drafter, "_checked", None)
        assert checked is None or not checked._caches


def test_the_views_that_a_copy_hands_down_are_of_nothing_after_a_round_that_breaks_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load("int4,int2,lookup")
    first, second = copies(model)
    assert isinstance(first, ModelDrafter)
    assert isinstance(second, ModelDrafter)
    checked, seen = first._checked, []
    assert second.views is checked

    def fail(turns: Any) -> Any:
        seen.append(len(checked._caches))
        raise OSError("gone")

    monkeypatch.setattr(second, "propose", fail)
    with pytest.raises(OSError, match="gone"):
        generate(model)
    assert seen == [1]
    assert not checked._caches
