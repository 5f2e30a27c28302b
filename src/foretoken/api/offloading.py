"""Loads a model under a bound of memory: looks into its files, plans, and loads what the plan keeps in memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
import torch

from foretoken.api import on_gpu
from foretoken.api.drafter_memory import memory_of_drafter
from foretoken.common.limits import memory_left
from foretoken.common.progress import size
from foretoken.decoder.config import DecoderConfig, read_config
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.homes.huge_pages import size_of
from foretoken.decoder.homes.parts import PARTS
from foretoken.decoder.low_bit import size_in
from foretoken.decoder.memory import FIRST_CAPACITY
from foretoken.decoder.native_pass import PIECE
from foretoken.decoder.on_device import bytes_copied, load_to_device
from foretoken.decoder.shapes import EMBEDDING, HEAD, OUTPUT
from foretoken.decoder.shards import weight_files
from foretoken.decoder.streaming import Reading, Stored, load_streamed, stream_of
from foretoken.decoder.weights import Weights
from foretoken.drafters.recipe import Level
from foretoken.drafters.tree import TreeDrafter
from foretoken.errors import SettingError
from foretoken.kernels import gpu, native
from foretoken.offload.plan import Needs, Plan, fit, reading, spread
from foretoken.protocol.roles import Drafter, Verifier
from foretoken.settings.load import ALL, LoadSettings
from foretoken.verification.meanwhile import MeanwhileVerifier

log = logging.getLogger(__name__)

# drafts for layers that are read in each pass, the best first: with 4, 3 or 2 bits for a weight of a substitute
SUBSPEC = ("subspec,lookup", "subspec:format=int3,lookup", "subspec:format=int2,lookup")
_CONTEXT = 1024  # tokens of a text, if the memory is bounded and nothing else was asked for
_GROWS = 24 << 20  # bytes that Python, its libraries and its threads still take after the tokenizer is loaded
_LOGITS = 64  # rows of logits that are computed at once
_RESULTS = 32 * 16 * 4  # bytes of a row in each of a thread's two rooms for results, at most
_SHARE = 32  # a pass over a prompt takes at most this part of the bound
SHORT = 256  # rows of a prompt that one pass reads under the tightest bound, if nothing else was asked for
_LONGEST = 4096  # rows of a prompt that one pass reads, if there is no bound


@dataclass(frozen=True)
class Offloading:
    """A checkpoint, the plan for it, and the levels of the draft. Substitutes share with the model the layers that
    stay in memory."""

    stored: Stored
    plan: Plan
    levels: list[Level]

    @property
    def draft_bytes(self) -> int:
        """What a pass of the substitutes reads from memory if layers are read: the substitutes, the layers that stay,
        and the output layer."""
        kinds = self.stored.kinds
        head = {name: kind for name, kind in kinds.items() if name.startswith(f"{HEAD}.weight")}
        return self.plan.kept + self.plan.substitutes + size_of(head or {EMBEDDING: kinds[f"{EMBEDDING}.weight"]})

    def load(self, settings: LoadSettings) -> Weights:
        """The weights: some in memory, the others read in each pass."""
        if settings.device != "cpu":
            device, verify = torch.device(settings.device), settings.verify_weights
            return load_to_device(self.stored, self.plan.parts, self.plan.buffer, device, verify=verify)
        assert settings.disk_bandwidth is None or isinstance(settings.disk_bandwidth, int)
        return load_streamed(
            self.stored,
            self.plan.parts,
            self.plan.buffer,
            reading=Reading(settings.disk_bandwidth, settings.verify_weights),
            rows=any(
                level.format is not None and not (level.recipe.substitutes or level.is_trained) for level in self.levels
            ),
            threads=settings.threads,
        )


def bounded(config: DecoderConfig, settings: LoadSettings) -> DecoderConfig:
    """The configuration with the context that the settings allow. Raises SettingError for one that is longer than the
    model's."""
    if settings.context is not None and settings.context > config.context_length:
        raise SettingError(f"context is {settings.context}, and the model has {config.context_length}; leave it out")
    context = settings.context or (_CONTEXT if settings.memory is not None else config.context_length)
    return replace(config, context_length=min(context, config.context_length))


def room(config: DecoderConfig, levels: Sequence[Level], settings: LoadSettings) -> int | None:
    """The positions of the model's caches under a bound of memory: those of a whole text, and of the rows of a pass.
    None without a bound: then caches grow."""
    return None if settings.memory is None else config.context_length + _rows(levels)


