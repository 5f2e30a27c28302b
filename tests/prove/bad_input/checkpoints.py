"""Cases in which a checkpoint is spoiled."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.prove.bad_input.alter import (
    ODD,
    alter_bytes,
    alter_json,
    alter_safetensors,
    read_header,
    spoil,
    with_header,
    written,
)
from tests.prove.bad_input.case import Case, generation, with_model
from tests.prove.bad_input.sandbox import Command
from tests.prove.bad_input.stage import COPY, WORDS, lend

# keys that a configuration need not have
_KEYS: dict[str, tuple[Any, ...]] = {
    "rope_scaling": (
        {"type": "yarn", "factor": 0},
        {"type": "llama3"},
        {"type": "dynamic", "factor": 1e300},
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1e-9, "beta_slow": 1e9},
        {"rope_type": []},
        {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4},
        {"type": "linear", "factor": 1e-320},
        {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 1e-9},
    ),
    "rope_parameters": (
        {"rope_theta": 1e-300},
        {"rope_theta": 1e308},
        {"rope_theta": 1},
        {"rope_theta": 10**400},
        {"rope_theta": "x"},
    ),
    "model_type": ("qwen2", "qwen3", "mistral", "gpt2", ["llama"], {}),
    "sliding_window": (1, 3, 10**30, True, "x"),
    "use_sliding_window": (True, "yes"),
    "layer_types": ([], ["full_attention"], ["x", "y"], "full_attention", [[], []], [None] * 2),
    "max_window_layers": (0, -1, 10**30, None, "x"),
    "quantization_config": (
        {},
        [],
        "x",
        {"quant_method": "gptq"},
        {"quant_method": "foretoken"},
        {"quant_method": "foretoken", "format": "int4", "group": 64, "version": 1},
        {"quant_method": "foretoken", "format": [], "version": 1},
        {"quant_method": "foretoken", "format": "int4-g9999999999999999999999", "version": 1},
        {"quant_method": "foretoken", "format": "mxfp4", "version": 1e9},
        {"quant_method": ["x"] * 99},
    ),
    "rehearsal": (
        None,
        3,
        {},
        {"shape": "x", "source": {"name": "y", "sha256": "0" * 64}, "placement": "spread", "layers": [0], "seed": 0},
        {"shape": [], "source": {"name": "y", "sha256": "0" * 64}, "placement": "spread", "layers": [0], "seed": 0},
        {"shape": "x", "source": {"name": {}, "sha256": "0" * 64}, "placement": "spread", "layers": [9], "seed": 0},
        {"shape": "x", "source": "y", "placement": 1e400, "layers": "0", "seed": -1},
    ),
    "num_hidden_layers": (10**9, 10**12, 2**63, 1),
    "vocab_size": (10**12, 4095, 4097, 2**31, 1),
    "hidden_size": (10**9, 2**62, 127, 1),
    "intermediate_size": (10**12, 1, 2**63),
    "num_attention_heads": (8, 2, 128, 256, 10**12),
    "num_key_value_heads": (1, 4, 3, 10**9),
    "head_dim": (32, 16, 2, 63, 10**12),
    "max_position_embeddings": (1, 2, 30, 10**12, 2**63, 10**400),
    "rms_norm_eps": (0, -1, 1e-300, 1e308, 10**400, float("nan"), True, "1e-6"),
    "eos_token_id": (-1, 4096, [], [[]], "x", True, [0, None], 1.5, 10**30, {}),
    "dtype": ("float8", 3, [], "torch.bfloat16"),
    "valid_vocab_size": (0, 1, 4097, "x"),
    "tie_word_embeddings": (False, "no", None, []),
    "attention_bias": (True, "x"),
    "hidden_act": ("gelu", [], None),
    "partial_rotary_factor": (0.5, "x", [], float("nan")),
}


# keys that still fit the weights when they change together: what native code then meets
_TOGETHER: tuple[dict[str, Any], ...] = (
    {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32},
    {"num_attention_heads": 128, "num_key_value_heads": 64, "head_dim": 2},
    {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128, "max_position_embeddings": 25},
    {"num_attention_heads": 64, "num_key_value_heads": 32, "head_dim": 4, "num_hidden_layers": 1},
    {"model_type": "mistral", "sliding_window": 1},
    {"model_type": "mistral", "sliding_window": 10**30},
    {"model_type": "mistral", "sliding_window": 3, "rope_scaling": {"type": "dynamic", "factor": 1e12}},
)


def _copied(folder: Path, stage: Path, *names: str) -> Path:
    """Parts of the stage in a case's folder; the first is the model, and is called so."""
    lend(stage, names, folder)
    return (folder / names[0]).rename(folder / "model")


