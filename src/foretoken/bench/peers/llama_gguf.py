"""Converts a Llama checkpoint to GGUF, straight from its safetensors; a Python that has `gguf` runs it.

The tokenizer is left out, because inputs and outputs are token ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
TYPES = {
    "BF16": (np.uint16, gguf.GGMLQuantizationType.BF16),
    "F16": (np.float16, gguf.GGMLQuantizationType.F16),
    "F32": (np.float32, gguf.GGMLQuantizationType.F32),
}


def convert(checkpoint: Path, out: Path) -> None:
    """Write a checkpoint as GGUF, from one file or from shards, with a tied head or not; weights keep their type."""
    config = json.loads((checkpoint / "config.json").read_text())
    if config["model_type"] != "llama":
        raise SystemExit(f"{checkpoint} is a {config['model_type']}; expected a llama, which alone is converted here")
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = rope.get("rope_theta") or config.get("rope_theta") or 10000.0
    writer = gguf.GGUFWriter(str(out), "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(theta)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    factors = rope_factors(rope, theta, head_dim)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    for name, kind, numbers in tensors(checkpoint):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue  # llama.cpp takes the embedding where there is no head
        turned = {"q_proj": heads, "k_proj": kv_heads}.get(name.split(".")[-2])
        data = numbers if turned is None else interleaved(numbers, turned)
        if data.ndim == 1:  # llama.cpp wants norms in float32
            wide = (data.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else data.astype(np.float32)
            writer.add_tensor(renamed(name), wide)
        else:
            raw = np.ascontiguousarray(data).view(np.uint8)
            writer.add_tensor(renamed(name), raw, raw_dtype=TYPES[kind][1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(checkpoint: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """Name, type and numbers (bf16 as 16 bits each) of each tensor in a checkpoint's files, which stay mapped."""
    index = checkpoint / "model.safetensors.index.json"
    files = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
    for file in sorted(files):
        memory = np.memmap(checkpoint / file, np.uint8, "r")
        begin = 8 + int.from_bytes(memory[:8], "little")
        entries = json.loads(memory[8:begin].tobytes())
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            if entry["dtype"] not in TYPES:
                raise SystemExit(f"{name} is {entry['dtype']}; expected weights in {', '.join(TYPES)}")
            start, stop = entry["data_offsets"]
            numbers = memory[begin + start : begin + stop].view(TYPES[entry["dtype"]][0])
            yield name, entry["dtype"], numbers.reshape(entry["shape"])


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """A weight in the order of llama.cpp's rotary positions, where the rows of a pair are side by side."""
    outputs, *inputs = weight.shape
    return weight.reshape(heads, 2, outputs // heads // 2, *inputs).swapaxes(1, 2).reshape(weight.shape)


def renamed(name: str) -> str:
    """A tensor's name in GGUF."""
    base, _, kind = name.rpartition(".")
    if base in WHOLE:
        return f"{WHOLE[base]}.{kind}"
    _, _, layer, part = base.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def rope_factors(rope: dict[str, Any], theta: float, head_dim: int) -> np.ndarray | None:
    """The factors that llama.cpp divides the frequencies by, for "llama3" scaling (transformers' documentation of
    rope_parameters); None without scaling."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise SystemExit(f"rope is scaled by {kind!r}; expected 'default' or 'llama3', which alone are converted here")
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    length = rope["original_max_position_embeddings"]
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    shares = np.clip((length / wavelengths - low) / (high - low), 0.0, 1.0)  # share of the unscaled frequency
    return np.asarray(1 / ((1 - shares) / factor + shares), np.float32)
