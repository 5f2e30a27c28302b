"""What a model's passes cost beside what memory allows: `python -m foretoken.bench.passes --out results/NAME.json`.

The model is a Llama of the 1b shape with random weights, whose values do not affect speed. Measured are passes of 1 to
32 rows with mapped and with copied weights, attention at 8,192 tokens, loading, prefill beside transformers on the same
weights, and a choice from a row of logits. Every share of the bandwidth is of a bandwidth measured beside it, and what
is compared runs in turn.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from foretoken.api.build import load
from foretoken.bench.ceilings import Ceiling
from foretoken.bench.script import carry_out
from foretoken.bench.turns import in_turn, some
from foretoken.decoder.cache import Cache, new_writer
from foretoken.decoder.config import parse_config
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.decoder.shapes import expected_shapes
from foretoken.errors import InputError
from foretoken.kernels import native
from foretoken.kernels.choosing import Noise, Warp
from foretoken.prices.measuring import clocked, read_prompt, seconds_of

# the body of Llama 3.2 1B, with a small vocabulary so that the body's cost dominates
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
    """Write a checkpoint of the shape with random weights; returns the bytes of its weights."""
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


def seconds_on(cache: Cache, run: Callable[..., object], *given: object) -> float:
    """Seconds of a call that places rows behind a cache; the rows are discarded afterwards."""
    seconds = clocked(partial(run, *given))
    cache.discard()
    return seconds


def one_pass(decoder: Decoder, cache: Cache, rows: int) -> float:
    """Seconds of a pass, its rows' choices included."""
    return seconds_on(cache, decoder.run, chain(cache, [5] * rows))


def passes(folder: Path, weights: str, ceiling: Ceiling, size: int, rounds: int) -> list[dict[str, Any]]:
    """Times of whole passes after a short prompt, their rows' choices included."""
    target = load(folder, draft="none", weights=weights).target
    size -= target.weights.embedding.nbytes  # a pass reads only one row of the embedding per token
    cache = read_prompt(target, 100)
    timed = in_turn({n: some(partial(one_pass, target, cache, n)) for n in ROWS}, rounds, ceiling)
    one = timed[1].median
    return [
        {"weights": weights, "rows": n, **its.figures(size), "of_one_row": round(its.median / one, 3)}
        for n, its in timed.items()
    ]


def random_cache(decoder: Decoder, length: int) -> Cache:
    """A cache with so many positions that nobody has read."""
    config, cache, writer = decoder.config, decoder.new_cache(), new_writer()
    cache.place(range(-1, length - 1))
    generator = torch.Generator().manual_seed(0)
    for layer in range(config.num_layers):
        values = torch.randn((length, config.num_kv_heads, config.head_dim), generator=generator)
        cache.write(layer, range(length), values, values, writer)
    cache.commit(range(length), writer)
    return cache


def attention(folder: Path, ceiling: Ceiling, rounds: int) -> dict[str, Any]:
    """How fast one row reads a long cache: the layers' time with it, minus their time with a short one."""
    target = load(folder, draft="none", weights="mapped").target
    cache, short = random_cache(target, CONTEXT), read_prompt(target, 2)
    size = CONTEXT * target.config.bytes_of_position(cache.dtype.itemsize)
    timed = in_turn({0: lambda: [_layers(target, cache) - _layers(target, short)]}, rounds, ceiling)
    return {"context": CONTEXT, "cache_bytes": size, **timed[0].figures(size, "fraction_of_bandwidth")}


def choices(isa: str, rounds: int) -> list[dict[str, Any]]:
    """Microseconds of one choice from a row of logits, and of the best 16, with noise, on one thread."""
    results = []
    for vocabulary, (cut, warp), count in product(VOCABULARIES, WARPS.items(), (1, 16)):
        logits = (3 * np.random.default_rng(0).standard_normal(vocabulary)).astype(np.float32)
        noises = [Noise(0, 0, step) for step in range(20 * rounds)]
        seconds = [clocked(partial(native.rank, logits, warp, noise, count, isa)) for noise in noises]
        took = round(1e6 * statistics.median(seconds), 1)
        about = {"kernel": "choose", "isa": isa, "vocabulary": vocabulary}
        results.append({**about, "cut": cut, "count": count, "microseconds": took})
    return results