def with_long_chunks(config: DecoderConfig, settings: LoadSettings) -> LoadSettings:
    """The settings, with as many rows of a prompt in a pass as its memory allows, unless they ask for another number:
    every pass reads the layers from the disk."""
    if settings.prefill_chunk != LoadSettings.prefill_chunk:
        return settings
    most = min(config.context_length, settings.rows_per_pass, _LONGEST)
    if settings.memory is not None:
        whole, piece = _row_bytes(config) if settings.device == "cpu" else (on_gpu.row_bytes(config), 0)
        most = min(most, (int(settings.memory) // _SHARE - piece * PIECE) // whole)
    return replace(settings, prefill_chunk=max(most, SHORT))


def planned(folder: Path, config: DecoderConfig, levels: Sequence[Level], settings: LoadSettings) -> Offloading:
    """The plan for a model. To be called when all libraries are loaded: the memory in use now is part of the bound, but
    for that of a GPU.

    Raises SettingError for a bound within which the model cannot run.
    """
    if settings.device != "cpu":
        on_gpu.expect_possible(config, levels, settings)
    low_bit = [level.name for level in levels if level.format is not None]
    if low_bit and settings.memory is not None and native.module() is None and settings.device == "cpu":
        raise SettingError(
            f"without the native engine no bound of memory holds with draft {low_bit[0]!r}: PyTorch makes bf16 of "
            "low-bit weights; use draft 'lookup' or 'none' (foretoken doctor says why there is no native engine)"
        )
    stored = Stored.of(folder, config)
    needs = _needs(stored, config, levels, settings)
    share = 1.0 if settings.device == "cpu" else on_gpu.SHARE
    if settings.stream_layers is not None:
        count = config.num_layers if settings.stream_layers == ALL else int(settings.stream_layers)
        if count > config.num_layers:
            raise SettingError(f"stream_layers is {count}, and the model has {config.num_layers} layers")
        plan = reading(needs, spread(count, config.num_layers))
        if settings.memory is not None and plan.total > int(settings.memory) * share:
            raise SettingError(
                f"memory is {size(int(settings.memory))}, and with {count} layers read in each pass "
                f"{size(plan.total)} are needed; leave stream_layers out"
            )
    else:
        assert isinstance(settings.memory, int)
        plan = fit(needs, settings.memory, share)
    if settings.device != "cpu":
        on_gpu.expect_host_memory(plan, settings.device)
    return Offloading(stored, plan, _sharing(levels, plan.streamed, config.num_layers))


def larger_than_memory(folder: Path) -> tuple[int, int] | None:
    """The bytes of weights that do not fit into memory, and the bytes that are left there. None if they fit."""
    weights, left = sum(path.stat().st_size for path in weight_files(folder)), memory_left()
    return (weights, left) if left is not None and weights > left else None


def warn_if_larger_than_memory(folder: Path, name: str) -> None:
    """Log a warning for weights that do not fit into memory: every token would wait for the disk."""
    large = larger_than_memory(folder)
    if large is not None:
        weights, left = large
        log.warning(
            "the weights of %s, %s, do not fit into the %s of memory that are left, so each token would wait for the "
            "disk; with --memory %.1fGiB (in Python memory=...) drafts make up for that: see `foretoken plan`",
            *(name, size(weights), size(left), 0.9 * left / 2**30),
        )


def can_substitute(config: DecoderConfig, device: str) -> bool:
    """Whether low-bit substitutes can be faster than the layers."""
    return config.low_bit is None and (native.module() is not None if device == "cpu" else gpu.runs_on(device))


def sharing(levels: Sequence[Level], weights: Weights) -> list[Level]:
    """The levels of a draft for a model that is loaded. Substitutes share the layers that are always in memory."""
    streamed = {part // len(PARTS) for part, home in enumerate(weights.homes) if home is not None}
    return _sharing(levels, tuple(streamed), len(weights.layers))


def _sharing(levels: Sequence[Level], streamed: Sequence[int], count: int) -> list[Level]:
    shared = tuple(layer for layer in range(count) if layer not in streamed) if streamed else ()
    return [
        replace(level, options={**level.options, "own-layers": shared}) if level.recipe.substitutes else level
        for level in levels
    ]


def drafting_meanwhile(verifier: Verifier, target: Decoder, drafter: Drafter) -> Verifier:
    """The verifier, with drafting while its passes wait for the disk, if they do and the drafter can go on."""
    stream = stream_of(target.weights)
    if stream is None or target.because is not None or not isinstance(drafter, TreeDrafter) or not drafter.can_go_on:
        return verifier
    return MeanwhileVerifier(verifier, lambda: stream.waiting, lambda: stream.traffic.waited, drafter.go_on)


def memory_in_use() -> int:
    """The bytes of memory that this process uses now."""
    used: int = psutil.Process().memory_info().rss
    return used


def memory_of_libraries() -> int:
    """The bytes that this process uses now, and will use without a model. To be called when all libraries are
    loaded."""
    return memory_in_use() + _GROWS


def _needs(stored: Stored, config: DecoderConfig, levels: Sequence[Level], settings: LoadSettings) -> Needs:
    on_cpu = settings.device == "cpu"
    sized = size_in if on_cpu else on_gpu.size_in
    substitutes = [0] * config.num_layers
    copies = loading = 0
    for level in levels:
        if level.format is not None and level.recipe.substitutes:
            each = [sized(level.format, config, without) for without in _all_but_one(config)]
            substitutes = [one + other for one, other in zip(substitutes, each, strict=True)]
        elif level.is_trained:
            positions = config.context_length + _rows(levels)
            stays, loading = memory_of_drafter(level, config, positions, stored.dtype)
            copies += stays
        elif level.format is not None:
            its = config if level.is_copy else read_config(_folder(level))
            copies += sized(level.format, its, level.own_layers)
        elif level.has_decoder:
            copies += sum(path.stat().st_size for path in weight_files(_folder(level)))
    libraries = (
        {"Python and its libraries": memory_of_libraries()} if on_cpu else {"CUDA and its libraries": on_gpu.CUDA}
    )
    rows = max(settings.prefill_chunk, _rows(levels))
    fixed = {
        **libraries,
        "embedding, output layer, norms": size_of(stored.besides),
        "keys and values": _cache_bytes(stored, config, levels),
        "a pass": _pass_bytes(config, levels, rows) if on_cpu else on_gpu.pass_bytes(config, levels, rows),
    }
    # while a draft is loaded, what texts will need is not in use yet
    fixed["drafts"] = copies + max(0, loading - fixed["keys and values"] - fixed["a pass"])
    parts = range(stored.parts)
    return Needs(
        tuple(stored.bytes_of(part) for part in parts),
        tuple((stored.bytes_read if on_cpu else partial(bytes_copied, stored))(part) for part in parts),
        tuple(substitutes),
        fixed,
    )


def _all_but_one(config: DecoderConfig) -> list[list[int]]:
    """For each layer all the others, and the output layer."""
    every = range(config.num_layers)
    return [[OUTPUT, *(other for other in every if other != layer)] for layer in every]


def _folder(level: Level) -> Path:
    assert level.folder is not None
    return level.folder


def _rows(levels: Sequence[Level]) -> int:
    """The most rows of a pass that are not text yet: those of a draft."""
    return max([1, *(level.budget.rows + 1 for level in levels)])


def _cache_bytes(stored: Stored, config: DecoderConfig, levels: Sequence[Level]) -> int:
    """Keys and values of a whole text, and of the rows of a draft: the model's, and those of each draft's decoder."""
    position = config.bytes_of_position(stored.dtype.itemsize)
    rows = _rows(levels)
    # what a draft's decoder has computed and is not decided yet, in memory that grows to twice its size; a tree that
    # goes on while it is checked hands it on to the next
    views = sum(2 * (1 + level.recipe.substitutes) for level in levels if level.has_decoder and not level.is_trained)
    return position * (config.context_length + rows + views * max(rows, FIRST_CAPACITY))


def _row_bytes(config: DecoderConfig) -> tuple[int, int]:
    """What a row takes in a pass, in float32 numbers: for as long as the pass runs, and while its piece runs."""
    c = config
    queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    return 4 * (c.hidden_size + c.intermediate_size), 4 * (
        2 * c.hidden_size + 2 * queries + 2 * keys + c.intermediate_size
    )


def _pass_bytes(config: DecoderConfig, levels: Sequence[Level], rows: int) -> int:
    """What is computed in a pass: numbers for each row, and rows of logits."""
    whole, piece = _row_bytes(config)
    logits = 2 * 4 * _LOGITS * config.vocab_size
    # a draft's decoder reads what was accepted, and expands a tree's nodes: some dozens of rows
    drafts = sum(level.has_decoder for level in levels) * ((whole + piece) * _LOGITS + logits)
    together = min(rows, PIECE)
    results = 2 * torch.get_num_threads() * together * _RESULTS
    return whole * rows + piece * together + results + logits + drafts
