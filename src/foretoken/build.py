"""Settings become objects here, and in `foretoken.ladder`, which makes the drafters; nowhere else."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from foretoken.copies import beside
from foretoken.decoder.caches import Caches
from foretoken.decoder.config import DecoderConfig, parse_config, read_json
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.low_bit import copy_of, quantised
from foretoken.decoder.native_pass import why_not
from foretoken.decoder.weights import DTYPES, Weights, load_weights
from foretoken.errors import CheckpointError, SettingError
from foretoken.formats import Format
from foretoken.kernels import native
from foretoken.ladder import Level, make_ladder, name_levels
from foretoken.model import Model
from foretoken.sampling.samplers import Samplers
from foretoken.settings import LoadSettings
from foretoken.source import DEFAULT_MODEL, resolve
from foretoken.text import Tokenizer
from foretoken.verification.local import LocalVerifier

log = logging.getLogger(__name__)


def load(model: str | Path = DEFAULT_MODEL, **settings: Any) -> Model:
    """Load a checkpoint of the Llama family, ready to generate.

    model: a folder, a hub id (owner/name), or an embedded model (stdlib-7m, stdlib-1m). settings: the fields of
    `foretoken.LoadSettings`, e.g. draft="lookup", dtype="float32".
    """
    chosen = LoadSettings.of(settings)
    levels = name_levels(chosen)  # before the model: a wrong name should not cost a load
    _expect_device(chosen.device)
    folder = resolve(model, chosen.revision, accept=_read_config)
    target, tokenizer = _load_decoder(folder, chosen)
    caches = Caches()
    samplers = Samplers(tokenizer)
    drafter = make_ladder(
        levels,
        target,
        samplers,
        rule=chosen.rule,
        tokenizer=tokenizer,
        load=lambda level: load_level(level, folder, target, chosen),
        caches=caches,
    )
    verifier = LocalVerifier(
        target,
        caches,
        needs=drafter.needs,
        prefill_chunk=chosen.prefill_chunk,
        samplers=samplers.target,
        rule=chosen.rule,
    )
    return Model(
        target,
        tokenizer,
        verifier,
        drafter,
        num_speculative_tokens=levels[0].tokens,
        levels=[level.called for level in levels if level.name != "none"],
        end_tokens=find_end_tokens(folder, target.config, tokenizer),
        name=str(model),
        folder=folder,
        settings=chosen,
    )


def load_level(level: Level, folder: Path, target: Decoder, settings: LoadSettings) -> tuple[Decoder, Tokenizer | None]:
    """The decoder of a draft: another checkpoint, or the target's copy; its tokenizer, where it is another's."""
    if level.is_copy:
        config, weights, tokenizer = target.config, target.weights, None
    else:
        plain = settings if level.format is None else replace(settings, weights="mapped")
        folder = resolve(level.name, accept=_read_config)
        config, weights, tokenizer = _load_checkpoint(folder, plain)
    if level.format is not None:
        weights = _low_bit(level, level.format, folder, config, weights, settings)
    return _decoder(config, weights, settings), tokenizer


def _low_bit(
    level: Level, format: Format, folder: Path, config: DecoderConfig, weights: Weights, settings: LoadSettings
) -> Weights:
    """A copy of weights in a format: read, where one lies beside the folder that they come from, otherwise made."""
    began = perf_counter()
    inputs = level.options.get("inputs", draft_inputs())
    found = beside.find(folder, config, format)
    if found is not None:
        made = copy_of(weights, config, found.coded, inputs=inputs)
        how = f"read from {found.folder} ({found.quantiser})"
    else:
        rows = weights
        if weights.layouts != {"rows"}:  # of an instruction level's own layout nobody else can make anything
            rows = _load_weights(folder, config, replace(settings, weights="mapped"))
        made = quantised(rows, config, format, inputs=inputs, share=weights)
        how = "cast"
    size = sum(linear.nbytes for linear in made.linears)
    called = format.label if level.is_copy else f"{level.called} in {format.label}"
    log.info("%s: %.3g MB, %s in %.1f s", called, size / 1e6, how, perf_counter() - began)
    why = why_not(made)
    if why is not None:
        log.warning(
            "%s is no faster than the weights that it is a copy of, because it runs in PyTorch (%s)", called, why
        )
    return made


def draft_inputs() -> str:
    """What rows are rounded to before they meet a draft's low-bit weights. AMX multiplies bf16 as fast as memory gives
    weights; other levels need bytes for that."""
    fast = native.module() is not None and native.level().startswith("amx")
    return "bf16" if fast else "int8"


def _load_decoder(folder: Path, settings: LoadSettings) -> tuple[Decoder, Tokenizer | None]:
    config, weights, tokenizer = _load_checkpoint(folder, settings)
    return _decoder(config, weights, settings), tokenizer


def _load_checkpoint(folder: Path, settings: LoadSettings) -> tuple[DecoderConfig, Weights, Tokenizer | None]:
    config = _read_config(folder)
    tokenizer = Tokenizer.load(folder)
    if tokenizer is not None and tokenizer.size > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer in {folder} has {tokenizer.size} tokens and the model {config.vocab_size}; "
            "they do not belong together: fetch both from one place"
        )
    return config, _load_weights(folder, config, settings), tokenizer


def _load_weights(folder: Path, config: DecoderConfig, settings: LoadSettings) -> Weights:
    return load_weights(
        folder,
        config,
        dtype=DTYPES.get(settings.dtype),
        device=settings.device,
        copy=settings.weights == "copied",
        threads=settings.threads,
    )


def _decoder(config: DecoderConfig, weights: Weights, settings: LoadSettings) -> Decoder:
    # "auto" asks for "exact" and takes what there is: `target.promise`
    asked = "algorithmic" if settings.promise == "algorithmic" else "exact"
    return Decoder(config, weights, threads=settings.threads, promise=asked)


def _read_config(folder: Path) -> DecoderConfig:
    return parse_config(read_json(folder / "config.json"))


def find_end_tokens(folder: Path, config: DecoderConfig, tokenizer: Tokenizer | None) -> frozenset[int]:
    """The end tokens: from generation_config.json, else config.json, else the tokenizer. May be several, or none."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            found = read_json(folder / name).get("eos_token_id")
            if found is not None:
                ids = found if isinstance(found, list) else [found]
                if not all(isinstance(i, int) and 0 <= i < config.vocab_size for i in ids):
                    raise CheckpointError(
                        f"{name}: eos_token_id is {found!r}, expected ids below {config.vocab_size}; correct the file"
                    )
                return frozenset(ids)
    if tokenizer is not None and tokenizer.end_token is not None:
        return frozenset([tokenizer.end_token])
    return frozenset()


def _expect_device(device: str) -> None:
    if device == "cpu":
        return
    import torch

    number = int(device.partition(":")[2] or 0)
    if not torch.cuda.is_available() or number >= torch.cuda.device_count():
        raise SettingError(f"device is {device!r}, but PyTorch sees no such GPU here; use cpu")
