"""A rehearsal's function is the small model's, for our decoder and for transformers' models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import foretoken
from foretoken.common.source import EMBEDDED
from foretoken.decoder.config import parse_config, read_json
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.loading import load_weights
from foretoken.decoder.rows import chain
from foretoken.kernels import native
from foretoken.rehearsal.fit import Fit
from foretoken.rehearsal.shapes import shape_of
from foretoken.text.tokenizer import Tokenizer
from tests.rehearsal.conftest import ROOM, rehearse, small
from tests.tiny import ARITHMETICS, all_logits

TOKENS = [3, 1, 41, 59, 26, 53, 58, 9, 79, 32, 38, 46, 26, 43, 38, 32, 7, 95, 0, 2]


def shape(**changes: Any) -> str:
    """`ROOM` but for some of its numbers."""
    numbers = dict(part.split("=") for part in ROOM.split(","))
    return ",".join(f"{key}={value}" for key, value in {**numbers, **changes}.items())


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 300.0, **parameters}}


LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
QWEN2 = {"model_type": "qwen2"}
TIED = {"tie_word_embeddings": True}

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "wider": ({}, ROOM),
    "wider by no power of two": ({}, shape(hidden=96, heads=12)),
    "as it is, but for vocabulary": ({}, shape(hidden=32, layers=3, heads=4, **{"kv-heads": 2}, intermediate=48)),
    "no extra vocabulary": ({}, shape(vocab=97)),
    "rows of its own that are padding": ({"valid_vocab_size": 90}, ROOM),
    "a pad token": ({"pad_token_id": 5}, ROOM),
    "heads twice as large": ({}, shape(**{"head-dim": 16})),
    "heads three times as large": ({}, shape(**{"head-dim": 24})),
    "larger groups": ({}, shape(heads=16, **{"kv-heads": 2})),
    "smaller groups": ({}, shape(heads=8, **{"kv-heads": 8})),
    "uneven groups": ({"num_attention_heads": 8}, shape(hidden=96, heads=12, **{"kv-heads": 4})),
    "one key head": ({"num_key_value_heads": 1}, shape(heads=16, **{"kv-heads": 8, "head-dim": 16})),
    "no groups": ({"num_key_value_heads": 4}, ROOM),
    "as many layers": ({}, shape(layers=3)),
    "tied to tied": (TIED, shape(tied="yes")),
    "tied to untied": (TIED, ROOM),
    "untied to tied": ({}, shape(tied="yes")),
    "qwen2 to qwen2": (QWEN2, shape(type="qwen2", **{"head-dim": 16})),
    "qwen2 to llama": (QWEN2, shape(**{"head-dim": 16})),
    "llama to qwen2": ({}, shape(type="qwen2")),
    "biases of all kinds": ({"attention_bias": True, "mlp_bias": True}, shape(**{"head-dim": 16})),
    "biases of the attention, to qwen2's shape of it": (QWEN2, shape(type="qwen2", heads=8, **{"kv-heads": 8})),
    "another base of positions": (rope("default"), shape(**{"head-dim": 16})),
    "linear positions": (rope("linear", factor=2.5), shape(**{"head-dim": 16})),
    "llama3 positions": (LLAMA3, shape(**{"head-dim": 16})),
    "dynamic positions": (rope("dynamic", factor=3.0), ROOM),
    "yarn positions": (YARN, ROOM),
    "a norm's epsilon that matters": ({"rms_norm_eps": 0.3}, ROOM),
}


def logits_of(folder: Path, arithmetic: str = "auto") -> torch.Tensor:
    config = parse_config(read_json(folder / "config.json"))
    decoder = Decoder(config, load_weights(folder, config), threads=1, arithmetic=arithmetic)
    return all_logits(decoder.run(chain(decoder.new_cache(), TOKENS)))


def logits_in_transformers(folder: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="eager")
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([TOKENS]), use_cache=False).logits[0]
    return logits


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("placement", ["spread", "first"])
def test_the_logits_are_the_small_models(case: str, placement: str, tmp_path: Path) -> None:
    changes, numbers = CASES[case]
    model = small(tmp_path / "small", **changes)
    out = rehearse(model, tmp_path / "out", numbers, placement=placement)
    expected, logits = logits_of(model), logits_of(out)
    assert logits.shape == expected.shape, "of the tokens that there are"
    assert float(expected.std()) > 0.3
    torch.testing.assert_close(logits, expected, rtol=0, atol=3e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", [case for case in CASES if "dynamic" not in case])  # which differs there by design
def test_the_logits_are_the_small_models_in_transformers_too(case: str, tmp_path: Path) -> None:
    changes, numbers = CASES[case]
    model = small(tmp_path / "small", **changes)
    out = rehearse(model, tmp_path / "out", numbers)
    expected, logits = logits_in_transformers(model), logits_in_transformers(out)
    assert logits.shape[1] == shape_of(numbers).vocab_size
    torch.testing.assert_close(logits[:, :97], expected, rtol=0, atol=3e-5)
    torch.testing.assert_close(logits_of(out), logits[:, : changes.get("valid_vocab_size", 97)], rtol=0, atol=1e-4)
    rest = logits[:, 97:]
    padding = changes.get("pad_token_id", changes.get("valid_vocab_size", 97) - 1)
    torch.testing.assert_close(rest, logits[:, padding : padding + 1].expand_as(rest), rtol=0, atol=1e-5)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_either_arithmetic_gives_them(arithmetic: str, tmp_path: Path) -> None:
    model = small(tmp_path / "small", **QWEN2)
    out = rehearse(model, tmp_path / "out", shape(type="qwen2", **{"head-dim": 16}))
    torch.testing.assert_close(logits_of(out, arithmetic), logits_of(model, arithmetic), rtol=0, atol=3e-5)


def test_positions_turn_heads_of_every_size_alike_far_into_the_context(tmp_path: Path) -> None:
    model = small(tmp_path / "small", **LLAMA3)
    out = rehearse(model, tmp_path / "out", shape(**{"head-dim": 24}))
    logits = []
    for folder in (model, out):
        config = parse_config(read_json(folder / "config.json"))
        decoder = Decoder(config, load_weights(folder, config), threads=1)
        assert config.context_length == 512
        logits.append(all_logits(decoder.run(chain(decoder.new_cache(), (TOKENS * 26)[:512]))))
    torch.testing.assert_close(*logits, rtol=0, atol=3e-5)


def test_the_tokenizer_is_the_small_models_in_every_family(tmp_path: Path) -> None:
    text = "def f(x):\n    return 'a' + 12345  # don't"
    its = Tokenizer.load(EMBEDDED["stdlib-1m"])
    assert its is not None
    for family in ("llama", "qwen2"):
        big = f"hidden=512,layers=2,heads=16,kv-heads=4,intermediate=640,vocab=4096,head-dim=64,type={family}"
        out = rehearse(EMBEDDED["stdlib-1m"], tmp_path / family, big)
        tokenizer = Tokenizer.load(out)
        assert tokenizer is not None
        assert tokenizer.encode(text) == its.encode(text), "transformers would take a Qwen2 for one with its own rules"


SPREAD = {"spread": (0, 1, 3), "first": (0, 1, 2)}


@pytest.mark.parametrize("placement", SPREAD)
def test_layers_lie_where_they_are_said_to_and_the_others_add_nothing(placement: str, tmp_path: Path) -> None:
    out = rehearse(small(tmp_path / "small"), tmp_path / "out", placement=placement)
    tensors = load_file(out / "model.safetensors")
    raw = read_json(out / "config.json")
    assert tuple(raw["rehearsal"]["layers"]) == SPREAD[placement]
    for layer in range(5):
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            adds = bool(tensors[f"model.layers.{layer}.{name}.weight"].any())
            assert adds == (layer in SPREAD[placement])


def test_what_is_not_listened_to_is_computed_from_numbers_and_would_be_heard(tmp_path: Path) -> None:
    out = rehearse(small(tmp_path / "small"), tmp_path / "out")
    expected = logits_of(out)
    tensors = load_file(out / "model.safetensors")
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        random = tensors[f"model.layers.2.{name}.weight"]  # a layer that is not the small one's
        real = tensors[f"model.layers.3.{name}.weight"][:8, :32]
        assert float(random.abs().min()) > 0.1 * float(real.std())
        assert 0.5 < float(random.std() / real.std()) < 2
        assert len(random.unique()) > 0.99 * random.numel()
    for name, columns in (("self_attn.o_proj", slice(16, 32)), ("mlp.down_proj", slice(48, None))):
        changed = dict(tensors)
        weight = changed[f"model.layers.3.{name}.weight"].clone()
        assert not bool(weight[:, columns].any())
        weight[:32, columns] = 0.1
        changed[f"model.layers.3.{name}.weight"] = weight
        save_file(changed, out / "model.safetensors")
        assert float((logits_of(out) - expected).abs().max()) > 0.1, f"columns of {name} reach what is random"


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(tmp_path: Path) -> None:
    model = small(tmp_path / "small")
    files = [
        (rehearse(model, tmp_path / str(i), seed=seed) / "model.safetensors").read_bytes()
        for i, seed in enumerate((7, 7, 8))
    ]
    assert files[0] == files[1]
    assert files[0] != files[2]


def test_zeros_are_of_either_sign_so_that_no_two_matrices_are_equal(tmp_path: Path) -> None:
    tensors = load_file(rehearse(small(tmp_path / "small"), tmp_path / "out") / "model.safetensors")
    matrices = {name: tensor for name, tensor in tensors.items() if tensor.dim() == 2}
    silent = [name for name, tensor in matrices.items() if not tensor.any()]
    assert len(silent) == 4, "o_proj and down_proj of two extra layers"
    for name in silent:
        assert 0.4 < matrices[name].signbit().float().mean() < 0.6
    assert len({tensor.numpy().tobytes() for tensor in matrices.values()}) == len(matrices)


def test_key_heads_are_doubled_only_where_groups_are_smaller() -> None:
    config = parse_config(read_json(EMBEDDED["stdlib-7m"] / "config.json"))  # 6 query heads on 2
    eight = shape_of("llama-3.1-8b")  # 32 on 8
    assert key_heads(Fit(config, eight, False, 0)) == [0, 1, *[None] * 6]
    assert key_heads(Fit(config, replace(eight, num_kv_heads=16), False, 0)) == [0, 0, 1, 1, *[None] * 12]


def key_heads(fit: Fit) -> list[int | None]:
    rows = fit.placed("model.layers.0.self_attn.k_proj.weight").rows.view(fit.shape.num_kv_heads, -1)
    return [None if int(first) < 0 else int(first) // fit.small.head_dim for first in rows[:, 0]]


def test_a_rehearsal_in_bf16_says_what_the_small_model_says(talking: Path) -> None:
    model = foretoken.load("stdlib-1m", draft="none")
    rehearsal = foretoken.load(talking, draft="none")
    assert rehearsal.target.config.vocab_size == 5000
    for prompt in ("def add(", "import os\nimport", "class Stack:"):
        done = rehearsal.generate(prompt, max_new_tokens=24, keep_logits=True)
        expected = model.generate(prompt, max_new_tokens=24, keep_logits=True)
        assert done.logits is not None
        assert expected.logits is not None
        if native.module() is not None:
            assert done.tokens == expected.tokens
            assert torch.equal(done.logits, expected.logits), "every factor is a power of two, every sum in one order"
            continue
        for i, (token, its) in enumerate(zip(expected.tokens, done.tokens, strict=True)):
            torch.testing.assert_close(done.logits[i], expected.logits[i], rtol=0.02, atol=0.1)
            if token != its:  # so the two were nearly equal
                break
    if native.module() is not None:
        warm = {"temperature": 0.8, "seed": 5, "max_new_tokens": 24}
        assert rehearsal.generate("def add(", **warm).tokens == model.generate("def add(", **warm).tokens


def test_where_factors_are_rounded_bf16_differs_by_no_more_than_that(tmp_path: Path) -> None:
    numbers = "hidden=384,layers=3,heads=6,kv-heads=3,intermediate=512,vocab=4096,head-dim=128,tied=yes"
    out = rehearse(EMBEDDED["stdlib-1m"], tmp_path / "out", numbers)
    expected, logits = logits_of(EMBEDDED["stdlib-1m"]), logits_of(out)
    assert not torch.equal(logits, expected)
    difference = (logits - expected).norm() / expected.norm()
    assert float(difference) < 0.02, "a bf16 number is off by 0.004 at most, and a pass is a dozen of steps"
