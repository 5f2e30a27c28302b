"""Makes a model from settings. Only this package, `foretoken.drafters.ladder`, which makes the drafters, and
`foretoken.integrations.drafting`, which drafts for a model elsewhere, do so.

checkpoint.py   makes the target from a folder
levels.py       loads the decoder of each level of the draft
build.py        makes a model of target, drafter and verifier
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from foretoken.api.automatic import with_draft_chosen
from foretoken.api.checkpoint import (
    Checkpoint,
    bytes_in_memory,
    decoder_of,
    expect_device,
    expect_promise,
    find_end_tokens,
    read_checkpoint,
    read_tokenizer,
)
from foretoken.api.levels import (
    Loaded,
    expect_int8,
    expect_memory,
    load_level,
    loaded_as,
    memory_of_copies,
    warn_if_inflated,
)
from foretoken.api.model import Model
from foretoken.api.offloading import (
    SHORT,
    SUBSPEC,
    Offloading,
    bounded,
    can_substitute,
    drafting_meanwhile,
    planned,
    room,
    sharing,
    warn_if_larger_than_memory,
    with_long_chunks,
)
from foretoken.api.on_gpu import CUDA
from foretoken.api.pacing import choices_of, pace_of
from foretoken.common.files import FilesAsRead
from foretoken.common.malloc import give_back_freed_memory
from foretoken.common.progress import size
from foretoken.common.source import DEFAULT_MODEL, resolve
from foretoken.decoder.caches import Caches
from foretoken.decoder.config import DecoderConfig, read_config
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.shards import deciding_files
from foretoken.drafters.ladder import expect_known, find_levels, name_levels
from foretoken.drafters.recipe import Context, Level, LoadedLevel
from foretoken.errors import SettingError, quoted
from foretoken.kernels import forked, gpu
from foretoken.offload.host import bound_memory, unbound_memory
from foretoken.protocol.types import TARGET
from foretoken.sampling.samplers import Samplers
from foretoken.settings.load import AUTO, LoadSettings
from foretoken.text.stream import watch_for_stops
from foretoken.text.tokenizer import Tokenizer
from foretoken.verification.local import LocalVerifier
from foretoken.verification.uncached import UncachedVerifier

log = logging.getLogger(__name__)

_Planned = tuple[LoadSettings, Offloading]


def load(model: str | Path = DEFAULT_MODEL, **settings: Any) -> Model:
    """Load a checkpoint of the Llama family, ready to generate.

    model: a folder, a hub id (owner/name), or an embedded model (stdlib-7m, stdlib-1m). settings: the fields of
    `foretoken.LoadSettings`, such as draft="lookup", dtype="float32".

    With remote=URL the model is on a host; settings are then those of `foretoken.connect`.

    Raises SettingError or DraftSpecError for a wrong setting or draft, and ModelError if the checkpoint cannot be used.
    """
    if "remote" in settings:
        from foretoken.api.remote import connect

        if model != DEFAULT_MODEL:
            raise SettingError(
                f"model is {quoted(str(model))}, and remote was given; the host has the model: leave one out"
            )
        return connect(settings.pop("remote"), **settings)
    chosen = LoadSettings.of(settings)
    expect_known(chosen)  # before the model is loaded: a wrong name should not cost a load
    expect_device(chosen.device)
    expect_promise(chosen)
    folder = resolve(model, chosen.revision, accept=read_config)
    forked.settle()  # the load may convert weights and make copies
    device = torch.device(chosen.device)
    if chosen.offloads:
        if chosen.memory is not None and chosen.device == "cpu":
            give_back_freed_memory()  # what malloc keeps would count as memory in use
        files, offloading, config, tokenizer, chosen = _offloading(folder, str(model), chosen)
        levels = offloading.levels
        choices_of(levels, chosen)
        unbound_memory(device)
        if isinstance(chosen.memory, int):
            bound_memory(device, chosen.memory, CUDA)
        try:
            with gpu.telling_of_memory():
                weights = offloading.load(chosen)
        except BaseException:
            unbound_memory(device)
            raise
    else:
        guessed = chosen.draft == AUTO
        chosen = with_draft_chosen(chosen, folder, str(model))
        levels = find_levels(name_levels(chosen), folder)
        choices_of(levels, chosen)  # before the weights are loaded: a wrong file should not cost a load
        config = read_config(folder)  # first: a folder that is no checkpoint is refused as such, not for a missing file
        files = FilesAsRead.note(deciding_files(folder).values())
        warn_if_larger_than_memory(folder, str(model))
        chosen, levels = _affordable(levels, config, chosen, folder, bytes_in_memory(config, chosen), guessed=guessed)
        unbound_memory(device)
        with gpu.telling_of_memory():
            config, weights, tokenizer = read_checkpoint(folder, chosen, besides=memory_of_copies(levels, config))
        config = bounded(config, chosen)
    target = decoder_of(config, weights, chosen)
    target.room = room(config, levels, chosen) or target.room
    if target.promise == "exact" and chosen.promise == "algorithmic":
        log.info("promise algorithmic was asked for; exact is kept instead, at no cost")
    if config.low_bit is not None:
        warn_if_inflated(f"{model} ({config.low_bit.label})", weights)
    ends = find_end_tokens(folder, config, tokenizer)
    return _drafting(levels, Checkpoint(target, tokenizer, str(model), folder, ends, files), chosen)


def around(checkpoint: Checkpoint, settings: LoadSettings, *, guessed: bool) -> Model:
    """A model of a target that is in memory already. checkpoint: its `folder` is where copies of it are looked for.

    settings: with a draft that is named, not `auto`. guessed: whether the user left the draft open. Raises what `load`
    raises for a draft.
    """
    levels, config = find_levels(name_levels(settings), checkpoint.folder), checkpoint.target.config
    choices_of(levels, settings)
    settings, levels = _affordable(levels, config, settings, checkpoint.folder, guessed=guessed)
    return _drafting(levels, checkpoint, settings)


def _affordable(
    levels: list[Level], config: DecoderConfig, settings: LoadSettings, folder: Path, weights: int = 0, *, guessed: bool
) -> tuple[LoadSettings, list[Level]]:
    """The settings and the levels of their draft; of `lookup`, if the draft was guessed and memory does not suffice.
    folder: the model's. weights: bytes of its weights that must be in memory, too."""
    try:
        expect_int8(levels, config, settings)
        expect_memory(levels, config, settings, weights)
    except SettingError as error:
        if not guessed:
            raise
        log.info("draft lookup for now: %s", error)
        settings = replace(settings, draft="lookup")
        levels = find_levels(name_levels(settings), folder)
    return settings, levels


