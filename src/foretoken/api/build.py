"""Settings become objects here, and in `foretoken.drafters.ladder`, which makes the drafters; nowhere else."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from foretoken.api.model import Model
from foretoken.common.files import FilesAsRead
from foretoken.common.progress import size
from foretoken.common.source import DEFAULT_MODEL, resolve
from foretoken.copies import beside
from foretoken.decoder.caches import Caches
from foretoken.decoder.config import DecoderConfig, read_config, read_json
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.loading import DTYPES, load_weights
from foretoken.decoder.low_bit import copy_of, quantised, size_in, with_inputs
from foretoken.decoder.native_pass import why_not
from foretoken.decoder.shards import deciding_files
from foretoken.decoder.weights import Weights
from foretoken.drafters.decoders import in_format
from foretoken.drafters.ladder import find_levels, make_ladder, name_levels
from foretoken.drafters.recipe import Context, Level, LoadedLevel
from foretoken.errors import CheckpointError, SettingError
from foretoken.formats import Format
from foretoken.kernels import forked
from foretoken.sampling.samplers import Samplers
from foretoken.settings.load import LoadSettings
from foretoken.text.tokenizer import Tokenizer, watch_for_stops
from foretoken.verification.local import LocalVerifier
from foretoken.verification.uncached import UncachedVerifier

log = logging.getLogger(__name__)

DRAFT_INPUTS = "int8"  # what rows are rounded to before they meet a draft's low-bit weights, unless the draft says


def load(model: str | Path = DEFAULT_MODEL, **settings: Any) -> Model:
    """Load a checkpoint of the Llama family, ready to generate.

    model: a folder, a hub id (owner/name), or an embedded model (stdlib-7m, stdlib-1m). settings: the fields of
    `foretoken.LoadSettings`, e.g. draft="lookup", dtype="float32".
    """
    chosen = LoadSettings.of(settings)
    levels = name_levels(chosen)  # before the model: a wrong name should not cost a load
    _expect_device(chosen.device)
    folder = resolve(model, chosen.revision, accept=read_config)
    levels = find_levels(levels, folder)
    forked.settle()  # weights may be converted, and copies made
    config = read_config(folder)  # what is no checkpoint is refused as such, not for the files that it lacks
    files = FilesAsRead.note(deciding_files(folder).values())
    target, tokenizer = _load_decoder(folder, chosen, besides=_copies_need(levels, config))
    if target.config.low_bit is not None:
        _warn_if_inflated(f"{model} ({target.config.low_bit.label})", target.weights)
    return _drafting(levels, target, tokenizer, str(model), folder, chosen, files=files)


def _copies_need(levels: list[Level], config: DecoderConfig) -> int:
    """Bytes of memory that low-bit copies will take, made or read. config: the target's."""
    return sum(
        size_in(
            level.format,
            config if level.is_copy or level.folder is None else read_config(level.folder),
            level.own_layers,
        )
        for level in levels
        if level.format is not None
    )


class LoadedAs(NamedTuple):
    """What decides what a level is loaded from. `called` too: no two levels of one ladder share a decoder, whose
    buffers one pass at a time has."""

    called: str
    folder: Path | None
    format: Format | None
    inputs: str
    own_layers: tuple[int, ...] = ()


Loaded = dict[LoadedAs, LoadedLevel]


def with_draft(
    model: Model,
    draft: str,
    *,
    num_speculative_tokens: int | None = None,
    samplers: Samplers | None = None,
    loaded: Loaded | None = None,
    cache: bool | None = None,
) -> Model:
    """Another draft for a model that is loaded: a model with the same weights and tokenizer, and all else of its own.

    draft, num_speculative_tokens: as in `LoadSettings`; its other settings stay. samplers: what the draft guesses with,
    if not with the model's own. loaded: what was loaded for other drafts of this model, which is not loaded again; what
    is, is added. cache: as in `LoadSettings`; None: as the model has it. Raises what `load` raises of a draft, a wrong
    name before anything is loaded.
    """
    cache = model.settings.cache if cache is None else cache
    chosen = replace(model.settings, draft=draft, num_speculative_tokens=num_speculative_tokens, cache=cache)
    levels = find_levels(name_levels(chosen), model.folder)
    return _drafting(
        levels, model.target, model.tokenizer, model.name, model.folder, chosen, samplers, loaded, model.files
    )


def _drafting(
    levels: list[Level],
    target: Decoder,
    tokenizer: Tokenizer | None,
    name: str,
    folder: Path,
    settings: LoadSettings,
    guessing: Samplers | None = None,
    loaded: Loaded | None = None,
    files: FilesAsRead | None = None,
) -> Model:
    """A model of a loaded target and the drafts that its levels name, which are loaded here."""
    caches = Caches()
    samplers = Samplers(tokenizer)
    known = {} if loaded is None else loaded
    decoders: dict[str, Decoder] = {}

    def load(level: Level) -> LoadedLevel:
        key = LoadedAs(level.called, level.folder, level.format, _inputs(level), level.own_layers)
        if key not in known:
            known[key] = load_level(level, folder, target, settings)
        decoders[level.called] = known[key].decoder
        return known[key]

    faithful = not settings.cache
    drafter = make_ladder(
        levels, Context(target, tokenizer, guessing or samplers, settings.rule, load, faithful=faithful, caches=caches)
    )
    verifier = (LocalVerifier if settings.cache else UncachedVerifier)(
        target,
        caches,
        samplers=samplers.target,
        stops=watch_for_stops(tokenizer),
        rule=settings.rule,
    )
    return Model(
        target,
        tokenizer,
        verifier,
        drafter,
        budgets={level.called: level.budget for level in levels},
        decoders=dict(reversed(decoders.items())),  # the innermost is loaded first
        end_tokens=find_end_tokens(folder, target.config, tokenizer),
        name=name,
        folder=folder,
        settings=settings,
        files=files,
    )


