"""Drafters of EAGLE-3 that others have trained: what they compute, and what is read from their files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear, scaled_dot_product_attention, silu

import foretoken
from foretoken.common.source import EMBEDDED
from foretoken.decoder.config import read_config
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.drafters.packing import shared_with
from foretoken.errors import CheckpointError, ForetokenError, ModelNotFoundError, UnsupportedModelError
from foretoken.trained.config import VOCABULARY
from foretoken.trained.files import expect_trained, is_trained, read_trained, read_trained_config
from foretoken.trained.following import Before
from foretoken.trained.published import PublishedConfig
from tests.published import published_decoder, random_published, write_published
from tests.tiny import tiny_decoder

TARGET = "stdlib-1m"
PROMPT = "def add(one, other):\n    return one +"
VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {"residual_normed": False},
    "normed residual": {},
    "one norm of all that is seen": {"norms": "all"},
    "a norm of each state that is seen": {"norms": "each", "hands_on_normed": True},
    "two layers, norms of heads, biases": {"layers": 2, "qk_norm": True, "qkv_bias": True, "output_bias": True},
}


@pytest.fixture(scope="module")
def target() -> Decoder:
    return tiny_decoder(threads=1, arithmetic="pytorch", num_hidden_layers=3)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class Defined:
    """The network as its authors' code defines it, over all rows at once. Nothing is kept, so nothing can be stale."""

    def __init__(self, config: PublishedConfig, tensors: dict[str, torch.Tensor], embedding: torch.Tensor) -> None:
        self.c, self.own, self.t, self.embedding = config, config.own, tensors, embedding

    def reduced(self, seen: Sequence[torch.Tensor]) -> torch.Tensor:
        eps, states = self.own.norm_eps, list(seen)
        if self.c.norms == "each":
            states = [norm(each, self.t[f"seen{at}.weight"], eps) for at, each in enumerate(states)]
        both = torch.cat(states, dim=-1)
        return linear(norm(both, self.t["seen.weight"], eps) if self.c.norms == "all" else both, self.reduction)

    @property
    def reduction(self) -> torch.Tensor:
        return self.t["reduction.weight"]

    def rows(self, tokens: Sequence[int], states: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of what can be drafted, and the state that is handed on, of the last of some rows. states: of each,
        the one before it."""
        eps = self.own.norm_eps
        embedded = norm(self.embedding[list(tokens)].float(), self.t["embedded_norm.weight"], eps)
        normed = norm(torch.stack(list(states)), self.t["seen_norm.weight"], eps)
        x = normed if self.c.residual_normed else torch.stack(list(states))
        for at in range(self.own.num_layers):
            part = {name.removeprefix(f"layers.{at}."): t for name, t in self.t.items() if name.startswith("layers.")}
            enters = torch.cat((embedded, normed), -1) if at == 0 else norm(x, part["input_layernorm.weight"], eps)
            x = x + self.attention(part, enters)
            h = norm(x, part["post_attention_layernorm.weight"], eps)
            gate, up = (linear(h, part[f"mlp.{which}_proj.weight"]) for which in ("gate", "up"))
            x = x + linear(silu(gate) * up, part["mlp.down_proj.weight"])
        put_out = norm(x[-1], self.t["norm.weight"], eps)
        return linear(put_out, self.t["head.weight"]), put_out if self.c.hands_on_normed else x[-1]

    def attention(self, part: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        def heads(which: str, count: int) -> torch.Tensor:
            bias = part.get(f"self_attn.{which}_proj.bias")
            made = linear(x, part[f"self_attn.{which}_proj.weight"], bias).view(len(x), count, self.own.head_dim)
            by_head = part.get(f"self_attn.{which}_norm.weight")
            return made if by_head is None else norm(made, by_head, self.own.norm_eps)

        def turned(made: torch.Tensor) -> torch.Tensor:
            half = self.own.head_dim // 2
            angles = torch.arange(len(x))[:, None] * self.own.rope.theta ** (-torch.arange(half) / half)
            cos, sin = angles.cos()[:, None], angles.sin()[:, None]
            one, other = made[..., :half], made[..., half:]
            return torch.cat((one * cos - other * sin, other * cos + one * sin), dim=-1)

        keys = self.own.num_kv_heads
        query, key, value = turned(heads("q", self.own.num_heads)), turned(heads("k", keys)), heads("v", keys)
        by_heads = [each.transpose(0, 1)[None] for each in (query, key, value)]
        found = scaled_dot_product_attention(*by_heads, is_causal=True, enable_gqa=True)
        out = found[0].transpose(0, 1).flatten(1)
        return linear(out, part["self_attn.o_proj.weight"], part.get("self_attn.o_proj.bias"))


@pytest.mark.parametrize("arithmetic", ["pytorch", "auto"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_computes_what_its_authors_code_computes(target: Decoder, variant: str, arithmetic: str) -> None:
    other = Decoder(target.config, target.weights, threads=1, arithmetic=arithmetic)
    config, tensors = random_published(other, 5, 0.1, **dict(VARIANTS[variant]))
    decoder = published_decoder(other, 5, 0.1, **dict(VARIANTS[variant]))
    defined = Defined(config, tensors, target.weights.embedding)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, target.config.valid_vocab_size, (15,), generator=generator).tolist()
    seen = {f"hidden.{at}": torch.randn((9, config.hidden_size), generator=generator) for at in config.sees}
    known, expected = decoder.reduced(seen), defined.reduced(list(seen.values()))
    close = 1e-5 if arithmetic == "pytorch" else 0.03  # beside its layers, the native engine rounds to bf16
    torch.testing.assert_close(known, expected, rtol=close, atol=close)
    cache, states = decoder.new_cache(), list(expected)
    decoder.follow(cache, Before(list(known.numpy())))
    for stop in (5, 10, *range(11, 16)):  # two passes behind the model's states, then a draft token by token
        rows = chain(cache, tokens[1 + cache.length : stop])
        out = decoder.run(rows)
        cache.commit(range(len(rows)), rows.writer)
        logits, state = defined.rows(tokens[1:stop], states[: stop - 1])
        found = out.logits(len(rows) - 1)
        torch.testing.assert_close(found[tensors[VOCABULARY].long()], logits, rtol=close, atol=close * 5)
        assert found[3] == -float("inf"), "token 3 cannot be drafted"
        best = int(tensors[VOCABULARY][int(logits.argmax())])
        assert out.choice(len(rows) - 1) == best or logits.max() - logits[found[best].isinf()].max() < close
        if stop >= 10:
            states.append(state)
    assert len(states) == 15


@pytest.mark.parametrize("layout", ["sglang", "speculators"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_files_of_both_layouts_are_read(target: Decoder, variant: str, layout: str, tmp_path: Path) -> None:
    config, tensors = random_published(target, sees=(0, 2), **dict(VARIANTS[variant]))
    write_published(tmp_path / "it", config, tensors, target.config.vocab_size, layout)
    found = read_trained(tmp_path / "it")
    assert isinstance(found.config, PublishedConfig)
    for name in ("sees", "choices", "are_all", "residual_normed", "norms", "hands_on_normed", "own_embedding"):
        assert getattr(found.config, name) == getattr(config, name), name
    for name in ("num_heads", "num_kv_heads", "norm_eps", "qk_norm", "qkv_bias", "output_bias", "num_layers"):
        assert getattr(found.config.own, name) == getattr(config.own, name), name
    assert found.config.own.rope.theta == config.own.rope.theta
    assert found.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(found.tensors[name].float(), tensor.float(), rtol=0, atol=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A drafter for TARGET, as SGLang's users have it."""
    model = foretoken.load(TARGET, draft="none", threads=1)
    config, tensors = random_published(model.target, 1, sees=(0, 2))
    write_published(tmp_path / "it", config, tensors, model.target.config.vocab_size, "sglang")
    return tmp_path / "it"


@pytest.mark.parametrize("options", ["", ":tokens=3:format=bf16", ":k=3:depth=4:format=int4"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_no_token_changes(folder: Path, options: str, temperature: float) -> None:
    settings: dict[str, Any] = {"max_new_tokens": 32, "ignore_eos": True, "temperature": temperature, "seed": 3}
    plain = foretoken.load(TARGET, draft="none", threads=1)
    with_it = foretoken.load(TARGET, draft=f"{folder}{options}", threads=1, pace="fixed")
    for prompt in (PROMPT, plain.tokenizer.encode(PROMPT)[:1]):  # behind one token there is no row to draft with
        found = with_it.generate(prompt, **settings)
        assert found.tokens == plain.generate(prompt, **settings).tokens
        assert found.stats.draft_tokens > 20


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


def test_layers_are_numbered_by_inputs_or_by_outputs(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    for given, sees in (([2, 16, 29], (2, 16, 29)), ([1, 15, 28], (2, 16, 29)), ([24, 30, 36], (24, 30, 36))):
        raw["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": given}
        (folder / "config.json").write_text(json.dumps(raw))
        found, _ = read_trained_config(folder)
        assert isinstance(found, PublishedConfig)
        assert found.sees == sees


def without(name: str) -> Callable[[dict[str, Any], dict[str, torch.Tensor]], object]:
    return lambda raw, tensors: tensors.pop(name)


def config(**values: Any) -> Callable[[dict[str, Any], dict[str, torch.Tensor]], object]:
    return lambda raw, tensors: raw.update(values)


REFUSED: dict[str, tuple[Callable[[dict[str, Any], dict[str, torch.Tensor]], object], type[ForetokenError], str]] = {
    "a tensor is missing": (without("fc.weight"), CheckpointError, "reduction.weight is missing"),
    "the output layer is missing": (without("lm_head.weight"), CheckpointError, "head.weight is missing"),
    "another kind": (config(speculators_model_type="dflash"), UnsupportedModelError, "of kind 'dflash'"),
    "another width": (config(hidden_size=96), CheckpointError, "hidden_size is 96"),
    "another target's width": (config(target_hidden_size=96), UnsupportedModelError, "states of 96"),
    "too many tokens": (config(draft_vocab_size=10**6), CheckpointError, "draft_vocab_size"),
    "no numbers of layers": (config(eagle_aux_hidden_state_layer_ids=["a"]), CheckpointError, "expected numbers"),
    "layers that the model lacks": (config(eagle_aux_hidden_state_layer_ids=[2, 9]), CheckpointError, "has 2"),
    "no layers named, of a small model": (config(eagle_config={}), CheckpointError, "sees the model before its layers"),
    "a switch that is not served": (config(parallel_drafting=True), UnsupportedModelError, "parallel_drafting"),
    "one state": (config(eagle_config={"use_aux_hidden_state": False}), UnsupportedModelError, "one state"),
    "another activation": (config(hidden_act="gelu"), UnsupportedModelError, "gelu"),
    "layers that make no sense": (config(transformer_layer_config=3), CheckpointError, "makes no sense"),
    "a token twice": (
        lambda raw, tensors: tensors["d2t"].__setitem__(1, int(tensors["d2t"][0]) - 1),
        CheckpointError,
        "no list of tokens",
    ),
    "NaN": (lambda raw, tensors: tensors["norm.weight"].fill_(float("nan")), CheckpointError, "holds NaN"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_said_in_a_line(case: str, folder: Path) -> None:
    change, error, said = REFUSED[case]
    raw, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    change(raw, tensors)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(error, match=said) as refused:
        foretoken.load(TARGET, draft=str(folder), threads=1)
    assert "\n" not in str(refused.value)


def test_pickles_are_not_read_and_how_to_convert_them_is_said(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelNotFoundError, match="weights_only=True") as refused:
        foretoken.load(TARGET, draft=str(folder), threads=1)
    torch.save({"fc.weight": torch.ones(2, 2)}, folder / "pytorch_model.bin")
    code = str(refused.value).partition('python -c "')[2].rpartition('"')[0]
    assert code
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
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
    with pytest.raises(ForetokenError, match="cannot speed it up"):
        foretoken.load(TARGET, draft=f"{folder},lookup", threads=1)