def plan(model: str | Path = DEFAULT_MODEL, **settings: Any) -> tuple[Offloading, str]:
    """What a bound of memory means for a model, and the draft for which it was planned. Nothing is loaded.

    settings: as in `load`, `memory` or `stream_layers` among them. Raises what `load` raises, SettingError for a bound
    within which the model cannot run.
    """
    chosen = LoadSettings.of(settings)
    expect_known(chosen)
    folder = resolve(model, chosen.revision, accept=read_config)
    _, offloading, _, _, chosen = _offloading(folder, str(model), chosen)
    return offloading, chosen.draft


def _offloading(
    folder: Path, name: str, settings: LoadSettings
) -> tuple[FilesAsRead, Offloading, DecoderConfig, Tokenizer | None, LoadSettings]:
    """Plan for a bound of memory. The draft is chosen, too, if it is `auto`."""
    config = read_config(folder)
    files = FilesAsRead.note(deciding_files(folder).values())
    config, tokenizer = read_tokenizer(folder)  # its libraries are part of the memory in use
    config = bounded(config, settings)
    chunk = settings.prefill_chunk
    short = SHORT if chunk == LoadSettings.prefill_chunk else chunk  # a number of the user's own stays
    settings = with_long_chunks(config, settings)

    def planned_with(draft: str) -> _Planned:
        chosen = replace(settings, draft=draft)
        levels = find_levels(name_levels(chosen), folder)
        levels[0].expect_features(chosen)
        expect_int8(levels, config, chosen)
        try:
            return chosen, planned(folder, config, levels, chosen)
        except SettingError:
            if chosen.prefill_chunk == short:
                raise
        chosen = replace(chosen, prefill_chunk=short)  # a pass over less of a prompt takes less memory
        return chosen, planned(folder, config, levels, chosen)

    if settings.draft != AUTO:
        chosen, offloading = planned_with(settings.draft)
        return files, offloading, config, tokenizer, chosen
    found = planned_with("lookup")  # which takes no memory
    if not found[1].plan.streamed:
        found = _without_reading(planned_with, with_draft_chosen(settings, folder, name).draft) or found
    elif can_substitute(config, settings.device) and settings.rule != "rejection":  # which cannot judge such trees
        found = _with_substitutes(planned_with) or found
    chosen, offloading = found
    return files, offloading, config, tokenizer, chosen


