"""Loads the decoders of a draft's levels: other checkpoints, and low-bit copies of the target, read or made."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

from foretoken.api.checkpoint import decoder_of, read_checkpoint, weights_of
from foretoken.common.limits import memory_left
from foretoken.common.progress import size
from foretoken.copies import beside
from foretoken.decoder.config import DecoderConfig, read_config
from foretoken.decoder.decoder import Decoder, why_not_int8
from foretoken.decoder.linear import Linear
from foretoken.decoder.low_bit import cast, copy_of, in_rows, size_in, with_inputs
from foretoken.decoder.native_pass import why_not
from foretoken.decoder.weights import Weights
from foretoken.drafters.decoders import in_format
from foretoken.drafters.recipe import Level, LoadedLevel
from foretoken.drafters.table import KV
from foretoken.drafters.trained import OBSERVED_IN
from foretoken.errors import DraftSpecError, SettingError
from foretoken.formats import Format
from foretoken.kernels import gpu, native
from foretoken.settings.load import LoadSettings
from foretoken.text.tokenizer import Tokenizer
from foretoken.trained.blocks import BlockDecoder
from foretoken.trained.config import BlockConfig, MixtureConfig, TrainedConfig
from foretoken.trained.crossing import CrossingDecoder
from foretoken.trained.files import InRows, Trained, read_trained, read_trained_config
from foretoken.trained.filling import FillingDecoder
from foretoken.trained.following import FollowingDecoder
from foretoken.trained.observer import Sight
from foretoken.trained.published import PublishedConfig
from foretoken.trained.published_block import PublishedBlock
from foretoken.trained.published_decoder import PublishedDecoder
from foretoken.trained.published_eagle import PublishedEagle
from foretoken.trained.published_mixture import PublishedMixture
from foretoken.trained.stepwise import StepwiseDecoder

log = logging.getLogger(__name__)

_LITTLE = 64 << 20  # bytes that are there on every machine: looking takes milliseconds
DRAFT_INPUTS = "fastest"  # to what rows are rounded before a draft's low-bit weights, unless the draft names it


class LoadedAs(NamedTuple):
    """Two levels with equal values here may share a loaded decoder. `called` is among the values, so that no two levels
    of one ladder share a decoder: its buffers serve one pass at a time."""

    called: str
    folder: Path | None
    format: Format | None
    inputs: str
    own_layers: tuple[int, ...] = ()
    reads_int8: bool = False


Loaded = dict[LoadedAs, LoadedLevel]


def loaded_as(level: Level) -> LoadedAs:
    """The key under which a level's decoder is kept."""
    return LoadedAs(level.called, level.folder, level.format, _inputs(level), level.own_layers, level.reads_int8)


def memory_of_copies(levels: Sequence[Level], config: DecoderConfig) -> int:
    """Bytes of memory that the low-bit copies of a draft will take, whether made or read. config: the target's."""
    return sum(_sizes(levels, config).values())


def expect_memory(levels: Sequence[Level], config: DecoderConfig, settings: LoadSettings, weights: int = 0) -> None:
    """Raise SettingError if memory does not suffice for the low-bit copies of a draft, before any is made.

    config: the target's. weights: bytes of its weights that must be in memory, too. What is mapped from a file need not
    be. With a bound of memory nothing is done here: the plan has seen to it.
    """
    made = [level for level in levels if settings.weights == "copied" or not _is_mapped(level)]
    sizes = {**({"the weights": weights} if weights else {}), **(copies := _sizes(made, config))}
    needed = sum(sizes.values())
    if settings.memory is not None or settings.device != "cpu" or needed < _LITTLE or not copies:
        return
    left = memory_left()
    if left is not None and needed > left:
        parts = " + ".join(f"{size(count)} for {name}" for name, count in sizes.items())
        raise SettingError(
            f"the draft {','.join(level.name for level in levels)} needs {parts} = {size(needed)} of memory, and "
            f"{size(left)} are left; close other programs, leave a level out, or use --draft lookup (draft='lookup'), "
            "which needs no copy"
        )


def expect_int8(levels: Sequence[Level], config: DecoderConfig, settings: LoadSettings) -> None:
    """Raise DraftSpecError for a level that is told to read the model's old keys and values in int8, and cannot, before
    anything is loaded. config: the target's."""
    why = _why_not_int8(config, settings)
    asked = [level for level in levels if level.options.get(KV) == "int8"]
    if asked and why is not None:
        raise DraftSpecError(f"draft {asked[0].name!r}: kv is int8, but {why}; leave kv out")


