"""What a model's passes cost beside what memory allows: `python -m foretoken.bench.passes --out results/NAME.json`.

A Llama of the 1b shape with random weights (their values cost nothing): passes of 1 to 32 rows with mapped and with
copied weights, attention at 8,192 tokens, loading, prefill beside transformers on the same weights; and what a choice
from a row of logits costs. Every share of the bandwidth is of a bandwidth measured beside it; what is compared runs in
turn.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from foretoken.api.build import load
from foretoken.bench.ceilings import Ceiling
from foretoken.bench.script import carry_out
from foretoken.decoder.cache import Cache, new_writer
from foretoken.decoder.config import parse_config
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.decoder.shapes import expected_shapes
from foretoken.errors import InputError
from foretoken.kernels import native
from foretoken.kernels.choosing import Noise, Warp
from foretoken.prices.measuring import read_prompt

# the body of Llama 3.2 1B; a small vocabulary, so that what is measured is the body
SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 4096,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
ROWS = (1, 2, 4, 8, 16, 32)
CONTEXT = 8192
VOCABULARIES = (4096, 128_256)
WARPS = {
    "temperature": Warp(0.8),
    "top_k": Warp(0.8, top_k=50),
    "top_p": Warp(0.8, top_p=0.95),
    "min_p": Warp(0.8, min_p=0.05),
    "all": Warp(0.8, 50, 0.95, 0.05),
}

LOADING = """
import sys, time, resource
import torch, foretoken.api.build
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before, began = resident(), time.perf_counter()
model = foretoken.api.build.load(sys.argv[1], draft="none", weights=sys.argv[2])
seconds = time.perf_counter() - began
model.generate([1, 2, 3], max_new_tokens=8, ignore_eos=True)
print(seconds, resident() - before)
"""


def write_checkpoint(folder: Path, layers: int) -> int:
    """A checkpoint of the shape with random weights; returns the bytes of its weights."""
    raw = {**SHAPE, "num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    numbers = (torch.randn(1 << 22) * 0.02).bfloat16()
    tensors = {}
    for name, shape in expected_shapes(parse_config(raw)).items():
        count = torch.Size(shape).numel()
        tensors[name] = numbers.repeat(-(-count // len(numbers)))[:count].view(shape).clone()
        if "norm" in name:
            tensors[name].fill_(1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return sum(tensor.nbytes for tensor in tensors.values())


def passes(folder: Path, weights: str, ceiling: Ceiling, size: int, rounds: int) -> list[dict[str, Any]]:
    """Seconds of whole passes, the rows' tokens chosen, after a short prompt."""
    target = load(folder, draft="none", weights=weights).target
    size -= target.weights.embedding.nbytes  # of which a pass reads a row a token
    cache = read_prompt(target, 100)
    seconds: dict[int, list[float]] = {n: [] for n in ROWS}
    shares: dict[int, list[float]] = {n: [] for n in ROWS}
    for _ in range(rounds):
        for n in ROWS:
            bandwidth = ceiling.measure()
            rows = chain(cache, [5] * n)
            began = perf_counter()
            target.run(rows)
            seconds[n].append(perf_counter() - began)
            shares[n].append(size / bandwidth / seconds[n][-1])
            cache.discard()
    one = statistics.median(seconds[1])
    return [
        {
            "weights": weights,
            "rows": n,
            "milliseconds": round(1e3 * statistics.median(seconds[n]), 2),
            "fraction_of_ceiling": round(statistics.median(shares[n]), 3),
            "of_one_row": round(statistics.median(seconds[n]) / one, 3),
        }
        for n in ROWS
    ]


def attention(folder: Path, ceiling: Ceiling, rounds: int) -> dict[str, Any]:
    """How fast one row reads a long cache: the layers with it, less the layers without."""
    target = load(folder, draft="none", weights="mapped").target
    config = target.config
    cache, short = target.new_cache(), read_prompt(target, 2)
    writer = new_writer()
    cache.place(range(-1, CONTEXT - 1))
    generator = torch.Generator().manual_seed(0)
    for layer in range(config.num_layers):
        values = torch.randn((CONTEXT, config.num_kv_heads, config.head_dim), generator=generator)
        cache.write(layer, range(CONTEXT), values, values, writer)
    cache.commit(range(CONTEXT), writer)
    size = 2 * 2 * CONTEXT * config.num_layers * config.num_kv_heads * config.head_dim
    shares, seconds = [], []
    for _ in range(rounds):
        bandwidth = ceiling.measure()
        took = _layers(target, cache) - _layers(target, short)
        seconds.append(took)
        shares.append(size / took / bandwidth)
    return {
        "context": CONTEXT,
        "cache_bytes": size,
        "milliseconds": round(1e3 * statistics.median(seconds), 2),
        "fraction_of_bandwidth": round(statistics.median(shares), 3),
    }


