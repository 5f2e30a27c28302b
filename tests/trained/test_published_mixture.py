"""A Mixture of Attentions that others have trained computes and drafts what its authors' code does."""

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
from foretoken.decoder.caches import Caches
from foretoken.decoder.config import read_config
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.drafters.crossing import CrossingDrafter, CrossingTreeDrafter
from foretoken.drafters.ladder import find_levels, name_levels
from foretoken.drafters.packing import pack
from foretoken.errors import CheckpointError, ContractError, DraftSpecError, ForetokenError, UnsupportedModelError
from foretoken.protocol.types import Budget
from foretoken.sampling.sampler import Sampler
from foretoken.settings.load import LoadSettings
from foretoken.trained.files import expect_trained, expected_shapes, is_trained, read_trained, read_trained_config
from foretoken.trained.observer import FEATURE
from foretoken.trained.published_mixture import PublishedMixture, mixture_from, stored_name
from tests.published_mixture import (
    LAYOUTS,
    crossing_and_observer,
    random_published_mixture,
    write_published_mixture,
)
from tests.trained.conftest import TARGET
from tests.trained.published_defined import DefinedMixture
from tests.trained.test_published import NEAR, drafted
from tests.world import VOCABULARY, make_world

PROMPT = "def add(one, other):\n    return one +"
# as the authors' code names and sizes them for Llama 3 8B, by its configuration of training
AS_PUBLISHED = {
    "self_attention": (4096, 4096, 512, 6144),
    "cross_attention": (4096, 4096, 512, 6144),
    "layer_self_attention": (2048, 2048, 512, 3072),
}