def load_level(level: Level, folder: Path, target: Decoder, settings: LoadSettings) -> LoadedLevel:
    """What stands behind a level that `find_levels` has found: another checkpoint, or a copy of the target, which lies
    in `folder`. With its tokenizer, where it has one of its own."""
    began = perf_counter()
    config, weights, tokenizer = target.config, target.weights, None
    copy = None if level.folder is None else beside.describe(level.folder)
    if level.folder is None:  # the target's weights, in a format
        weights, copy = _low_bit(level, folder, config, weights, settings)
    elif copy is not None and level.is_copy:
        weights = copy_of(
            weights, config, beside.read(copy, config, settings.threads, own=level.own_layers), inputs=_inputs(level)
        )
        _tell(level.called, weights, f"read from {copy.folder} ({copy.quantiser})", began)
        tokenizer = Tokenizer.load(level.folder)
    elif copy is not None:
        config, weights, tokenizer = _load_checkpoint(level.folder, settings)
        weights = with_inputs(weights, _inputs(level))
        _tell(level.called, weights, f"read from {copy.folder}", began)
    elif level.format is None:
        config, weights, tokenizer = _load_checkpoint(level.folder, settings)
    else:
        config, weights, tokenizer = _load_checkpoint(level.folder, replace(settings, weights="mapped"))
        weights, copy = _low_bit(level, level.folder, config, weights, settings)
    return LoadedLevel(_decoder(config, weights, settings), tokenizer, copy)


def _low_bit(
    level: Level, folder: Path, config: DecoderConfig, weights: Weights, settings: LoadSettings
) -> tuple[Weights, beside.About | None]:
    """Weights in the level's format: read from the copy beside the folder that they come from, if one lies there,
    otherwise made."""
    assert level.format is not None
    began = perf_counter()
    called = level.format.label if level.is_copy else f"{level.called} in {level.format.label}"
    copy = None
    found = beside.find(folder, config, level.format, settings.threads, own=level.own_layers)
    if found is not None:
        copy, coded = found
        made = copy_of(weights, config, coded, inputs=_inputs(level))
        how = f"read from {copy.folder} ({copy.quantiser})"
    else:
        other = beside.find_other(folder, config, level.format)
        if other is not None:
            spec = other.format.label if level.is_copy else in_format(level.name, other.format)
            log.info("%s is made anew, and %s is there: the draft %r reads it", called, other.folder, spec)
        rows = weights
        if weights.layouts != {"rows"}:  # of an instruction set's own layout nobody else can make anything
            rows = _load_weights(folder, config, replace(settings, weights="mapped"))
        made = quantised(
            rows,
            config,
            level.format,
            inputs=_inputs(level),
            share=weights,
            own=level.own_layers,
            threads=settings.threads,
        )
        how = "cast"
    _tell(called, made, how, began)
    return made, copy


def _inputs(level: Level) -> str:
    inputs: str = level.options.get("inputs", DRAFT_INPUTS)
    return inputs


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


def _load_decoder(folder: Path, settings: LoadSettings, besides: int) -> tuple[Decoder, Tokenizer | None]:
    config, weights, tokenizer = _load_checkpoint(folder, settings, besides)
    return _decoder(config, weights, settings), tokenizer


def _load_checkpoint(
    folder: Path, settings: LoadSettings, besides: int = 0
) -> tuple[DecoderConfig, Weights, Tokenizer | None]:
    config = read_config(folder)
    tokenizer = Tokenizer.load(folder)
    if tokenizer is not None and tokenizer.size > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer in {folder} has {tokenizer.size} tokens and the model {config.vocab_size}; "
            "they do not belong together: fetch both from one place"
        )
    return config, _load_weights(folder, config, settings, besides), tokenizer


def _load_weights(folder: Path, config: DecoderConfig, settings: LoadSettings, besides: int = 0) -> Weights:
    """besides: bytes that will be taken for other things, before or while the weights are used."""
    return load_weights(
        folder,
        config,
        dtype=DTYPES.get(settings.dtype),
        device=settings.device,
        copy={"mapped": False, "copied": True}.get(settings.weights),
        besides=besides,
        threads=settings.threads,
    )


def _decoder(config: DecoderConfig, weights: Weights, settings: LoadSettings) -> Decoder:
    # "auto" asks for "exact" and takes what there is: `target.promise`
    asked = "algorithmic" if settings.promise == "algorithmic" else "exact"
    return Decoder(config, weights, threads=settings.threads, promise=asked)


def find_end_tokens(folder: Path, config: DecoderConfig, tokenizer: Tokenizer | None) -> frozenset[int]:
    """The end tokens: from generation_config.json, else config.json, else the tokenizer. May be several, or none."""
    for name in ("generation_config.json", "config.json"):
        if os.path.lexists(folder / name):  # a link that leads nowhere is no reason to go on with other end tokens
            found = read_json(folder / name).get("eos_token_id")
            if found is not None:
                ids = found if isinstance(found, list) else [found]
                if not all(type(i) is int and 0 <= i < config.vocab_size for i in ids):
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