def configs(dice: random.Random, folder: Path, stage: Path) -> Case:
    """Keys of config.json and generation_config.json."""
    model = _copied(folder, stage, "plain")
    path = model / ("config.json" if dice.random() < 0.9 else "generation_config.json")
    raw, told = json.loads(path.read_text(encoding="utf-8")), []
    if dice.random() < 0.15:
        raw.update(together := dice.choice(_TOGETHER))
        told.append(f"{str(together)[:90]}")
    for _ in range(0 if told and dice.random() < 0.7 else dice.choice((1, 1, 1, 2))):
        if dice.random() < 0.6:
            key = dice.choice(list(_KEYS))
            raw[key] = dice.choice(_KEYS[key] if dice.random() < 0.7 else ODD)
            told.append(f"{key} is {str(raw[key])[:60]!a}")
        else:
            raw, what = alter_json(raw, dice)
            told.append(what)
    path.write_bytes(written(raw))
    command, may_write = with_model("model", dice, folder)
    return Case(f"{path.name}: {', '.join(told)}", command, may_write, may_warn=True)


def weights(dice: random.Random, folder: Path, stage: Path) -> Case:
    """A file of weights."""
    model = _copied(folder, stage, "plain")
    path = model / "model.safetensors"
    data, what = alter_safetensors(path.read_bytes(), dice)
    path.write_bytes(data)
    command, may_write = with_model("model", dice, folder)
    return Case(f"weights: {what}", command, may_write)


def shards(dice: random.Random, folder: Path, stage: Path) -> Case:
    """The index of shards, or one of them."""
    model = _copied(folder, stage, "sharded")
    index = model / "model.safetensors.index.json"
    if dice.random() < 0.6:
        changed, what = alter_json(json.loads(index.read_text(encoding="utf-8")), dice)
        if dice.random() < 0.5:
            name = (
                dice.choice(list(changed["weight_map"]))
                if isinstance(changed.get("weight_map"), dict) and changed["weight_map"]
                else None
            )
            other = dice.choice(
                (
                    "a\0b",
                    "../plain/model.safetensors",
                    "/dev/zero",
                    "/dev/stdin",
                    ".",
                    "",
                    "x" * 300,
                    "\ud800",
                    "config.json",
                )
            )
            if name is not None:
                changed["weight_map"][name] = other
                what = f"{name} is in {other[:30]!a}"
        index.write_bytes(written(changed))
    else:
        path = dice.choice(sorted(model.glob("*.safetensors")))
        data, what = alter_safetensors(path.read_bytes(), dice)
        path.write_bytes(data)
    command, may_write = with_model("model", dice, folder)
    return Case(f"shards: {what}", command, may_write)


def files(dice: random.Random, folder: Path, stage: Path) -> Case:
    """Any file of a checkpoint: absent, a folder, a link that leads nowhere, cut."""
    model = _copied(folder, stage, dice.choice(("plain", "sharded", "talk")))
    path = dice.choice(sorted(model.iterdir()))
    what = spoil(path, dice)
    command, may_write = with_model("model", dice, folder)
    return Case(f"{path.name} {what}", command, may_write)


def tokenizers(dice: random.Random, folder: Path, stage: Path) -> Case:
    """The tokenizer, its configuration and its template for talks."""
    model = _copied(folder, stage, "talk")
    if dice.random() < 0.55:
        path = model / "tokenizer.json"
        raw = json.loads(path.read_text(encoding="utf-8"))
        part = dice.choice((*(key for key in raw if raw[key]), "model"))
        if dice.random() < 0.8 and isinstance(raw[part], dict | list):
            raw[part], what = alter_json(raw[part], dice)
            what = f"{part}: {what}"
        else:
            raw, what = alter_json(raw, dice)
        path.write_bytes(written(raw))
        command, may_write = with_model("model", dice, folder)
    elif dice.random() < 0.5:
        path = model / "tokenizer_config.json"
        raw = json.loads(path.read_text(encoding="utf-8"))
        key = dice.choice(
            (
                "tokenizer_class",
                "added_tokens_decoder",
                "auto_map",
                "model_max_length",
                "bos_token",
                "extra_special_tokens",
                "add_bos_token",
                "truncation_side",
                "padding_side",
                "chat_template",
                "eos_token",
            )
        )
        raw[key] = dice.choice(
            (*ODD, "LlamaTokenizer", {"AutoTokenizer": ["x.y", None]}, {"4095": {"content": "x"}}, {"-1": {}})
        )
        path.write_bytes(written(raw))
        what = f"{key} is {str(raw[key])[:40]!a}"
        command, may_write = with_model("model", dice, folder)
    else:
        path = model / "tokenizer_config.json"
        raw = json.loads(path.read_text(encoding="utf-8"))
        raw["chat_template"] = dice.choice(_TEMPLATES)
        path.write_bytes(written(raw))
        what = f"template {raw['chat_template'][:60]!a}"
        command, may_write = Command(["chat", "--model", "model", "--system", "x", *WORDS], b"hello\nmore\n"), ()
    return Case(f"{path.name}: {what}", command, may_write, may_warn=True, may_quote=True)