def _why_not_int8(config: DecoderConfig, settings: LoadSettings) -> str | None:
    """Why no copy of a model reads its old keys and values in int8; None if copies may."""
    if settings.device != "cpu" or native.module() is None:
        return "only the native engine on the CPU reads int8 (foretoken doctor says whether it is here)"
    if settings.memory is not None:  # it was planned without what int8 takes
        return "with a bound of memory no copy reads int8"
    if not settings.cache:
        return "no keys and values are kept without a cache"
    why = why_not_int8(config)
    return None if why is None else f"the model cannot be read so: {why}"


def _is_mapped(level: Level) -> bool:
    """Whether a level is another model's low-bit checkpoint, which is read from its files like any checkpoint."""
    if level.folder is None or level.is_copy or level.is_trained:
        return False
    return beside.describe(level.folder) is not None


def _sizes(levels: Sequence[Level], config: DecoderConfig) -> dict[str, int]:
    """Bytes of each low-bit copy, by its level's name in the draft."""
    return {
        level.called: size_in(
            level.format,
            _config_of(level, config),
            level.own_layers,
        )
        for level in levels
        if level.format is not None
    }


def _config_of(level: Level, target: DecoderConfig) -> DecoderConfig:
    if level.is_copy or level.folder is None:
        return target
    return read_trained_config(level.folder)[0].linears(target) if level.is_trained else read_config(level.folder)


def load_level(
    level: Level, folder: Path, target: Decoder, settings: LoadSettings, elsewhere: Collection[str] | None = None
) -> LoadedLevel:
    """Load the decoder of a level that `find_levels` has found: another checkpoint, or a copy of the target.

    folder: the target's. elsewhere: the names of the observers that run beside the target, if that is on a host; None:
    it is here. The result has a tokenizer if the level has one of its own.
    """
    began = perf_counter()
    if level.is_trained:
        return _trained(level, folder, target, settings, elsewhere)
    config, weights, tokenizer = target.config, target.weights, None
    copy = None if level.folder is None else beside.describe(level.folder)
    if level.folder is None:  # the target's weights, in a format
        weights, copy = _low_bit(level, folder, config, weights, settings)
    elif copy is not None and level.is_copy:
        weights = copy_of(
            weights,
            config,
            beside.read(copy, config, settings.threads, own=level.own_layers, bounded=settings.memory is not None),
            inputs=_inputs(level),
        )
        _tell(level.called, weights, f"read from {copy.folder} ({copy.quantiser})", began)
        tokenizer = Tokenizer.load(level.folder)
    elif copy is not None:
        config, weights, tokenizer = read_checkpoint(level.folder, settings)
        weights = with_inputs(weights, _inputs(level))
        _tell(level.called, weights, f"read from {copy.folder}", began)
    elif level.format is None:
        if level.folder.samefile(folder):
            log.warning(
                "the draft %s is the model itself, so a draft token takes as long as one of the model's own; name a "
                "smaller model, or a low-bit copy such as mxfp4",
                level.name,
            )
        config, weights, tokenizer = read_checkpoint(level.folder, settings)
    else:
        config, weights, tokenizer = read_checkpoint(level.folder, _mapped(settings))
        weights, copy = _low_bit(level, level.folder, config, weights, settings)
    codes_places = level.reads_int8 and _why_not_int8(config, settings) is None
    decoder = decoder_of(config, weights, settings, codes_places=codes_places)
    if decoder.codes_places:
        log.debug("%s: reads old keys and values in int8 (kv=full turns it off)", level.called)
    return LoadedLevel(decoder, tokenizer, copy)


def _trained(
    level: Level, folder: Path, target: Decoder, settings: LoadSettings, elsewhere: Collection[str] | None
) -> LoadedLevel:
    """A drafter that was trained for the target, whose embedding it shares. So it does the output layer, unless it has
    a format of its own. folder: the target's. elsewhere: as `load_level` has it."""
    began = perf_counter()
    assert level.folder is not None
    read = read_trained(level.folder)
    if isinstance(read.config, PublishedConfig):
        its = read.config.of_target(target.config)
        seen = ", ".join(map(str, its.sees))
        log.info("%s: a published %s, which sees the model before layers %s", level.called, its.method, seen)
        read = replace(read, config=its)
    if isinstance(read.config, PublishedMixture):
        read = replace(read, config=read.config.of_target(target.config))
        log.info("%s: a published Mixture of Attentions, which observes all layers of the model", level.called)
    chooses = isinstance(read.config, MixtureConfig) and read.config.choices > 0
    if level.format is None or ("format" not in level.options and not target.arithmetic.startswith("native")):
        config, weights = read.weights(target)
        if chooses:
            weights = read.with_head_of_choices(weights, _in_rows(folder, target, read.config, settings).head)
        cast_to = None
        own = sum(tensor.nbytes for tensor in read.tensors.values())
        log.info("%s: %s, read from %s in %.1f s", level.called, size(own), level.folder, perf_counter() - began)
    else:
        config, rows = read.weights(target, _in_rows(folder, target, read.config, settings))
        low_bit = [at for at, layer in enumerate(rows.layers) if not isinstance(layer.query.weight, torch.Tensor)]
        if chooses:
            rows = read.with_head_of_choices(rows, rows.head)
        linears = read.config.linears(target.config)
        coded = cast(rows, linears, level.format, own=low_bit, threads=settings.threads)
        weights = copy_of(rows, config, coded, inputs=_inputs(level))
        cast_to = OBSERVED_IN
        _tell(level.called, weights, f"read from {level.folder} and cast to {level.format.label}", began)
    threads = settings.threads
    if read.config.follows:
        following = PublishedDecoder if isinstance(read.config, PublishedEagle) else FollowingDecoder
        return LoadedLevel(following(config, weights, read, cast_to, threads=threads))
    if isinstance(read.config, PublishedBlock):
        return LoadedLevel(FillingDecoder(config, weights, read, cast_to, threads=threads))
    if isinstance(read.config, BlockConfig):
        made: Decoder = BlockDecoder(config, weights, read, cast_to, threads=threads)
    elif isinstance(read.config, PublishedMixture):
        made = CrossingDecoder(config, weights, read, threads=threads)
    elif chooses:
        made = StepwiseDecoder(config, weights, read, threads=threads)
    else:
        made = decoder_of(config, weights, settings)
    return LoadedLevel(made, observer=_observer(read, target, cast_to, elsewhere))


