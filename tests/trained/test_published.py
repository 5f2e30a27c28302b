"""Drafters of EAGLE-3 that others have trained: what they compute, and what is read from their files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
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
from foretoken.decoder.rows import chain
from foretoken.drafters.eagle import EagleDrafter, EagleTreeDrafter
from foretoken.drafters.filling import FillingDrafter
from foretoken.drafters.packing import pack, shared_with
from foretoken.errors import CheckpointError, ForetokenError, InputError, ModelNotFoundError, UnsupportedModelError
from foretoken.formats import FORMATS
from foretoken.protocol.types import Budget, Request
from foretoken.sampling.sampler import Sampler
from foretoken.trained.config import VOCABULARY
from foretoken.trained.files import expect_trained, is_trained, read_trained, read_trained_config, write_trained
from foretoken.trained.following import Before
from foretoken.trained.published import OWN_EMBEDDING, OWN_HEAD, PublishedConfig
from foretoken.trained.published_eagle import PublishedEagle
from tests.fakes import FarVerifier
from tests.published import filling_decoder, published_decoder, random_dflash, random_published, write_published
from tests.tiny import tiny_decoder
from tests.trained.conftest import TARGET, blocks, eagles
from tests.trained.published_defined import DefinedBlock, DefinedEagle
from tests.world import VOCABULARY as VOCABULARY_OF_WORLD
from tests.world import Run, World, make_world

NEAR = 0.1  # logits that differ by less may change places: beside its layers, the native engine rounds to bf16
PROMPT = "def add(one, other):\n    return one +"
EAGLES: dict[str, dict[str, Any]] = {
    "as published": {"residual_normed": False},
    "normed residual": {},
    "one norm of all that is seen": {"norms": "all"},
    "a norm of each state that is seen": {"norms": "each", "hands_on_normed": True},
    "two layers, norms of heads, biases": {
        "layers": 2,
        "qk_norm": True,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
    },
    "all tokens, an embedding of its own": {"are_all": True, "own_embedding": True},
}
BLOCKS: dict[str, dict[str, Any]] = {
    "with the model's output layer": {},
    "some tokens, norms of heads, two layers": {"reduced": True, "qk_norm": True, "layers": 2},
    "the last token says what follows it": {"from_last": True, "block": 3},
}


@pytest.fixture(scope="module")
def target() -> Decoder:
    return tiny_decoder(threads=1, arithmetic="pytorch", num_hidden_layers=3)


def engines(target: Decoder, arithmetic: str) -> tuple[Decoder, float]:
    """A decoder like a target, and how far from the definition it may be: beside layers, the native engine rounds to
    bf16."""
    made = Decoder(target.config, target.weights, threads=1, arithmetic=arithmetic)
    return made, 0.03 if made.arithmetic.startswith("native") else 1e-5


@pytest.mark.parametrize("arithmetic", ["pytorch", "auto"])
@pytest.mark.parametrize("variant", EAGLES)
def test_an_eagle_computes_what_its_authors_code_computes(target: Decoder, variant: str, arithmetic: str) -> None:
    other, close = engines(target, arithmetic)
    config, tensors = random_published(other, 5, 0.1, **dict(EAGLES[variant]))
    decoder = published_decoder(other, 5, 0.1, **dict(EAGLES[variant]))
    embedding = tensors.get(OWN_EMBEDDING, target.weights.embedding)
    listed = tensors.get(VOCABULARY, torch.arange(config.choices)).long()
    defined = DefinedEagle(config, tensors, embedding, tensors[OWN_HEAD])
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, target.config.valid_vocab_size, (15,), generator=generator).tolist()
    seen = {f"hidden.{at}": torch.randn((9, config.hidden_size), generator=generator) for at in config.sees}
    known, expected = decoder.reduced(seen), defined.reduced(list(seen.values()))
    torch.testing.assert_close(known, expected, rtol=close, atol=close)
    cache, states = decoder.new_cache(), list(expected)
    decoder.follow(cache, Before(list(known.numpy())))
    for stop in (5, 10, *range(11, 16)):  # two passes behind the model's states, then a draft token by token
        rows = chain(cache, tokens[1 + cache.length : stop])
        out = decoder.run(rows)
        cache.commit(range(len(rows)), rows.writer)
        logits, state = defined.rows(tokens[1:stop], states[: stop - 1])
        found = out.logits(len(rows) - 1)
        torch.testing.assert_close(found[listed], logits, rtol=close, atol=close * 5)
        assert found.isfinite().sum() == len(listed), "nothing else can be drafted"
        choice = out.choice(len(rows) - 1)
        place = (listed == choice).nonzero().flatten()
        assert len(place) == 1
        assert logits.max() - logits[place] < close * 10
        if stop >= 10:
            states.append(state)
    assert len(states) == 15


@pytest.mark.parametrize("arithmetic", ["pytorch", "auto"])
@pytest.mark.parametrize("variant", BLOCKS)
def test_a_block_computes_what_its_authors_code_computes(target: Decoder, variant: str, arithmetic: str) -> None:
    other, close = engines(target, arithmetic)
    config, tensors = random_dflash(other, 5, 0.1, **dict(BLOCKS[variant]))
    decoder = filling_decoder(other, 5, 0.1, **dict(BLOCKS[variant]))
    head = tensors.get(OWN_HEAD, other.weights.head.values)
    defined = DefinedBlock(config, tensors, target.weights.embedding, head)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, target.config.valid_vocab_size, (12,), generator=generator).tolist()
    seen = {f"hidden.{at}": torch.randn((11, config.hidden_size), generator=generator) for at in config.sees}
    listed = tensors.get(VOCABULARY, torch.arange(target.config.valid_vocab_size)).long()
    cache, both, vectors = decoder.new_cache(), [], decoder.reduced(seen)
    for stop, fewer in ((4, 0), (11, 0), (11, 1)):
        if cache.length < stop:
            decoder.fill(cache, tokens[cache.length : stop], vectors[cache.length : stop])
        rows = decoder.blocks([(cache, tokens[stop], config.drafts - fewer)], 1)
        assert len(rows) == config.block - fewer
        out = decoder.run(rows)
        found = torch.stack([out.logits(at)[listed] for at in range(len(rows))])
        expected = defined.block([each[:stop] for each in seen.values()], tokens[stop], len(rows))[:, : len(listed)]
        torch.testing.assert_close(found, expected, rtol=close, atol=close * 5)
        cache.discard()
        both.append(found[0])
    assert not torch.allclose(both[0], both[1]), "what the target has computed is seen"
    assert not torch.allclose(both[1], both[2]), "rows behind are seen"


class Told:
    """Notes the drafts of a drafter, with the sequence and the text before each."""

    def __init__(self, its: Any, prompts: Sequence[Sequence[int]]) -> None:
        self.texts = [list(prompt) for prompt in prompts]
        self.drafts: list[tuple[Any, ...]] = []
        self.shared = 0  # calls that drafted for several sequences
        self._propose, self._observe = its.propose, its.observe
        its.propose, its.observe = self.propose, self.observe

    def propose(self, turns: Any) -> Any:
        found = self._propose(turns)
        made = [draft for draft in found if draft.tokens]
        self.drafts += [(d.sequence, tuple(self.texts[d.sequence]), d.tokens, d.parents) for d in made]
        self.shared += len(made) > 1
        return found

    def observe(self, verdicts: Any) -> Any:
        for verdict in verdicts:
            self.texts[verdict.sequence] += verdict.tokens
        return self._observe(verdicts)


def drafted(world: World, drafter: Any, budget: Budget, **more: Any) -> list[tuple[Any, ...]]:
    """What a drafter proposes while an engine generates two texts at once."""
    plains = world.plains[:2]
    told = Told(drafter, [plain.prompt for plain in plains])
    requests = [
        Request(sequence=at, prompt=plain.prompt, max_new_tokens=12, keep_logits=True)
        for at, plain in enumerate(plains)
    ]
    run = Run(world.target, drafter, requests, budgets=(budget,), prefill_chunk=5, **more)
    assert all(run.sequences[at].tokens == plain.tokens[:12] for at, plain in enumerate(plains))
    assert len(told.drafts) > 3
    assert told.shared > 1
    return told.drafts


def inputs_of(target: Decoder, text: Sequence[int], layers: Sequence[int]) -> list[torch.Tensor]:
    rows = chain(target.new_cache(), list(text))
    taps = target.check(rows, [range(len(text) - 1, len(text))], layers).taps
    return [taps[layer].float() for layer in layers]


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("shape", [None, "best-first"])
def test_in_an_engine_an_eagle_drafts_what_the_definition_drafts(shape: str | None, ahead: int) -> None:
    world = make_world()
    switches: dict[str, Any] = {"residual_normed": False, "sees": (0, 1, 3)}
    config, tensors = random_published(world.target, 3, 0.3, **switches)
    model = published_decoder(world.target, 3, 0.3, **switches)
    common: dict[str, Any] = {"name": "it", "vocab_size": VOCABULARY_OF_WORLD, "model": model, "samplers": Sampler}
    drafter = EagleDrafter(**common) if shape is None else EagleTreeDrafter(shape=shape, sharpness=1.0, **common)
    defined = DefinedEagle(config, tensors, world.target.weights.embedding, tensors[OWN_HEAD])
    wrap = FarVerifier if ahead else None
    drafts = drafted(world, drafter, Budget(4, 4) if shape is None else Budget(6, 3, 2), wrap=wrap, ahead=ahead)
    compared = 0
    for _, text, tokens, parents in drafts:
        states = list(defined.reduced(inputs_of(world.target, text[:-1], config.sees)))
        paths: dict[int, list[int]] = {-1: []}
        for at, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            paths[at] = [*paths[parent], token]
        for parent in {*parents}:
            own, path = list(states), paths[parent]
            for length in range(len(path) + 1):
                logits, state = defined.rows([*text[1:], *path[:length]], own)
                own.append(state)
            children = [token for token, above in zip(tokens, parents, strict=True) if above == parent]
            row = dict(zip(tensors[VOCABULARY].tolist(), logits.tolist(), strict=True))
            compared += len(children)
            likeliest = sorted(row.values())[-len(children)]
            assert all(row[token] >= likeliest - NEAR for token in children), "behind the states of the text, and own"
    assert compared > 12


@pytest.mark.parametrize("shape", ["beam", "best-first"])
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("variant", BLOCKS)
def test_in_an_engine_a_block_drafts_what_the_definition_drafts(variant: str, width: int, shape: str) -> None:
    world = make_world()
    sizes: dict[str, Any] = {"sees": (0, 1, 2), **BLOCKS[variant]}
    config, tensors = random_dflash(world.target, 3, 0.3, **dict(sizes))
    drafter = FillingDrafter(
        model=filling_decoder(world.target, 3, 0.3, **dict(sizes)),
        samplers=Sampler,
        name="it",
        vocab_size=VOCABULARY_OF_WORLD,
        shape=shape,
        sharpness=1.0,
        pauses=True,
    )
    listed = tensors.get(VOCABULARY, torch.arange(VOCABULARY_OF_WORLD)).tolist()
    head = tensors.get(OWN_HEAD, world.target.weights.head.values)
    defined = DefinedBlock(config, tensors, world.target.weights.embedding, head)
    first = 0 if config.from_last else 1
    for sequence, text, tokens, parents in drafted(world, drafter, Budget(4 * width, 4, width)):
        depths = {-1: 0}
        for at, parent in enumerate(parents):
            depths[at] = depths[parent] + 1
        end = len(world.plains[sequence].prompt) + 12
        count = min(4, config.drafts, end - len(text) - 1)  # the last token of a text is the model's own
        logits = defined.block(inputs_of(world.target, text[:-1], config.sees), text[-1], count + first)
        assert float(logits.std()) > 10 * NEAR
        for at, token in enumerate(tokens):
            row = dict(zip(listed, logits[depths[at] - 1 + first].tolist(), strict=False))
            assert row[token] >= sorted(row.values())[-width] - NEAR, "the row of a place says what it holds"


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
