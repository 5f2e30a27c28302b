"""Drafters that others have trained: what is read from their files, and that a model writes the same text with one."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import foretoken
from foretoken.common.source import EMBEDDED, EMBEDDED_DRAFTERS
from foretoken.copies.quantise import plan, write
from foretoken.decoder.config import parse_config, read_config
from foretoken.decoder.decoder import Decoder
from foretoken.drafters.packing import pack, shared_with
from foretoken.errors import CheckpointError, ForetokenError, InputError, ModelNotFoundError, UnsupportedModelError
from foretoken.formats import FORMATS
from foretoken.trained.files import expect_trained, is_trained, read_trained, read_trained_config, write_trained
from foretoken.trained.published import PublishedConfig
from foretoken.trained.published_eagle import PublishedEagle
from tests.published import (
    BLOCKS,
    EAGLES,
    random_dflash,
    random_published,
    write_published,
)
from tests.trained.conftest import TARGET, blocks, eagles

PROMPT = "def add(one, other):\n    return one +"


def written(target: Decoder, variant: str, place: Path, layout: str) -> tuple[PublishedConfig, dict[str, torch.Tensor]]:
    """A drafter of a variant, in a folder."""
    make, variants = (random_published, EAGLES) if variant in EAGLES else (random_dflash, BLOCKS)
    sees: dict[str, Any] = {"sees": (0, 2) if variant in EAGLES else (1, 2)}
    config, tensors = make(target, 0, 0.02, **sees, **dict(variants[variant]))
    write_published(place, config, tensors, target.config.vocab_size, layout)
    return config, tensors


@pytest.mark.parametrize("layout", ["sglang", "speculators", "authors'"])
@pytest.mark.parametrize("variant", [*EAGLES, *BLOCKS])
def test_files_of_all_layouts_are_read(target: Decoder, variant: str, layout: str, tmp_path: Path) -> None:
    config, tensors = written(target, variant, tmp_path / "it", layout)
    found = read_trained(tmp_path / "it")
    read = found.config
    assert isinstance(read, PublishedConfig)
    apart = ("own", "by_outputs")
    for field in fields(read):
        if field.name not in apart:
            assert getattr(read, field.name) == getattr(config, field.name), field.name
    for name in ("num_heads", "num_kv_heads", "norm_eps", "num_layers", "wide"):
        assert getattr(read.own, name) == getattr(config.own, name), name
    for name in ("qk_norm", "qkv_bias", "output_bias", "mlp_bias"):
        assert getattr(read.own, name) == getattr(config.own, name), name
    assert read.own.rope.theta == config.own.rope.theta
    assert found.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(found.tensors[name].float(), tensor.float(), rtol=0, atol=0)


def test_what_speculators_leaves_out_is_as_in_transformers(target: Decoder, tmp_path: Path) -> None:
    from transformers import AutoConfig

    written(target, "as published", tmp_path / "it", "speculators")
    path = tmp_path / "it" / "config.json"
    for kind in ("llama", "qwen3"):
        raw = json.loads(path.read_text())
        raw["transformer_layer_config"] = {"model_type": kind}
        path.write_text(json.dumps(raw))
        found, _ = read_trained_config(tmp_path / "it")
        assert isinstance(found, PublishedConfig)
        theirs = parse_config({**AutoConfig.for_model(kind).to_dict(), "model_type": kind, "layer_types": None})
        for name in ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"):
            assert getattr(found.own, name) == getattr(theirs, name), (kind, name)
        for name in ("norm_eps", "rope", "vocab_size", "context_length"):
            assert getattr(found.own, name) == getattr(theirs, name), (kind, name)


def test_a_drafter_in_shards_with_other_names_is_the_same(folder: Path) -> None:
    before = read_trained(folder)
    stored = {f"model.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    shards = {"a.safetensors": list(stored)[::2], "b.safetensors": list(stored)[1::2]}
    for file, names in shards.items():
        save_file({name: stored[name] for name in names}, folder / file)
    places = {name: file for file, names in shards.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    after = read_trained(folder)
    assert all(torch.equal(before.tensors[name], after.tensors[name]) for name in before.tensors)
    assert foretoken.load(TARGET, draft=str(folder), threads=1).generate(PROMPT, max_new_tokens=4).tokens


@pytest.mark.parametrize("options", ["", ":tokens=3:format=bf16", ":k=3:depth=4:format=int4"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_no_token_changes(folder: Path, options: str, temperature: float) -> None:
    settings: dict[str, Any] = {"max_new_tokens": 32, "ignore_eos": True, "temperature": temperature, "seed": 3}
    plain = foretoken.load(TARGET, draft="none", threads=1)
    with_it = foretoken.load(TARGET, draft=f"{folder}{options}", threads=1, pace="fixed")
    for prompt in (PROMPT, plain.tokenizer.encode(PROMPT)[:1]):  # behind one token EAGLE has no row to draft with
        found = with_it.generate(prompt, **settings)
        assert found.tokens == plain.generate(prompt, **settings).tokens
        assert found.stats.draft_tokens > 20


def test_the_target_may_be_low_bit_itself(folder: Path, tmp_path: Path) -> None:
    write(plan(EMBEDDED[TARGET], tmp_path / "low", FORMATS["int8"]))
    plain = foretoken.load(tmp_path / "low", draft="none", threads=1).generate(PROMPT, max_new_tokens=16)
    found = foretoken.load(tmp_path / "low", draft=str(folder), threads=1, pace="fixed")
    its = found.generate(PROMPT, max_new_tokens=16)
    assert its.tokens == plain.tokens
    assert its.stats.draft_tokens > 10


def test_the_layers_that_are_seen_are_said(folder: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        foretoken.load(TARGET, draft=str(folder), threads=1)
    seen = "0, 2" if kind == "eagle3" else "1"
    assert f"a published {kind}, which sees the model before layers {seen}" in caplog.text


@pytest.mark.parametrize("options", ["", ":format=bf16"])
def test_the_models_own_weights_stay_what_they_are(tmp_path: Path, options: str) -> None:
    """Where a drafter has an embedding of its own, and the model's output layer, which is tied to the model's."""
    model = foretoken.load(TARGET, draft="none", threads=1)
    its = random_published(model.target, 1, sees=(0, 2), own_head=False, are_all=True, own_embedding=True)
    write_published(tmp_path / "it", *its, model.target.config.vocab_size, "sglang")
    for weights in ("mapped", "copied"):
        drafted = foretoken.load(TARGET, draft=f"{tmp_path / 'it'}{options}", threads=1, weights=weights, pace="fixed")
        assert torch.equal(drafted.target.weights.embedding, model.target.weights.embedding)
        settings: dict[str, Any] = {"max_new_tokens": 16, "ignore_eos": True}
        found = drafted.generate(PROMPT, **settings)
        assert found.tokens == model.generate(PROMPT, **settings).tokens
        assert found.stats.draft_tokens > 10


@blocks
def test_a_block_is_drafted_in_one_pass_and_shares_the_models_output_layer(tmp_path: Path, kind: str) -> None:
    target = foretoken.load("stdlib-7m", draft="none").target
    its = random_dflash(target, 1, sees=(1, 3))
    write_published(tmp_path / "it", *its, target.config.vocab_size, "authors'")
    model = foretoken.load("stdlib-7m", draft=str(tmp_path / "it"), pace="fixed")
    stats = model.generate(PROMPT, max_new_tokens=24, ignore_eos=True).stats
    (level,) = [level for level in stats.levels if level.name != "target"]
    assert level.passes == level.drafts
    assert level.draft_tokens > 3 * level.drafts
    assert level.accepted_tokens > 0


def test_tokens_in_any_order_are_the_same_drafter(folder: Path) -> None:
    before = read_trained(folder)
    stored = load_file(folder / "model.safetensors")
    tokens = stored["d2t"] + torch.arange(len(stored["d2t"]))
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(1))
    stored["d2t"] = tokens[order] - torch.arange(len(tokens))
    stored["lm_head.weight"] = stored["lm_head.weight"][order]
    save_file(stored, folder / "model.safetensors")
    after = read_trained(folder)
    assert all(torch.equal(before.tensors[name], after.tensors[name]) for name in before.tensors)


@pytest.mark.parametrize(
    ("layout", "given", "layers", "sees"),
    [
        ("sglang", None, 32, (2, 16, 29)),
        ("sglang", [1, 15, 28], 32, (2, 16, 29)),
        ("sglang", [2, 16, 29], 32, (2, 16, 29)),
        ("sglang", [3, 15, 27], 32, (4, 16, 28)),
        ("sglang", [24, 30, 36], 36, (24, 30, 36)),
        ("speculators", [1, 15, 28], 32, (2, 16, 29)),
        ("speculators", [2, 16, 29], 32, (2, 16, 29)),
        ("speculators", [1, 13, 27, 28], 28, (1, 13, 27, 28)),
        ("sglang", [0, 14, 27], 32, (1, 15, 28)),
    ],
)
def test_layers_are_numbered_by_inputs_or_by_outputs(
    target: Decoder, layout: str, given: list[int] | None, layers: int, sees: tuple[int, ...], tmp_path: Path
) -> None:
    written(target, "as published", tmp_path / "it", layout)
    raw = json.loads((tmp_path / "it" / "config.json").read_text())
    raw.pop("eagle_config", None)
    raw["eagle_aux_hidden_state_layer_ids"] = given
    (tmp_path / "it" / "config.json").write_text(json.dumps(raw))
    found, _ = read_trained_config(tmp_path / "it")
    assert isinstance(found, PublishedEagle)
    its = found.of_target(replace(target.config, num_layers=layers))
    assert its.sees == sees
    assert its.of_target(replace(target.config, num_layers=layers)) == its, "named once and for all"


@eagles
def test_pickles_are_not_read_and_how_to_convert_them_is_said(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match="hf download"):
        foretoken.load(TARGET, draft=str(folder), threads=1)
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(ModelNotFoundError, match="weights_only=True") as refused:
        foretoken.load(TARGET, draft=str(folder), threads=1)
    torch.save({"fc.weight": torch.ones(2, 2)}, folder / "pytorch_model.bin")
    code = str(refused.value).partition('python -c "')[2].rpartition('"')[0]
    assert code
    subprocess.run([sys.executable, "-c", code], check=True)
    assert load_file(folder / "model.safetensors")["fc.weight"].shape == (2, 2)


def test_it_is_a_trained_drafter_but_none_of_ours(folder: Path) -> None:
    assert is_trained(folder)
    assert not is_trained(EMBEDDED[TARGET])
    with pytest.raises(ForetokenError, match="foretoken train"):
        expect_trained(folder)
    with pytest.raises(CheckpointError, match="cannot draft on a client yet"):
        shared_with(folder)
    with pytest.raises(UnsupportedModelError, match="give it to --draft"):
        read_config(folder)
    with pytest.raises(CheckpointError, match="cannot draft on a client yet"):
        pack(EMBEDDED[TARGET], folder, folder.with_name("packed"))
    before = (folder / "config.json").read_bytes()
    with pytest.raises(InputError, match="is there, and holds no trained drafter of ours"):
        write_trained(folder, read_trained_config(EMBEDDED_DRAFTERS["moa"])[0], {})
    assert (folder / "config.json").read_bytes() == before
    with pytest.raises(ForetokenError, match="cannot speed it up"):
        foretoken.load(TARGET, draft=f"{folder},lookup", threads=1)