def choices(isa: str, rounds: int) -> list[dict[str, Any]]:
    """Seconds of one choice from a row of logits, and of the best 16, with noise, on one thread."""
    results = []
    for vocabulary in VOCABULARIES:
        logits = (3 * np.random.default_rng(0).standard_normal(vocabulary)).astype(np.float32)
        for cut, warp in WARPS.items():
            for count in (1, 16):
                seconds = []
                for step in range(20 * rounds):
                    noise = Noise(0, 0, step)
                    began = perf_counter()
                    native.rank(logits, warp, noise, count, isa)
                    seconds.append(perf_counter() - began)
                took = round(1e6 * statistics.median(seconds), 1)
                size = {"kernel": "choose", "isa": isa, "vocabulary": vocabulary}
                results.append({**size, "cut": cut, "count": count, "microseconds": took})
    return results


def prefill(folder: Path, lengths: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    """Reading a prompt beside transformers on the same weights."""
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ours = load(folder, draft="none", weights="copied")
    results = []
    for length in lengths:
        prompt = [7 + i % 1000 for i in range(length)]
        ids = torch.tensor([prompt])

        def own(prompt: list[int] = prompt) -> None:
            ours.generate(prompt, max_new_tokens=1, ignore_eos=True)

        def other(ids: torch.Tensor = ids) -> None:
            with torch.inference_mode():
                theirs(ids, use_cache=True, logits_to_keep=1)

        seconds = _in_turn(own, other, rounds)
        results.append({"tokens": length, "seconds": seconds[0], "transformers_seconds": seconds[1]})
    return results


def one_token(folder: Path, rounds: int) -> dict[str, Any]:
    """Plain decoding beside transformers: seconds a token after a prompt of 100, the prompt's time taken off."""
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ours = load(folder, draft="none", weights="mapped")
    prompt, seconds = [7] * 100, []
    for count in (1, 9):

        def own(count: int = count) -> None:
            ours.generate(prompt, max_new_tokens=count, ignore_eos=True)

        def other(count: int = count) -> None:
            ids = torch.tensor([prompt])
            with torch.inference_mode():
                theirs.generate(
                    ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=None
                )

        seconds.append(_in_turn(own, other, rounds))
    few, many = seconds
    return {
        "seconds_a_token": round((many[0] - few[0]) / 8, 4),
        "transformers_seconds_a_token": round((many[1] - few[1]) / 8, 4),
    }


def _in_turn(own: Callable[[], None], other: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Median seconds of both, which go first in turn."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        order = ((own, seconds[0]), (other, seconds[1]))
        for run, into in order if number % 2 else order[::-1]:
            began = perf_counter()
            run()
            into.append(perf_counter() - began)
    return round(statistics.median(seconds[0]), 3), round(statistics.median(seconds[1]), 3)


def loading(folder: Path, size: int) -> list[dict[str, Any]]:
    """Seconds of loading and resident memory after some tokens, each in a process of its own, after its imports."""
    results = []
    for weights in ("mapped", "copied"):
        for _ in range(2):  # the first one fills the page cache
            command = [sys.executable, "-c", LOADING, str(folder), weights]
            seconds, resident = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-2:]
        beyond = round((int(resident) - size) / 1e6)
        results.append(
            {"weights": weights, "seconds": round(float(seconds), 3), "megabytes_beyond_the_weights": beyond}
        )
    return results


def _layers(target: Decoder, cache: Cache) -> float:
    rows = chain(cache, [5])
    hidden = target.embed([5])
    began = perf_counter()
    target.layers(hidden, rows)
    took = perf_counter() - began
    cache.discard()
    return took


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="What passes cost beside what memory allows.")
    parser.add_argument(
        "--layers", type=int, default=SHAPE["num_hidden_layers"], help="of the model that is measured (%(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=9, help="how often each pass is measured; medians are given (%(default)s)"
    )
    parser.add_argument(
        "--prefill",
        type=int,
        nargs="*",
        default=[512, 4096],
        metavar="TOKENS",
        help="lengths of prompts, read beside transformers (512 4096); none leaves it out",
    )
    carry_out("passes", parser, _measure)


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    if min(args.layers, args.rounds, *args.prefill) < 1:
        raise InputError("--layers, --rounds or --prefill has a number below 1; expected 1 or more")
    threads, isa = torch.get_num_threads(), native.isa()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write_checkpoint(folder, args.layers)
        record: dict[str, Any] = {
            "model": {**SHAPE, "num_hidden_layers": args.layers, "bytes": size},
            "promise": "exact",
            "threads": threads,
            "isa": isa,
        }
        record["loading"] = loading(folder, size)
        ceiling = Ceiling(threads, isa)
        record["passes"] = [
            row for way in ("mapped", "copied") for row in passes(folder, way, ceiling, size, args.rounds)
        ]
        gc.collect()
        record["attention"] = attention(folder, ceiling, args.rounds)
        record["choices"] = choices(isa, args.rounds)
        record["read_bandwidth_gb_per_s"] = round(ceiling.measure() / 1e9, 2)
        del ceiling
        gc.collect()
        record["plain_decoding"] = one_token(folder, 3)
        record["prefill"] = prefill(folder, tuple(args.prefill), 3) if args.prefill else []
    return record


if __name__ == "__main__":
    main()
