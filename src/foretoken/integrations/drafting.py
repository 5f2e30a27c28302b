"""Makes the drafts for a model that another engine runs, from the model's folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

from foretoken.api.checkpoint import decoder_of, read_checkpoint
from foretoken.api.levels import expect_int8, expect_memory, load_level
from foretoken.api.pacing import pace_of
from foretoken.common.limits import memory_left
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.drafters.ladder import find_levels, name_levels
from foretoken.drafters.recipe import Context, Level, LoadedLevel
from foretoken.drafters.table import CHAIN, DRAFTERS, TRAINED
from foretoken.errors import DraftSpecError, SettingError, nearest, quoted
from foretoken.integrations.proposals import Mirror, Proposals, TheirCache
from foretoken.pace.unpriced import SeenCost
from foretoken.protocol.types import Needs
from foretoken.sampling.samplers import Samplers
from foretoken.settings.load import AUTO, LoadSettings
from foretoken.text.tokenizer import Tokenizer

SETTINGS = ("draft", "pace", "threads")  # those of Foretoken that matter here
_USUAL = "lookup"
_NOWHERE = Path("/")  # in place of the model's folder, where no draft reads it
_SPARE = 1 << 30  # bytes of memory that are left free: texts for which there is less get no drafts
_CHAINS = (CHAIN, TRAINED, DRAFTERS["lookup"], DRAFTERS["none"])


class ServedModel(NamedTuple):
    """A model that another engine runs.

    engine: its name. folder: gives the folder of the model's files, which not every draft needs. context_length: the
    most tokens of one text. vocab_size: of the model. most: the most tokens of a draft that the engine checks. cache:
    the keys and values that the engine has computed. why_not: if they cannot be had, the reason.
    """

    engine: str
    folder: Callable[[], Path]
    context_length: int
    vocab_size: int
    most: int
    cache: TheirCache | None = None
    why_not: str = "it hands none out"


def settings_of(said: object, most: int) -> LoadSettings:
    """The settings that a user gave an engine for Foretoken: `draft`, `pace` and `threads`.

    most: the most tokens of a draft. With the pace `fixed`, every draft has so many. Raises SettingError for settings
    that make no sense, and DraftSpecError for a draft that nobody knows or that is no chain.
    """
    if not isinstance(said, dict):
        raise SettingError(
            f"foretoken's settings are {quoted(said, 80)}, expected a mapping, such as {{'draft': 'lookup'}}"
        )
    for name in said:
        if name not in SETTINGS:
            raise SettingError(f"{quoted(name, 40)} is no setting of Foretoken's here{nearest(str(name), SETTINGS)}")
    settings = LoadSettings.of({"draft": _USUAL, **said})
    if settings.draft == AUTO:
        raise SettingError(f"draft is {AUTO!r}, which needs a model that runs here; name a draft, such as mxfp4,lookup")
    if settings.pace == "fixed" and "tokens" not in name_levels(settings)[0].options:
        settings = replace(settings, num_speculative_tokens=most)
    for level in name_levels(settings):
        if level.entry not in _CHAINS:
            raise DraftSpecError(_why_no_chain(level))
    return settings


def _why_no_chain(level: Level) -> str:
    """What to do about a draft that is no chain of tokens."""
    others = "use lookup, a low-bit copy such as mxfp4, a small model or a trained drafter"
    name = quoted(level.name, 80)
    if level.name in DRAFTERS:
        return f"draft {name} runs inside the model's own pass, and another engine makes that; {others}"
    options = quoted(", ".join(f"{option}={value}" for option, value in level.options.items()), 80)
    return (
        f"draft {name} with {options} is no chain of tokens, and nothing else can be checked here; leave options of "
        f"trees out, or {others}"
    )


def proposals_for(model: ServedModel, settings: LoadSettings) -> Proposals:
    """Load what drafts for a model, with a pace. Raises what `load` raises for a draft, and DraftSpecError for one that
    needs what the engine has computed, if that cannot be had."""
    settings = replace(settings, threads=settings.threads or len(_cores()))
    with _on_all_cores():  # threads that are begun here stay where they may run now
        return _made(model, settings)


def _made(model: ServedModel, settings: LoadSettings) -> Proposals:
    named = name_levels(settings)
    target: Decoder | None = None
    tokenizer, folder = None, _NOWHERE
    if any(level.has_decoder or "from" in level.options for level in named):
        folder = model.folder()
        tokenizer = Tokenizer.load(folder)
    levels = find_levels(named, folder)
    if any(level.has_decoder for level in levels):
        target = _target(folder, levels, settings)
    mirror = None
    if sees_what_is_computed(levels[0]) and model.cache is not None:
        assert target is not None
        mirror = Mirror(target, Caches(), model.cache, _has_room)
    decoders: dict[str, Decoder] = {}

    def load(level: Level) -> LoadedLevel:
        assert target is not None
        loaded = load_level(level, folder, target, settings)
        decoders[level.called] = loaded.decoder
        return loaded

    views = None if mirror is None else mirror.caches
    drafter = Context(cast("Decoder", target), tokenizer, Samplers(tokenizer), settings.rule, load, views=views).make(
        levels
    )
    if drafter.needs != Needs():
        raise DraftSpecError(
            f"draft {quoted(levels[0].name, 80)} needs what the model has computed, and {model.engine} does not give "
            f"it: {model.why_not}; use lookup, a low-bit copy such as mxfp4, or a small model"
        )
    pace = pace_of(levels, drafter, decoders, settings, checks=SeenCost(), farthest=model.most)
    return Proposals(drafter, pace, model.most, model.context_length, model.vocab_size, mirror)


def sees_what_is_computed(level: Level) -> bool:
    """Whether a level, if it is the first one, drafts on the model's own keys and values."""
    return level.is_trained or (level.is_copy and "own-cache" not in level.options)


def _target(folder: Path, levels: Sequence[Level], settings: LoadSettings) -> Decoder:
    """The model's weights, mapped from their files: drafts share some of them. No pass is made with them here."""
    settings = replace(settings, weights="mapped")
    config, weights, _ = read_checkpoint(folder, settings)
    expect_int8(levels, config, settings)
    expect_memory(levels, config, settings)
    return decoder_of(config, weights, settings)


def _has_room(count: int) -> bool:
    """Whether there is memory for so many bytes of keys and values more, and for them in int8, which drafts read."""
    left = memory_left()
    return left is None or left > count * 3 // 2 + _SPARE


def _cores() -> set[int]:
    """The cores that this process computes on. An engine may have bound each of its threads to one core; the thread
    that asks is then bound, too."""
    if not hasattr(os, "sched_getaffinity"):
        return set(range(os.cpu_count() or 1))
    mine = os.sched_getaffinity(0)
    tasks = Path("/proc/self/task")
    if len(mine) > 1 or not tasks.is_dir():
        return mine
    bound = set(mine)
    for task in tasks.iterdir():
        with suppress(OSError):  # a thread may have ended meanwhile
            its = os.sched_getaffinity(int(task.name))
            bound |= its if len(its) == 1 else set()
    return bound


@contextmanager
def _on_all_cores() -> Iterator[None]:
    """Let the thread that asks run on all cores of the process for a while. New threads may run where the thread may
    that begins them."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _cores())
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)
