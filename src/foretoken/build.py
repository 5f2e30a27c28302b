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
from foretoken.decoder.low_bit import copy_of, quantised, with_inputs
from foretoken.decoder.native_pass import why_not
from foretoken.decoder.weights import DTYPES, Weights, load_weights
from foretoken.errors import CheckpointError, DraftSpecError, SettingError
from foretoken.formats import Format
from foretoken.ladder import Level, belongs_to_a_format, expect_copies_first, make_ladder, name_levels
from foretoken.model import Model
from foretoken.progress import size
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
    levels = find_levels(levels, folder)
    target, tokenizer = _load_decoder(folder, chosen)
    if target.config.low_bit is not None:
        _warn_if_inflated(f"{model} ({target.config.low_bit.label})", target.weights)
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


def find_levels(levels: list[Level], folder: Path) -> list[Level]:
    """Levels with what the folders of their checkpoints say, before weights are loaded. folder: the target's."""
    found = [_find_level(level, folder) for level in levels]
    expect_copies_first(found)
    return found


def _find_level(level: Level, folder: Path) -> Level:
    if not level.has_decoder or level.is_copy or level.folder is not None:
        return level
    place = resolve(level.name, accept=_read_config)
    its_format = _read_config(place).low_bit
    if its_format is None and level.format is None and "inputs" in level.options:
        raise belongs_to_a_format(level.name, "inputs")
    if its_format is not None and level.format not in (None, its_format):
        raise DraftSpecError(
            f"draft {level.name!r} is in {its_format.label} already, of which no other format is made; leave format "
            "out, or name the model that it was made of"
        )
    is_copy = its_format is not None and beside.is_copy_of(place, folder)
    if not is_copy and "own-cache" in level.options:
        raise DraftSpecError(
            f"draft {level.name!r} is no copy of the model, and has a cache of its own anyhow; leave 'own-cache' out"
        )
    return replace(level, format=its_format or level.format, is_copy=is_copy, folder=place)


def load_level(level: Level, folder: Path, target: Decoder, settings: LoadSettings) -> tuple[Decoder, Tokenizer | None]:
    """The decoder of a draft: another checkpoint, or the target's copy; its tokenizer, where it has one of its own."""
    level = _find_level(level, folder)
    config, weights, tokenizer = target.config, target.weights, None
    if level.folder is None:  # the target's weights, in a format
        assert level.format is not None
        weights = _low_bit(level, level.format, folder, config, weights, settings)
    elif level.is_copy:
        assert level.format is not None
        began = perf_counter()
        found = beside.read(level.folder, config, level.format, settings.threads)
        weights = copy_of(weights, config, found.coded, inputs=_inputs(level))
        _tell(level.called, weights, f"read from {found.folder} ({found.quantiser})", began)
        tokenizer = Tokenizer.load(level.folder)
    elif level.format is None:
        config, weights, tokenizer = _load_checkpoint(level.folder, settings)
    elif _read_config(level.folder).low_bit is None:
        config, weights, tokenizer = _load_checkpoint(level.folder, replace(settings, weights="mapped"))
        weights = _low_bit(level, level.format, level.folder, config, weights, settings)
    else:
        began = perf_counter()
        config, weights, tokenizer = _load_checkpoint(level.folder, settings)
        weights = with_inputs(weights, _inputs(level))
        _tell(level.called, weights, f"read from {level.folder}", began)
    return _decoder(config, weights, settings), tokenizer


def _low_bit(
    level: Level, format: Format, folder: Path, config: DecoderConfig, weights: Weights, settings: LoadSettings
) -> Weights:
    """A copy of weights in a format: read, where one lies beside the folder that they come from, otherwise made."""
    began = perf_counter()
    called = format.label if level.is_copy else f"{level.called} in {format.label}"
    found = beside.find(folder, config, format, settings.threads)
    if found is not None:
        made = copy_of(weights, config, found.coded, inputs=_inputs(level))
        how = f"read from {found.folder} ({found.quantiser})"
    else:
        other = beside.find_other(folder, format)
        if other is not None:
            spec = other[1].label if level.is_copy else f"{level.name}:format={_as_options(other[1])}"
            log.info("%s is made anew, and %s is there: the draft %r reads it", called, other[0], spec)
        rows = weights
        if weights.layouts != {"rows"}:  # of an instruction level's own layout nobody else can make anything
            rows = _load_weights(folder, config, replace(settings, weights="mapped"))
        made = quantised(rows, config, format, inputs=_inputs(level), share=weights, threads=settings.threads)
        how = "cast"
    _tell(called, made, how, began)
    return made


def draft_inputs() -> str:
    """What rows are rounded to before they meet a draft's low-bit weights, unless the draft says."""
    return "int8"


def _inputs(level: Level) -> str:
    inputs: str = level.options.get("inputs", draft_inputs())
    return inputs


def _as_options(format: Format) -> str:
    return f"{format.name}:group={format.group}" if format.has_zeros else format.name


def _tell(called: str, weights: Weights, how: str, began: float) -> None:
    """What a low-bit draft is and how long that took."""
    bytes_read = sum(linear.nbytes for linear in weights.linears)
    log.info("%s: %s, %s in %.1f s", called, size(bytes_read), how, perf_counter() - began)
    _warn_if_inflated(called, weights)


def _warn_if_inflated(called: str, weights: Weights) -> None:
    why = why_not(weights)
    if why is not None:
        log.warning(
            "%s runs in PyTorch (%s), which makes bf16 of low-bit weights: it is no smaller and no faster than the "
            "weights that it was made of",
            called,
            why,
        )


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