def prefill(folder: Path, lengths: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Seconds to read a prompt, beside transformers on the same weights."""
    ours, theirs = load(folder, draft="none", weights="copied"), _transformers(folder)
    forward = torch.inference_mode()(theirs.forward)
    results = []
    for length in lengths:
        prompt = [7 + i % 1000 for i in range(length)]
        own = partial(ours.generate, prompt, max_new_tokens=1, ignore_eos=True)
        other = partial(forward, torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
        seconds = seconds_of({"seconds": own, "transformers_seconds": other}, rounds)
        results.append({"tokens": length, **{name: round(its, 3) for name, its in seconds.items()}})
    return results


def one_token(folder: Path, rounds: int) -> dict[str, Any]:
    """Plain decoding beside transformers: seconds per token after a prompt of 100 tokens, without the prompt's time."""
    ours, theirs = load(folder, draft="none", weights="mapped"), _transformers(folder)
    ids = torch.full((1, 100), 7)
    theirs.generation_config.pad_token_id, theirs.generation_config.eos_token_id = 0, None
    generate = torch.inference_mode()(theirs.generate)
    runs: dict[tuple[str, int], Callable[[], object]] = {}
    for count in (1, 9):
        counts = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
        own = partial(ours.generate, ids[0].tolist(), max_new_tokens=count, ignore_eos=True)
        runs["seconds_a_token", count] = own
        runs["transformers_seconds_a_token", count] = partial(generate, ids, **counts)
    seconds = seconds_of(runs, rounds)
    return {name: round((seconds[name, 9] - seconds[name, 1]) / 8, 4) for name, count in runs if count == 1}


def _transformers(folder: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def loading(folder: Path, size: int) -> list[dict[str, Any]]:
    """Seconds of loading, and resident memory after some tokens; each in its own process, after its imports."""
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
    return seconds_on(cache, target.layers, target.embed([5]), chain(cache, [5]))


@contextmanager
def checkpoint(layers: int) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """A context that holds a checkpoint: its folder, the bytes of its weights, and what a record says about both."""
    with tempfile.TemporaryDirectory() as name:
        size = write_checkpoint(Path(name), layers)
        model = {**SHAPE, "num_hidden_layers": layers, "bytes": size}
        yield Path(name), size, {"model": model, "threads": torch.get_num_threads(), "isa": native.isa()}


def add_layers_and_rounds(parser: argparse.ArgumentParser) -> None:
    """Add the options of measurements on such a checkpoint."""
    layers = SHAPE["num_hidden_layers"]
    parser.add_argument("--layers", type=int, default=layers, help="of the model that is measured (%(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each; medians are given (%(default)s)")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="What passes cost beside what memory allows.")
    add_layers_and_rounds(parser)
    lengths = "lengths of prompts, read beside transformers (512 4096); none leaves it out"
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 4096], metavar="TOKENS", help=lengths)
    carry_out("passes", parser, _measure)


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    if min(args.layers, args.rounds, *args.prefill) < 1:
        raise InputError("--layers, --rounds or --prefill has a number below 1; expected 1 or more")
    with checkpoint(args.layers) as (folder, size, about):
        record = {**about, "promise": "exact", "loading": loading(folder, size)}
        ceiling = Ceiling(about["threads"], about["isa"])
        ways = ("mapped", "copied")
        record["passes"] = [row for way in ways for row in passes(folder, way, ceiling, size, args.rounds)]
        gc.collect()
        record["attention"] = attention(folder, ceiling, args.rounds)
        record["choices"] = choices(about["isa"], args.rounds)
        record["read_bandwidth_gb_per_s"] = round(ceiling.measure() / 1e9, 2)
        del ceiling
        gc.collect()
        record["plain_decoding"] = one_token(folder, 3)
        record["prefill"] = prefill(folder, args.prefill, 3) if args.prefill else []
    return record


if __name__ == "__main__":
    main()
