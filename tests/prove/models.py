"""What is proved about: random tiny models of every family, the embedded models, and others by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from foretoken.common.source import resolve
from foretoken.decoder.config import DecoderConfig, parse_config, read_json
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.homes.huge_pages import copied as copies
from foretoken.decoder.loading import load_weights
from foretoken.decoder.low_bit import cast, copy_of, dequantised, quantised_linears
from foretoken.decoder.shapes import expected_shapes
from foretoken.decoder.weights import Weights, assemble, repacked
from foretoken.formats import Format, format_of
from foretoken.formats.weight import QuantisedWeight
from tests.tiny import random_tensors, tiny_config

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
INTEGERS = ("int8", *(f"int{bits}-g{group}" for bits in (4, 3, 2) for group in (32, 64, 128)))
EMBEDDED = ("stdlib-1m", "stdlib-7m")

# one row a way in which members of the family differ; sizes are drawn
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, tied": {"tie_word_embeddings": True},
    "llama, biases": {"attention_bias": True, "mlp_bias": True},
    "llama, one key head": {"num_key_value_heads": 1},
    "llama, a key head a query head": {"num_key_value_heads": 4},
    "llama, llama3 rope": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "mistral, window": {"model_type": "mistral", "sliding_window": 19},
    "qwen2": {"model_type": "qwen2"},
    "qwen2, window in upper layers": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 11,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3"},
}


@dataclass(frozen=True)
class Subject:
    """A model with its weights in one type, from which decoders of any level and number of threads are made; with its
    linear layers in a low-bit format, if it has one."""

    name: str
    dtype: str
    config: DecoderConfig
    tensors: Mapping[str, torch.Tensor] = field(repr=False)
    format: Format | None = None

    @property
    def kind(self) -> str:
        return self.dtype if self.format is None else f"{self.format.label}, else {self.dtype}"

    @cached_property
    def coded(self) -> dict[str, QuantisedWeight]:
        """The low-bit weights."""
        if self.format is None:
            return {}
        return dict(quantised_linears(assemble(dict(self.tensors), self.config), self.config, self.format))

    def weights(self) -> Weights:
        return assemble(dict(self.tensors), self.config, self.coded)

    def decoder(self, arithmetic: str, threads: int, *, copied: bool = False) -> Decoder:
        weights = self.weights()
        if copied:
            weights = assemble(copies(dict(self.tensors), weights.embedding.dtype), self.config, self.coded)
            weights = repacked(weights, arithmetic.partition(" ")[2], threads)
        return Decoder(self.config, weights, arithmetic=arithmetic, threads=threads)

    def of_values(self, arithmetic: str) -> Decoder:
        """The bf16 model that a low-bit one is."""
        return Decoder(self.config, dequantised(self.weights()), arithmetic=arithmetic, threads=1)

    def low_bit_copy(self, format: Format, inputs: str, target: Decoder) -> Decoder:
        """A copy in a low-bit format, as a draft of a target that is made of this subject."""
        weights = copy_of(target.weights, self.config, cast(self.weights(), self.config, format), inputs=inputs)
        return Decoder(self.config, weights, arithmetic=target.arithmetic, threads=target.threads, codes_places=True)

    def poor_copy(self, noise: float, arithmetic: str) -> Decoder:
        """The same model with noise in its matrices: a draft that is often right."""
        chance = torch.Generator().manual_seed(7)
        spoiled = {}
        for name, tensor in self.tensors.items():
            wide = tensor.float()
            if wide.ndim == 2:
                wide = wide + noise * wide.std() * torch.randn(wide.shape, generator=chance)
            spoiled[name] = wide.to(tensor.dtype)
        return Decoder(self.config, assemble(spoiled, self.config), arithmetic=arithmetic, threads=1)


def tiny(chance: random.Random, formats: tuple[str, ...] = ()) -> Subject:
    """A random tiny model, in one of the formats if there are some, whose next token depends mostly on the last one, so
    that drafts are sometimes right."""
    family = chance.choice(list(FAMILIES))
    config = tiny_config(
        **{
            "vocab_size": chance.choice([131, 257, 509]),
            "hidden_size": chance.choice([24, 32, 56, 64]),
            "head_dim": chance.choice([6, 8, 16, 24, 40, 64]),
            "intermediate_size": chance.choice([40, 41, 64, 100]),
            "num_hidden_layers": chance.choice([2, 3, 4]),
            "max_position_embeddings": 2048,
            **FAMILIES[family],
        }
    )
    dtype = chance.choice(["bf16", *DTYPES])  # bf16 twice: it has most ways to run
    tensors = random_tensors(config, chance.randrange(10**9))
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.mul_(0.15)
    format = format_of(chance.choice(formats)) if formats else None
    typed = {name: t.to(DTYPES[dtype]) for name, t in tensors.items()}
    return Subject(f"tiny {family}", dtype, config, typed, format)


def stored(name: str, chance: random.Random) -> Subject:
    """An embedded model, or one in a folder."""
    folder = resolve(name, None)
    config = parse_config(read_json(folder / "config.json"))
    dtype = chance.choice(["bf16", "fp32"])
    format = chance.choice([None, None, *map(format_of, ("mxfp4", "int4"))])
    weights = load_weights(folder, config, dtype=DTYPES[dtype])
    return Subject(Path(name).name, dtype, config, {n: weights.tensors[n] for n in expected_shapes(config)}, format)


def makers(models: list[str]) -> tuple[list[tuple[str, int, Callable[[random.Random], Subject]]], list[str]]:
    """Names, how often each comes, and how each is made; and the models that are absent."""
    rows: list[tuple[str, int, Callable[[random.Random], Subject]]] = [
        ("tiny", 60, tiny),
        ("tiny mxfp4", 12, partial(tiny, formats=("mxfp4",))),
        ("tiny int", 12, partial(tiny, formats=INTEGERS)),
    ]
    absent = []
    for name, often in _names(models):
        if name in EMBEDDED or Path(name, "config.json").is_file():
            rows.append((Path(name).name, often, partial(stored, name)))
        else:
            absent.append(name)
    return rows, absent


def _names(models: list[str]) -> Iterator[tuple[str, int]]:
    yield from (("stdlib-1m", 6), ("stdlib-7m", 2))
    for name in models:
        yield name, 1