def _without_reading(planned_with: Callable[[str], _Planned], draft: str) -> _Planned | None:
    """The plan for a draft if it leaves room for the whole model, else None."""
    try:
        found = planned_with(draft)
        if not found[1].plan.streamed:
            return found
        why = "layers would have to come in in each pass"
    except SettingError as error:
        why = str(error)
    log.info("draft lookup instead of %s, for which there is no room: %s", draft, why)
    return None


def _with_substitutes(planned_with: Callable[[str], _Planned]) -> _Planned | None:
    """The plan for the substitutes with the most bits for which there is room; None, if there is none."""
    for draft in SUBSPEC:
        try:
            found = planned_with(draft)
        except SettingError as error:
            log.debug("draft %s: %s", draft, error)
            continue
        if draft != SUBSPEC[0]:
            log.info("draft auto: %s (there is no room for better substitutes of the layers that are read)", draft)
        return found
    log.info("draft auto: lookup (there is no room for substitutes of the layers that are read)")
    return None


def with_draft(
    model: Model,
    draft: str,
    *,
    num_speculative_tokens: int | None = None,
    samplers: Samplers | None = None,
    loaded: Loaded | None = None,
    cache: bool | None = None,
) -> Model:
    """Another draft for a model that is loaded. The result is a new model that shares weights and tokenizer with it.

    draft, num_speculative_tokens: as in `LoadSettings`; the model's other settings stay. samplers: for the draft, if
    not the model's own. loaded: the levels that were loaded for other drafts of this model; they are not loaded again,
    and new ones are added. cache: as in `LoadSettings`; None: as the model has it.

    Raises what `load` raises for a draft; for a wrong name, before anything is loaded.
    """
    cache = model.settings.cache if cache is None else cache
    chosen = replace(model.settings, draft=draft, num_speculative_tokens=num_speculative_tokens, cache=cache)
    chosen = with_draft_chosen(chosen, model.folder, model.checkpoint.name)
    named = name_levels(chosen)
    needs_memory = any(level.has_decoder or "from" in level.options for level in named)
    if model.settings.memory is not None and needs_memory:
        raise SettingError(
            f"memory is {size(int(model.settings.memory))}, which was planned for draft {model.draft!r}, and draft "
            f"{draft!r} needs some of it; load the model anew with it, or measure several under one bound with "
            "`python -m foretoken.bench.offload`"
        )
    levels = sharing(find_levels(named, model.folder), model.target.weights)
    new = [level for level in levels if loaded is None or loaded_as(level) not in loaded]
    expect_int8(levels, model.target.config, chosen)
    expect_memory(new, model.target.config, chosen)
    checkpoint = replace(model.checkpoint, tokenizer=model.tokenizer, end_tokens=model.end_tokens)
    return _drafting(levels, checkpoint, chosen, samplers, loaded)


def _drafting(
    levels: list[Level],
    checkpoint: Checkpoint,
    settings: LoadSettings,
    guessing: Samplers | None = None,
    loaded: Loaded | None = None,
) -> Model:
    """A model of a checkpoint and of the levels of its draft, which this function loads."""
    target, tokenizer = checkpoint.target, checkpoint.tokenizer
    levels[0].expect_features(settings)
    caches = Caches()
    samplers = Samplers(tokenizer)
    known = {} if loaded is None else loaded
    decoders: dict[str, Decoder] = {}

    def load(level: Level) -> LoadedLevel:
        key = loaded_as(level)
        if key not in known:
            with gpu.telling_of_memory():
                known[key] = load_level(level, checkpoint.folder, target, settings)
        decoders[level.called] = known[key].decoder
        return known[key]

    faithful = not settings.cache
    context = Context(target, tokenizer, guessing or samplers, settings.rule, load, faithful=faithful, views=caches)
    drafter = context.make(levels)
    verifier = (LocalVerifier if settings.cache else UncachedVerifier)(
        target,
        caches,
        samplers=samplers.target,
        stops=watch_for_stops(tokenizer),
        rule=settings.rule,
        extractors=getattr(drafter, "extractors", ()),
    )
    return Model(
        checkpoint,
        drafting_meanwhile(verifier, target, drafter),
        drafter,
        budgets={level.called: level.budget for level in levels},
        pace=pace_of(levels, drafter, {TARGET: target, **decoders}, settings),
        decoders=decoders,
        settings=settings,
    )