@pytest.fixture(params=LAYOUTS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A drafter for TARGET."""
    target = foretoken.load(TARGET, draft="none", threads=1).target
    its = random_published_mixture(target, 1)
    write_published_mixture(tmp_path / "it", *its, target.config.vocab_size, request.param)
    return tmp_path / "it"


def defined_for(target: Decoder, seed: int, scale: float) -> DefinedMixture:
    its = random_published_mixture(target, seed, scale)
    return DefinedMixture(*its, target.weights.embedding, target.weights.head.values)


def keys_and_values(target: Decoder, text: list[int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    cache = target.new_cache()
    rows = chain(cache, text)
    target.forward(rows)
    cache.commit(range(len(text)), rows.writer)
    both = [cache.read(layer) for layer in range(target.config.num_layers)]
    return [key[: len(text)].float() for key, _ in both], [value[: len(text)].float() for _, value in both]


@pytest.mark.parametrize("arithmetic", ["pytorch", "auto"])
def test_it_computes_what_its_authors_code_computes(target: Decoder, arithmetic: str) -> None:
    """Also where the first rows of a draft are committed: they are seen by the first layer, and not by the second."""
    other = Decoder(target.config, target.weights, threads=1, arithmetic=arithmetic)
    model, observer = crossing_and_observer(other, 5, 0.1)
    defined = defined_for(other, 5, 0.1)
    tokens = torch.randint(0, target.config.valid_vocab_size, (14,), generator=torch.Generator().manual_seed(2))
    text, stop = tokens.tolist(), 9
    theirs, cache = other.new_cache(), model.new_cache()
    rows = chain(theirs, text[:stop])
    other.forward(rows)
    theirs.commit(range(stop), rows.writer)
    vectors = observer.projected(observer(theirs, 0, stop)[FEATURE])
    expected = defined.observed(*keys_and_values(other, text[:stop]))
    torch.testing.assert_close(vectors, expected, rtol=0.03, atol=0.03)  # the observer rounds to bf16
    rows = chain(cache, text[:stop])
    (segment,) = rows.segments
    for layer, states in ((0, model.embed(text[:stop])), (1, vectors)):
        cache.write(layer, segment.slots, *model.keys_and_values(layer, states, range(stop)), rows.writer)
    cache.commit(segment.slots, rows.writer)
    model.see(cache, stop)
    logits = []
    for at in range(stop, len(text)):
        rows = chain(cache, [text[at]])
        out = model.run(rows)
        cache.commit(range(1), rows.writer)
        logits.append(out.logits(0).clone())
        torch.testing.assert_close(logits[-1], defined.row(vectors, text[: at + 1]), rtol=0.03, atol=0.05)
        assert out.choice(0) == int(logits[-1].argmax())
    assert rows.cost.flops > 0
    cache.truncate(stop)
    at_once = model.run(chain(cache, text[stop:]))
    for at, each in enumerate(logits):
        assert torch.equal(at_once.logits(at), each), "however many rows a pass has"


def test_rows_see_what_they_are_told(target: Decoder) -> None:
    model, _ = crossing_and_observer(target)
    cache = model.new_cache()
    rows = chain(cache, [1, 2, 3])
    assert rows.seeing([2]).sees == [1, 1, 1]
    assert rows.sees == [0, 1, 2]
    for count in (0, 4):
        with pytest.raises(ContractError, match="positions of a cache"):
            rows.seeing([count])
    assert model.forward(rows).isfinite().all(), "nothing was observed yet"


@pytest.mark.parametrize("arithmetic", ["pytorch", "auto"])
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("shape", [None, "best-first"])
def test_in_an_engine_it_drafts_what_the_definition_drafts(shape: str | None, beside: bool, arithmetic: str) -> None:
    world = make_world(arithmetic=arithmetic)
    model, observer = crossing_and_observer(world.target, 3, 0.3)
    caches = Caches()
    common: dict[str, Any] = {"name": "it", "vocab_size": VOCABULARY, "model": model, "samplers": Sampler}
    common |= {"observer": observer, "beside": caches if beside else None}
    drafter = CrossingDrafter(**common) if shape is None else CrossingTreeDrafter(shape=shape, sharpness=1.0, **common)
    defined = defined_for(world.target, 3, 0.3)
    compared = 0
    budget = Budget(4, 4) if shape is None else Budget(6, 3, 2)
    for _, text, tokens, parents in drafted(world, drafter, budget, caches=caches):
        vectors = defined.observed(*keys_and_values(world.target, [*text[:-1]]))
        paths: dict[int, list[int]] = {-1: []}
        for at, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            paths[at] = [*paths[parent], token]
        for parent in {*parents}:
            row = defined.row(vectors, [*text, *paths[parent]]).tolist()
            children = [token for token, above in zip(tokens, parents, strict=True) if above == parent]
            likeliest = sorted(row)[-len(children)]
            assert all(row[token] >= likeliest - NEAR for token in children)
            compared += len(children)
    assert compared > 12


@pytest.mark.parametrize("options", ["", ":tokens=3:format=bf16", ":k=3:depth=4:format=int4", ",lookup"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_no_token_changes(folder: Path, options: str, temperature: float) -> None:
    settings: dict[str, Any] = {"max_new_tokens": 32, "ignore_eos": True, "temperature": temperature, "seed": 3}
    plain = foretoken.load(TARGET, draft="none", threads=1)
    with_it = foretoken.load(TARGET, draft=f"{folder}{options}", threads=1, pace="fixed")
    for prompt in (PROMPT, plain.tokenizer.encode(PROMPT)[:1]):  # behind one token nothing was observed yet
        found = with_it.generate(prompt, **settings)
        assert found.tokens == plain.generate(prompt, **settings).tokens
        assert found.stats.draft_tokens > 20


@pytest.mark.parametrize("options", [":tokens=4", ":k=3:depth=3"])
@pytest.mark.parametrize("folder", ["vllm"], indirect=True)
def test_it_drafts_while_the_models_layers_come_from_the_disk(folder: Path, options: str) -> None:
    plain = foretoken.load(TARGET, draft="none", threads=1)
    model = foretoken.load(TARGET, draft=f"{folder}{options}", stream_layers="all", pace="fixed", threads=1)
    assert model.target.home == "copied and streamed"
    its, right = (each.generate(PROMPT, max_new_tokens=24, ignore_eos=True) for each in (model, plain))
    assert its.tokens == right.tokens
    assert its.stats.draft_tokens > 10


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_of_both_layouts_are_read(target: Decoder, layout: str, tmp_path: Path) -> None:
    config, tensors = random_published_mixture(target)
    write_published_mixture(tmp_path / "it", config, tensors, target.config.vocab_size, layout)
    found = read_trained(tmp_path / "it")
    assert isinstance(found.config, PublishedMixture)
    assert replace(found.config, own=config.own) == config
    for name in ("hidden_size", "num_heads", "num_kv_heads", "head_dim", "norm_eps", "num_layers", "vocab_size"):
        assert getattr(found.config.own, name) == getattr(config.own, name), name
    assert found.config.own.intermediate_sizes == config.own.intermediate_sizes
    assert found.config.own.rope.theta == config.own.rope.theta == found.config.observer_theta
    assert found.config.of_target(target.config).layers == tuple(range(target.config.num_layers))
    assert found.tensors.keys() == tensors.keys()
    assert all(torch.equal(found.tensors[name].float(), tensor) for name, tensor in tensors.items())


def test_names_and_sizes_are_those_of_the_published_one(tmp_path: Path) -> None:
    """For Llama 3 8B. Its tensors are made of one number each, so that the file is small."""
    expected = {"Ekv2E.weight": (4096, 2048), "Ekv2E.bias": (4096,)}
    for part, (width, queries, keys, inner) in AS_PUBLISHED.items():
        shapes = {
            "self_attn.q_proj": (queries, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, queries),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
        }
        expected |= {f"{part}.{name}.weight": shape for name, shape in shapes.items()}
    header = {name: torch.empty(shape, dtype=torch.bfloat16, device="meta") for name, shape in expected.items()}
    raw = {"hidden_size": 4096, "num_attention_heads": 32, "rope_theta": 500000.0, "vocab_size": 128256}
    raw |= {"model_type": "moa_spec", "architectures": ["MOASpecModel"], "rms_norm_eps": 1e-5}
    folder = tmp_path / "it"
    folder.mkdir()
    write_sparse(folder / "model.safetensors", header)
    its = mixture_from(folder, raw)
    assert {stored_name(name): shape for name, shape in expected_shapes(its).items()} == expected
    assert (its.kv_heads, its.target_kv_heads, its.observer_kv_heads, its.head_dim) == (4, 8, 8, 128)
    assert its.observed == 2048
    llama = replace(its.own, num_layers=32, num_kv_heads=8, tied=False)
    its.expect_suits(llama, "it")
    assert its.of_target(llama).layers == tuple(range(32))
    assert its.decoder(llama).intermediate_sizes == (6144, 6144)


def write_sparse(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A file of safetensors of such shapes, with a hole in place of the numbers."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + 2 * tensor.numel()]}
        at += 2 * tensor.numel()
    text = json.dumps(header).encode()
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.truncate(8 + len(text) + at)


Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]


def with_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Change:
    def changed(raw: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        made = change(tensors.pop(name)) if name in tensors else change(torch.ones(2))
        if made is not None:
            tensors[name] = made.contiguous()

    return changed


def config(**values: Any) -> Change:
    return lambda raw, tensors: raw.update(values)


def without_observer(raw: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if name.startswith(("layer_self_attention", "Ekv2E"))]:
        del tensors[name]


_KEYS, _UP = "cross_attention.self_attn.k_proj.weight", "self_attention.mlp.up_proj.weight"
WRONG: dict[str, tuple[Change, type[ForetokenError], str]] = {
    "a matrix is missing": (with_tensor(_UP, lambda t: None), CheckpointError, f"{_UP} is missing"),
    "a norm is missing": (
        with_tensor("cross_attention.input_layernorm.weight", lambda t: None),
        CheckpointError,
        "cross_attention.input_layernorm.weight is missing",
    ),
    "a matrix of no shape": (with_tensor(_UP, lambda t: t[0, 0]), CheckpointError, "expected a matrix"),
    "a matrix without rows": (with_tensor(_UP, lambda t: t[:0]), CheckpointError, "expected a matrix"),
    "a matrix of another width": (
        with_tensor("self_attention.mlp.down_proj.weight", lambda t: t[:, 1:]),
        CheckpointError,
        "self_attention.mlp.down_proj.weight is torch.bfloat16",
    ),
    "layers with other keys": (
        with_tensor(_KEYS, lambda t: torch.cat((t, t))),
        UnsupportedModelError,
        "numbers of keys",
    ),
    "another number of heads": (config(num_attention_heads=2), CheckpointError, "number of heads is 2"),
    "heads that do not go with the shapes": (config(num_attention_heads=3), CheckpointError, "with 3 heads of 64"),
    "heads of another width": (config(head_dim=16), CheckpointError, "head_dim is 16"),
    "an observer of another width": (
        with_tensor("layer_self_attention.self_attn.q_proj.weight", lambda t: t[:-1]),
        CheckpointError,
        "do not go with",
    ),
    "no attention over layers": (without_observer, UnsupportedModelError, "has no attention over layers"),
    "biases": (
        with_tensor("self_attention.self_attn.q_proj.bias", lambda t: t),
        UnsupportedModelError,
        "self_attention.self_attn.q_proj.bias",
    ),
    "norms of heads": (
        with_tensor("self_attention.self_attn.q_norm.weight", lambda t: t),
        UnsupportedModelError,
        "self_attention.self_attn.q_norm.weight",
    ),
    "more of the projection": (with_tensor("Ekv2E.more.weight", lambda t: t), UnsupportedModelError, "Ekv2E.more"),
    "more than is known": (with_tensor("token_map", lambda t: t), UnsupportedModelError, "token_map"),
    "a tensor under two names": (
        lambda raw, tensors: tensors.update({f"model.{_UP}": tensors[_UP].clone()}),
        CheckpointError,
        "twice, under two names",
    ),
    "eight bits": (
        with_tensor(_UP, lambda t: t.to(torch.float8_e4m3fn)),
        UnsupportedModelError,
        f"{_UP} is torch.float8_e4m3fn",
    ),
    "NaN": (with_tensor(_UP, lambda t: t.fill_(float("nan"))), CheckpointError, f"{_UP} holds NaN"),
    "quantised": (config(quantization_config={"quant_method": "fp8"}), UnsupportedModelError, "is quantised"),
    "positions that are stretched": (
        config(rope_scaling={"rope_type": "linear", "factor": 2.0}),
        UnsupportedModelError,
        "positions of the type linear",
    ),
    "another vocabulary": (config(vocab_size=9000), CheckpointError, "vocab_size is 9000"),
    "a width that is text": (config(hidden_size="wide"), CheckpointError, "hidden_size"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("folder", ["vllm"], indirect=True)
def test_what_is_wrong_is_said_in_a_line(case: str, folder: Path) -> None:
    change, error, said = WRONG[case]
    raw, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    change(raw, tensors)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(error, match=said) as refused:
        foretoken.load(TARGET, draft=str(folder), threads=1)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_it_is_refused_for_models_of_other_sizes(folder: Path) -> None:
    its, _ = read_trained_config(folder)
    assert isinstance(its, PublishedMixture)
    right = read_config(EMBEDDED[TARGET])
    its.expect_suits(right, "it")
    for name, said in (("hidden_size", "hidden_size"), ("num_heads", "heads"), ("num_kv_heads", "key heads")):
        with pytest.raises(CheckpointError, match=said):
            its.expect_suits(replace(right, **{name: 2 * getattr(right, name)}), "it")
    with pytest.raises(CheckpointError, match="was trained for a model whose"):
        foretoken.load("stdlib-7m", draft=str(folder), threads=1)


def test_it_is_none_of_ours(folder: Path, tmp_path: Path) -> None:
    assert is_trained(folder)
    with pytest.raises(ForetokenError, match="foretoken train"):
        expect_trained(folder)
    with pytest.raises(CheckpointError, match="cannot draft on a client yet"):
        pack(EMBEDDED[TARGET], folder, tmp_path / "packed")
    with pytest.raises(UnsupportedModelError, match="give it to --draft"):
        read_config(folder)
    with pytest.raises(UnsupportedModelError, match="is not written anew"):
        read_trained_config(folder)[0].to_json()
    (level,) = find_levels(name_levels(LoadSettings(draft=str(folder), device="cuda")), EMBEDDED[TARGET])
    with pytest.raises(DraftSpecError, match="on the CPU alone"):
        level.expect_features(LoadSettings(draft=str(folder), device="cuda"))
