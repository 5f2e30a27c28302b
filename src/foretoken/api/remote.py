"""A model on a host: what drafts runs here, and what checks runs there. And the host of a model that is loaded here."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from foretoken.api.checkpoint import Checkpoint
from foretoken.api.levels import load_level
from foretoken.api.model import Far, Model
from foretoken.api.pacing import first_price, pace_of
from foretoken.api.trusted import changed
from foretoken.common.limits import memory_left
from foretoken.common.progress import size
from foretoken.common.source import resolve
from foretoken.copies import beside
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import read_config
from foretoken.decoder.decoder import Decoder
from foretoken.drafters.ladder import name_levels
from foretoken.drafters.recipe import Context, Level, LoadedLevel
from foretoken.drafters.table import CHAIN, DRAFTERS, TREE
from foretoken.errors import DraftSpecError, SettingError, quoted
from foretoken.pace.cost import ASSUMED
from foretoken.prices.price import Price
from foretoken.remote.about import About
from foretoken.remote.client import RemoteVerifier
from foretoken.remote.files import hash_of, packed, tokenizer_of
from foretoken.remote.host import Host, Listening
from foretoken.remote.limits import Limits
from foretoken.remote.link import Address, token_of
from foretoken.remote.room import Room
from foretoken.remote.wire import LARGEST
from foretoken.sampling.samplers import Samplers
from foretoken.settings.load import AUTO, LoadSettings
from foretoken.text.stream import watch_for_stops
from foretoken.verification.local import LocalVerifier

log = logging.getLogger(__name__)

_NOWHERE = Path("/")  # in place of the target's folder
_HERE = ("draft", "num_speculative_tokens", "pace", "threads", "dtype")  # settings that matter on the client
_PASS = 0.05  # seconds of the host's pass, if it says nothing


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


def connect(
    url: str,
    *,
    token_file: str | Path | None = None,
    ca: str | Path | None = None,
    patience: float = 30.0,
    **settings: Any,
) -> Model:
    """A model on a host, ready to generate: `foretoken host` runs there. What drafts runs here: lookup, or a small
    model. The tokenizer comes from the host.

    url: ws://HOST:PORT or wss://HOST:PORT. token_file: a file with the token that the host asks for. ca: a PEM file
    with the certificate of whoever signed the host's, if the system does not know it. patience: seconds for which a
    lost connection is tried again. settings: the draft, its length and its pace, and the threads and the type of a
    small model, as in `foretoken.load`.

    Raises RemoteError if the host cannot be reached, or refuses; SettingError or DraftSpecError for settings that make
    no sense here; and what `load` raises for a small model.
    """
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
                f"draft {quoted(level.name, 80)} needs the model's own weights, and these are on {url}; use lookup, or "
                f"a small model (of {', '.join(DRAFTERS)}, lookup and none can be used)"
            )
    levels = [_found(level) for level in named]
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
    decoders: dict[str, Decoder] = {}

    def load(level: Level) -> LoadedLevel:
        loaded = load_level(level, _NOWHERE, target, chosen)
        decoders[level.called] = loaded.decoder
        return loaded

    drafter = Context(target, tokenizer, Samplers(tokenizer), chosen.rule, load).make(levels)
    log.info("%s on %s, %.0f ms away; drafts here: %s", about.model, url, 1e3 * verifier.link.round_trip, chosen.draft)
    return Model(
        Checkpoint(target, tokenizer, about.model, _NOWHERE, frozenset(about.end_tokens)),
        verifier,
        drafter,
        budgets={level.called: level.budget for level in levels},
        pace=pace_of(levels, drafter, decoders, chosen, checks=_checks(about, verifier.link.round_trip)),
        decoders=decoders,
        settings=chosen,
        far=Far(0, about.sessions),  # drafting ahead loses: docs/remote.md
    )


def _found(level: Level) -> Level:
    """A level, completed from its own folder. A low-bit copy is a model of its own here. Raises DraftSpecError for a
    trained drafter."""
    if not level.has_decoder:
        return level.recipe.found(level, _NOWHERE)
    place = resolve(level.name)
    about = beside.describe(place)
    if about is not None:
        return replace(level, format=about.format, folder=place)
    found = level.recipe.found(level, place)
    if found.is_trained:
        raise DraftSpecError(
            f"draft {quoted(level.name, 80)} is a trained drafter, which sees what the model computes, and that does "
            "not travel yet; use lookup, or a small model"
        )
    return found


def _checks(about: About, round_trip: float) -> Price:
    """What a check costs: a pass of the host, as it says itself, and a round trip."""
    shape = about.prices or {rows: _PASS * each for rows, each in ASSUMED.seconds.items()}
    return Price.measured({rows: seconds + round_trip for rows, seconds in shape.items()})


def host(model: Model, listening: Listening, limits: Limits) -> Host:
    """A host of a model that is loaded here. Its clients share the passes of the model. Nobody else should use the
    model meanwhile. Raises SettingError if it cannot listen there, or if the tokenizer's files are too large to be
    sent."""
    target = model.target
    files = packed(model.folder) if model.tokenizer is not None else b""
    if len(files) > LARGEST - 1024:
        raise SettingError(
            f"the tokenizer's files are {size(len(files))} when compressed, and a message holds {size(LARGEST)}; name "
            "a model with a smaller tokenizer"
        )
    price = first_price(target) if target.device.type == "cpu" else None
    engine, _, _ = target.arithmetic.partition(" ")
    weights = f"{target.weights.embedding.dtype} {target.config.context_length} {model.promise}"
    ends = tuple(sorted(model.end_tokens))
    # what decides a text: with another engine, type or tokenizer, a host that was started again would write another
    identity = f"{fingerprint(model.folder, read_config(model.folder))} {engine} {weights} {hash_of(files)} {ends}"
    about = About(
        Path(model.name).name[:80],
        hashlib.sha256(identity.encode()).hexdigest()[:32],
        target.config.context_length,
        target.config.valid_vocab_size,
        limits.rows,
        min(limits.of_client, limits.sessions),
        model.promise,
        target.arithmetic,
        target.threads,
        hash_of(files),
        ends,
        {} if price is None else price.seconds,
    )
    verifier = LocalVerifier(target, samplers=Samplers(model.tokenizer).target, stops=watch_for_stops(model.tokenizer))
    mapped = [] if target.weights.mapped is None else [target.weights.mapped]
    limits = replace(limits, positions=_positions(target), prompt_rows=model.settings.prefill_chunk)
    room = Room(verifier, limits, lambda: changed(mapped))
    try:
        return Host(room, about, files, listening)
    except BaseException:
        room.close()
        raise


def _positions(target: Decoder) -> int | None:
    """How many positions' keys and values half of the memory holds that is left. None if the system does not tell."""
    left = memory_left()
    c = target.config
    each = 2 * c.num_layers * c.num_kv_heads * c.head_dim * target.weights.embedding.element_size()
    return None if left is None else max(c.context_length, left // 2 // each)