_TEMPLATES = (
    "{{",
    "{% for %}",
    "{{ messages[9].content }}",
    "{{ 1 / 0 }}",
    "{{ raise_exception('no system') }}",
    "{{ undefined.x.y }}",
    "{{ messages }}",
    "",
    " ",
    "{% include 'x' %}",
    "{{ ''.__class__.__mro__ }}",
    "{{ range(10**10) }}",
    "{{ 'x' * 10**12 }}",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "{{ '\ud800' }}",
    "\0",
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{{ messages[0]['role'] + 1 }}",
    "{% set x = namespace() %}{{ x.y.z }}",
    "{{ strftime_now('%Q') }}",
    "{{ strftime_now(3) }}",
    "{{ raise_exception('a\nb\n\x1b[2Jc') }}",
    "{% if messages[0].role == 'system' %}{{ raise_exception('') }}{% endif %}x",
    "{{ messages | tojson }}",
    "{{ messages | nothing }}",
    "{{ bos_token * 2000 }}",
    "x" * 100_000,
    "{% break %}",
    "{% generation %}",
)


def copies(dice: random.Random, folder: Path, stage: Path) -> Case:
    """A low-bit copy: beside its model, as a draft, and as the model."""
    lend(stage, ("plain", COPY), folder)
    copy = folder / COPY
    way = dice.random()
    if way < 0.35:
        path = copy / "config.json"
        raw = json.loads(path.read_text(encoding="utf-8"))
        if dice.random() < 0.6:
            raw["quantization_config"], what = alter_json(raw["quantization_config"], dice)
        else:
            raw, what = alter_json(raw, dice)
        path.write_bytes(written(raw))
    elif way < 0.85:
        path = copy / "model.safetensors"
        data = path.read_bytes()
        if dice.random() < 0.5:
            changed, what = alter_safetensors(data, dice)
        else:
            header, numbers = read_header(data)
            name = dice.choice([name for name in header if name.count(".weight.")])
            begin, end = header[name]["data_offsets"]
            spoiled = (
                dice.choice((b"\xff", b"\x00", b"\x7f", b"\x80")) * (end - begin)
                if dice.random() < 0.6
                else dice.randbytes(end - begin)
            )
            changed, what = (
                with_header(header, numbers[:begin] + spoiled + numbers[end:]),
                f"{name} is {spoiled[:4]!r}...",
            )
        path.write_bytes(changed)
    else:
        path = dice.choice(sorted(copy.iterdir()))
        what = spoil(path, dice)
    command, may_write = dice.choice(
        (
            (Command(generation("plain", "--draft", "int4")), ()),
            (Command(generation("plain", "--draft", "int4,int2,lookup", "--audit")), ()),
            (Command(generation("plain", "--draft", f"./{COPY},lookup")), ()),
            (Command(generation(COPY, "--audit")), ()),
            (Command(generation(COPY, "--weights", "copied", "--draft", "none")), ()),
            (Command(generation("stdlib-1m", "--draft", f"./{COPY}")), ()),
            (Command(["quantize", "plain", "--format", "int4", "--threads", "1", "--force"]), (COPY,)),
            (Command(["quantize", COPY, "--format", "int2", "--threads", "1"]), (f"{COPY}-int2-g64",)),
        )
    )
    return Case(f"copy's {path.name}: {what}", command, may_write)


def any_bytes(dice: random.Random, folder: Path, stage: Path) -> Case:
    """Any file of a checkpoint with a bit or some bytes of it spoiled."""
    model = _copied(folder, stage, "plain")
    path = dice.choice(sorted(model.glob("*.json")))
    data, what = alter_bytes(path.read_bytes(), dice)
    path.write_bytes(data)
    command, may_write = with_model("model", dice, folder)
    return Case(
        f"{path.name}: {what}",
        command,
        may_write,
        may_warn=path.name.startswith("tokenizer"),
        may_quote=path.name.startswith("tokenizer"),
    )