def _observer(
    read: Trained, target: Decoder, cast_to: Format | None, elsewhere: Collection[str] | None
) -> Sight | None:
    if elsewhere is None:
        return read.observer(target, cast_to)
    name = next((name for name in elsewhere if name.startswith(read.sight_name)), read.sight_name)
    return read.sight(name, target.threads, cast_to)


def _in_rows(folder: Path, target: Decoder, drafter: TrainedConfig, settings: LoadSettings) -> InRows:
    """Of the target's weights those that a drafter shares, as their file has them."""
    theirs, ends = target.weights, isinstance(drafter, MixtureConfig) and drafter.ends
    tied = target.config.tied or (isinstance(drafter, PublishedConfig) and drafter.own_head)
    if (not tied and theirs.head.layout != "rows") or (ends and theirs.layouts != {"rows"}):
        theirs = weights_of(folder, target.config, _mapped(settings))
    return InRows(Linear(target.weights.embedding, None) if tied else theirs.head, theirs.layers)


def _low_bit(
    level: Level, folder: Path, config: DecoderConfig, weights: Weights, settings: LoadSettings
) -> tuple[Weights, beside.About | None]:
    """Weights in the level's format: read from the copy beside `folder` if there is one, otherwise cast from
    `weights`."""
    assert level.format is not None
    began = perf_counter()
    called = level.format.label if level.is_copy else f"{level.called} in {level.format.label}"
    copy = None
    found = beside.find(
        folder, config, level.format, settings.threads, own=level.own_layers, bounded=settings.memory is not None
    )
    if found is not None:
        copy, coded = found
        made = copy_of(weights, config, coded, inputs=_inputs(level))
        how = f"read from {copy.folder} ({copy.quantiser})"
    else:
        other = beside.find_other(folder, config, level.format)
        if other is not None:
            spec = other.format.label if level.is_copy else in_format(level.name, other.format)
            log.debug("beside the model lies %s: --draft %s would read that instead", other.folder, spec)
        rows = weights
        if not in_rows(weights, config, level.own_layers):  # a cast cannot read an instruction set's own layout
            rows = weights_of(folder, config, _mapped(settings))
        coded = cast(rows, config, level.format, own=level.own_layers, threads=settings.threads)
        made, how = copy_of(weights, config, coded, inputs=_inputs(level)), "cast"
    _tell(called, made, how, began)
    return made, copy


def _mapped(settings: LoadSettings) -> LoadSettings:
    """The settings for weights that are only read once."""
    return replace(settings, weights="mapped", memory=None, stream_layers=None, disk_bandwidth=None)


def _inputs(level: Level) -> str:
    inputs: str = level.options.get("inputs", DRAFT_INPUTS)
    return inputs


def _tell(called: str, weights: Weights, how: str, began: float) -> None:
    """Log what a low-bit draft is, and how long loading it took."""
    bytes_read = sum(linear.nbytes for linear in weights.linears)
    log.info("%s: %s, %s in %.1f s", called, size(bytes_read), how, perf_counter() - began)
    warn_if_inflated(called, weights)


def warn_if_inflated(called: str, weights: Weights) -> None:
    """Log a warning if low-bit weights run in PyTorch."""
    why = why_not(weights)
    if why is not None and gpu.why_not(weights.embedding.device) is not None:
        log.warning(
            "%s runs in PyTorch (%s), which makes bf16 of low-bit weights: it is no smaller and no faster than the "
            "weights that it was made of",
            called,
            why,
        )
