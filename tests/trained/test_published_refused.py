"""What is wrong with a published drafter is said in a line, before anything is computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import foretoken
from foretoken.common.source import EMBEDDED
from foretoken.drafters.ladder import find_levels, name_levels
from foretoken.errors import CheckpointError, DraftSpecError, ForetokenError, UnsupportedModelError
from foretoken.settings.load import LoadSettings
from foretoken.trained.config import VOCABULARY
from foretoken.trained.files import read_trained
from tests.trained.conftest import TARGET, blocks, eagles

Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]


def without(name: str) -> Change:
    return lambda raw, tensors: tensors.pop(name)


def config(**values: Any) -> Change:
    return lambda raw, tensors: raw.update(values)


def its(**values: Any) -> Change:
    return lambda raw, tensors: raw["dflash_config"].update(values)


def d2t(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda raw, tensors: tensors.update(d2t=change(tensors["d2t"]).contiguous())


def sized(name: str, value: Any) -> Change:
    """The sizes of layers lie in a part of their own with speculators; here beside all else."""
    return config(**{name: value})


BOTH: dict[str, tuple[Change, type[ForetokenError], str]] = {
    "a tensor is missing": (without("fc.weight"), CheckpointError, "fc.weight is missing"),
    "the output layer is missing": (without("lm_head.weight"), CheckpointError, "lm_head.weight is missing"),
    "an output layer of no shape": (
        lambda raw, tensors: tensors.update({"lm_head.weight": torch.tensor(1.0)}),
        CheckpointError,
        "lm_head.weight has shape",
    ),
    "another kind": (config(speculators_model_type="peagle"), UnsupportedModelError, "of kind 'peagle'"),
    "a kind that is no name": (config(speculators_model_type=["eagle3"]), UnsupportedModelError, "of kind"),
    "another width": (sized("hidden_size", 96), CheckpointError, "hidden_size is 96"),
    "another vocabulary": (sized("vocab_size", 9000), CheckpointError, "vocab_size is 9000"),
    "states of another width": (config(target_hidden_size=96), UnsupportedModelError, "states of 96"),
    "too many tokens": (config(draft_vocab_size=10**6), CheckpointError, "draft_vocab_size"),
    "a switch that is none": (config(draft_vocab_size=[]), CheckpointError, "draft_vocab_size"),
    "another activation": (sized("hidden_act", "gelu"), UnsupportedModelError, "gelu"),
    "a type that is a list": (sized("num_hidden_layers", [1]), CheckpointError, "num_hidden_layers"),
    "layers without end": (sized("num_hidden_layers", 10**10), CheckpointError, "num_hidden_layers"),
    "layers with a window": (config(layer_types=["sliding_attention"]), UnsupportedModelError, "see all of a text"),
    "layers in chunks": (config(layer_types=["chunked_attention"]), UnsupportedModelError, "see all of a text"),
    "a window by a switch": (
        lambda raw, tensors: raw.update(
            model_type="qwen2", use_sliding_window=True, max_window_layers=0, sliding_window=8
        ),
        UnsupportedModelError,
        "see all of a text",
    ),
    "one tensor under two names": (
        lambda raw, tensors: tensors.update({"model.fc.weight": tensors["fc.weight"].clone()}),
        CheckpointError,
        "twice, under two names",
    ),
    "layers that make no sense": (config(transformer_layer_config=3), CheckpointError, "expected an object"),
    "quantised": (config(quantization_config={"quant_method": "fp8"}), UnsupportedModelError, "is quantised"),
    "a token twice": (
        lambda raw, tensors: tensors["d2t"].__setitem__(1, int(tensors["d2t"][0]) - 1),
        CheckpointError,
        "no list of tokens",
    ),
    "d2t is missing": (without("d2t"), CheckpointError, "and d2t, which says which, is missing"),
    "d2t of no dimension": (d2t(lambda t: t[0]), CheckpointError, "d2t is torch.int64"),
    "d2t of two": (d2t(lambda t: t[:, None]), CheckpointError, "d2t is torch.int64"),
    "d2t of broken numbers": (d2t(lambda t: t.float()), CheckpointError, "d2t is torch.float32"),
    "d2t too long": (d2t(lambda t: torch.cat((t, t))), CheckpointError, "d2t is torch.int64"),
    "d2t leads beyond": (d2t(lambda t: t + 10**6), CheckpointError, "d2t leads to token 100"),
    "d2t leads before": (d2t(lambda t: t - 10), CheckpointError, "d2t leads to token -10"),
    "NaN": (lambda raw, tensors: tensors["norm.weight"].fill_(float("nan")), CheckpointError, "norm.weight holds NaN"),
    "eight bits": (
        lambda raw, tensors: tensors.update({"fc.weight": tensors["fc.weight"].to(torch.float8_e4m3fn)}),
        UnsupportedModelError,
        "fc.weight is torch.float8_e4m3fn",
    ),
    "more than is known": (
        lambda raw, tensors: tensors.update({"fc.bias": torch.ones(2)}),
        UnsupportedModelError,
        "fc.bias",
    ),
}


def seen(layers: list[Any]) -> Change:
    return config(eagle_config={"eagle_aux_hidden_state_layer_ids": layers})


OF_EAGLE: dict[str, tuple[Change, type[ForetokenError], str]] = {
    "no numbers of layers": (seen(["a"]), CheckpointError, "numbers of layers"),
    "a number without end": (seen([10**300]), CheckpointError, "numbers of layers"),
    "layers that the model lacks": (seen([2, 9]), CheckpointError, "this one has 2"),
    "layers in no order": (seen([1, 0]), CheckpointError, "each once, in order"),
    "no layers named, of a small model": (config(eagle_config={}), CheckpointError, "does not say which layers"),
    "a part that is no object": (config(eagle_config=3), CheckpointError, "expected an object"),
    "a switch that is text": (config(norm_output="false"), CheckpointError, "expected true or false"),
    "two norms": (config(norm_before_fc=True, fc_norm=True), CheckpointError, "expected one of them"),
    "a switch that is not served": (config(parallel_drafting=True), UnsupportedModelError, "parallel_drafting"),
    "one state": (config(eagle_config={"use_aux_hidden_state": False}), UnsupportedModelError, "one state"),
}
OF_BLOCK: dict[str, tuple[Change, type[ForetokenError], str]] = {
    "no mask": (its(mask_token_id=None), CheckpointError, "mask_token_id is None"),
    "a mask beyond": (its(mask_token_id=10**6), CheckpointError, "fills places of token 1000000"),
    "no block": (config(block_size=None), CheckpointError, "block_size"),
    "a block of one": (config(block_size=1), CheckpointError, "block_size is 1"),
    "another number of layers": (config(num_target_layers=36), CheckpointError, "a model of 36 layers"),
    "no layers": (its(target_layer_ids=[]), CheckpointError, "does not say which layers"),
    "what the last layer puts out": (its(target_layer_ids=[0, 1]), UnsupportedModelError, "last layer"),
    "causal": (config(is_causal=True), UnsupportedModelError, "is_causal"),
    "a factor": (its(output_multiplier=2.0), UnsupportedModelError, "output_multiplier"),
    "the second version": (its(selector_rank=8), UnsupportedModelError, "selector_rank"),
}


def refuse(folder: Path, change: Change, error: type[ForetokenError], said: str) -> None:
    raw, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    change(raw, tensors)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(error, match=said) as refused:
        foretoken.load(TARGET, draft=str(folder), threads=1)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("case", BOTH)
def test_what_is_wrong_is_said_in_a_line(case: str, folder: Path) -> None:
    refuse(folder, *BOTH[case])


@eagles
@pytest.mark.parametrize("case", OF_EAGLE)
def test_what_is_wrong_with_an_eagle_is_said_in_a_line(case: str, folder: Path) -> None:
    refuse(folder, *OF_EAGLE[case])


@blocks
@pytest.mark.parametrize("case", OF_BLOCK)
def test_what_is_wrong_with_a_block_is_said_in_a_line(case: str, folder: Path) -> None:
    refuse(folder, *OF_BLOCK[case])


@eagles
def test_tokens_that_the_model_lacks_are_not_drafted(folder: Path) -> None:
    found = read_trained(folder)
    target = foretoken.load(TARGET, draft="none", threads=1).target
    beyond = replace(found, tensors={**found.tensors, VOCABULARY: found.tensors[VOCABULARY] + 10**6})
    with pytest.raises(CheckpointError, match="none of the tokens"):
        beyond.weights(target)
    some = replace(found, tensors={**found.tensors, VOCABULARY: found.tensors[VOCABULARY] + 4000})
    config, _ = some.weights(target)
    assert config.valid_vocab_size == int((found.tensors[VOCABULARY] + 4000 < 4096).sum()) < 100


@blocks
@pytest.mark.parametrize("options", [":tokens=9", ":k=2:depth=9", ":k=2:shape=best-first:least=0.3"])
def test_a_block_drafts_no_more_than_it_has_places(folder: Path, options: str) -> None:
    with pytest.raises(DraftSpecError, match=r"at most 5 tokens|drafts in one pass"):
        foretoken.load(TARGET, draft=f"{folder}{options}", threads=1)
    asked = foretoken.load(TARGET, draft=str(folder), num_speculative_tokens=40, threads=1, pace="fixed")
    assert asked.generate("def f(", max_new_tokens=12).stats.draft_tokens > 5


@blocks
def test_a_block_is_drafted_on_the_cpu_alone(folder: Path) -> None:
    settings = LoadSettings(draft=str(folder), device="cuda")
    (level,) = find_levels(name_levels(settings), EMBEDDED[TARGET])
    with pytest.raises(DraftSpecError, match="on the CPU alone"):
        level.expect_features(settings)
