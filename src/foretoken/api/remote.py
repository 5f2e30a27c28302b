"""A model on a host: what drafts runs here, and what checks runs there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch

from foretoken.api.checkpoint import Checkpoint
from foretoken.api.levels import load_level
from foretoken.api.model import Far, Model
from foretoken.api.pacing import pace_of
from foretoken.common.source import resolve
from foretoken.copies import beside
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.native_pass import why_not
from foretoken.decoder.weights import Weights
from foretoken.drafters.decoders import expect_no_copy
from foretoken.drafters.ladder import name_levels
from foretoken.drafters.mixture import Observing
from foretoken.drafters.packing import shared_with
from foretoken.drafters.recipe import Context, Level, LoadedLevel
from foretoken.drafters.table import CHAIN, TREE
from foretoken.drafters.trained import expect_places, trained_level
from foretoken.errors import AwayError, DraftSpecError, RemoteError, SettingError, quoted
from foretoken.kernels import forked, native
from foretoken.pace.unpriced import SeenCost
from foretoken.prices.price import Price
from foretoken.protocol.roles import Drafter
from foretoken.remote.about import About
from foretoken.remote.alone import Alone, UnlessAlone
from foretoken.remote.client import RemoteVerifier
from foretoken.remote.features import layout_of
from foretoken.remote.files import tokenizer_of
from foretoken.remote.link import Address, token_of
from foretoken.sampling.samplers import Samplers
from foretoken.settings.load import AUTO, LoadSettings
from foretoken.settings.values import one_of
from foretoken.text.stream import watch_for_stops
from foretoken.trained.files import is_trained, read_trained_config

log = logging.getLogger(__name__)

_NOWHERE = Path("/")  # in place of the target's folder
_HERE = ("draft", "num_speculative_tokens", "pace", "threads", "dtype")  # settings that matter on the client
STOP, KEEP, HOLD = OFFLINE = ("stop", "keep", "hold")  # what happens when the host is gone for good


@dataclass(frozen=True)
class _Shape:
    vocab_size: int
    valid_vocab_size: int
    context_length: int


@dataclass(frozen=True)
class _NoWeights:
    mapped: None = None


@dataclass(frozen=True, eq=False)
class RemoteTarget:
    """What is known here of a target on a host."""

    config: _Shape
    promise: str
    arithmetic: str
    threads: int
    weights: _NoWeights = _NoWeights()


@dataclass(frozen=True, eq=False)
class SharedTarget:
    """Of a target on a host, what a trained drafter here shares with it, as `Decoder` has it. threads: of this
    machine."""

    config: DecoderConfig
    weights: Weights
    threads: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def arithmetic(self) -> str:
        """The engine that multiplies here."""
        return f"native {native.isa()}" if why_not(self.weights) is None else "pytorch"


def connect(
    url: str,
    *,
    token_file: str | Path | None = None,
    ca: str | Path | None = None,
    patience: float = 30.0,
    offline: str = STOP,
    **settings: Any,
) -> Model:
    """A model on a host, ready to generate: `foretoken host` runs there. What drafts runs here: lookup, a small model,
    or a drafter that was trained for the model (`foretoken pack` writes what is needed of it here). The tokenizer comes
    from the host.

    url: ws://HOST:PORT or wss://HOST:PORT. token_file: a file with the token that the host asks for. ca: a PEM file
    with the certificate of whoever signed the host's, if the system does not know it. patience: seconds for which a
    lost connection is tried again. offline: what happens when the host is gone for good. "stop" ends the text. "keep"
    generates the rest with the draft alone, which must be a model, and marks those tokens as unverified. "hold" does
    the same if the draft is a model, and otherwise ends the text; `Model.recheck` finishes it when the host is there
    again. settings: the draft, its length and its pace, and the threads and the type of a small model, as in
    `foretoken.load`.

    Raises RemoteError if the host cannot be reached, or refuses; SettingError or DraftSpecError for settings that make
    no sense here; and what `load` raises for a small model or a trained drafter.
    """
    chosen, levels = _asked_for(url, offline, settings)
    place = levels[0].folder if levels[0].is_trained else None
    shared = None if place is None else shared_with(place)
    address = Address(
        url,
        token_of(None if token_file is None else Path(token_file)),
        None if ca is None else Path(ca),
        patience,
    )
    verifier = RemoteVerifier(address)
    about = verifier.about
    tokenizer = tokenizer_of(about.tokenizer, verifier.tokenizer_files) if about.tokenizer else None
    shape = _Shape(about.vocab_size, about.vocab_size, about.context_length)
    target = cast("Decoder", RemoteTarget(shape, about.promise, f"{about.arithmetic} on the host", about.threads))
    here = target
    if place is not None and shared is not None:
        its, _ = read_trained_config(place)
        its.expect_made_for(about.fingerprint, f"the draft {levels[0].name}")
        here = cast("Decoder", SharedTarget(*shared, chosen.threads or forked.threads()))
    decoders: dict[str, Decoder] = {}

    def load(level: Level) -> LoadedLevel:
        loaded = load_level(level, _NOWHERE, here, chosen, about.offered.extractors)
        decoders[level.called] = loaded.decoder
        return loaded

    drafter = Context(target, tokenizer, Samplers(tokenizer), chosen.rule, load).make(levels)
    _expect_features(about, drafter, shared)
    pace = pace_of(levels, drafter, decoders, chosen, checks=_checks(about, verifier.link.round_trip))
    far = Far(0, about.sessions)  # drafting ahead loses: docs/remote.md
    verifier.goes_on = offline == KEEP or (offline == HOLD and levels[0].has_decoder)
    if levels[0].has_decoder:
        verifier.without_host = Alone(watch_for_stops(tokenizer), about.context_length)
        budgets = tuple(level.budget for level in levels)
        far = replace(far, pace=lambda pace: UnlessAlone(pace, budgets, verifier.is_alone))
    log.info("%s on %s, %.0f ms away; drafts here: %s", about.model, url, 1e3 * verifier.link.round_trip, chosen.draft)
    return Model(
        Checkpoint(target, tokenizer, about.model, _NOWHERE, frozenset(about.end_tokens)),
        verifier,
        drafter,
        budgets={level.called: level.budget for level in levels},
        pace=pace,
        decoders=decoders,
        settings=chosen,
        far=far,
    )


def stop_waiting(model: Model) -> None:
    """If the connection to a model's host is broken, take the host for gone now, and not when patience ends. The next
    text tries it again."""
    verifier = model._verifier
    if isinstance(verifier, RemoteVerifier) and verifier.link.is_broken:
        verifier.give_up(AwayError("the host is gone, and nobody waits for it any more"))


def _asked_for(url: str, offline: str, settings: Mapping[str, Any]) -> tuple[LoadSettings, list[Level]]:
    """The settings, and the levels of the draft, before anybody is called."""
    one_of("offline", offline, OFFLINE)
    chosen = LoadSettings.of(settings)
    usual = LoadSettings()
    for name in vars(usual):
        if name not in _HERE and getattr(chosen, name) != getattr(usual, name):
            raise SettingError(f"{name} is for a model that is loaded here, and this one is on {url}; leave it out")
    if chosen.draft == AUTO:
        chosen = replace(chosen, draft="lookup")
    named = name_levels(chosen)
    for level in named:
        if level.name not in ("none", "lookup") and (level.is_copy or level.entry not in (CHAIN, TREE)):
            raise DraftSpecError(
                f"draft {quoted(level.name, 80)} needs the model's own weights, and these are on {url}; use lookup, "
                "none, a small model or a trained drafter"
            )
    levels = [_found(level) for level in named]
    expect_places(levels)
    if offline == KEEP and not levels[0].has_decoder:
        raise SettingError(
            f"offline is {KEEP!r}, and draft {quoted(chosen.draft, 80)} is no model that could go on by itself; name a "
            "small model or a trained drafter as the draft"
        )
    return chosen, levels


def _expect_features(about: About, drafter: Drafter, shared: tuple[DecoderConfig, Weights] | None) -> None:
    """Raise InputError if the host lacks what a drafter sees, and RemoteError if it would send something else."""
    its = about.offered
    if not its.layout(drafter.needs):
        return
    same = shared is None or (its.layers, its.hidden_size) == (shared[0].num_layers, shared[0].hidden_size)
    if isinstance(drafter, Observing):
        same &= its.extractors[drafter.observer.name] == layout_of(drafter.observer)
    if not same:
        raise RemoteError(
            "the host would send other features than the drafter sees; install the same Foretoken on both sides, and "
            "pack the drafter again"
        )


def _found(level: Level) -> Level:
    """A level, completed from its own folder. A low-bit copy is a model of its own here."""
    if not level.has_decoder:
        return level.recipe.found(level, _NOWHERE)
    place = resolve(level.name)
    if is_trained(place):
        return trained_level(level, place)
    about = beside.describe(place)
    if about is not None:
        expect_no_copy(level)
        return replace(level, format=about.format, folder=place)
    return level.recipe.found(level, place)


def _checks(about: About, round_trip: float) -> Price | SeenCost:
    """What a check costs: a pass of the host, as it says itself, and a round trip. If it says nothing, checks tell."""
    if not about.prices:
        return SeenCost()
    return Price.measured({rows: seconds + round_trip for rows, seconds in about.prices.items()})
