"""The host of a model that is loaded here: its clients draft elsewhere, and it checks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from foretoken.api.model import Model
from foretoken.api.pacing import first_price
from foretoken.api.trusted import changed
from foretoken.common.limits import memory_left
from foretoken.common.progress import size
from foretoken.common.source import resolve
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import read_config
from foretoken.decoder.decoder import Decoder
from foretoken.drafters.trained import OBSERVED_IN, trained_for
from foretoken.errors import SettingError
from foretoken.kernels import native
from foretoken.pace.cost import Moment, PassCost
from foretoken.remote.about import About
from foretoken.remote.features import MOST_EXTRACTORS, NOTHING_OFFERED, Offered, layout_of
from foretoken.remote.files import hash_of, packed
from foretoken.remote.host import Host, Listening, Place
from foretoken.remote.limits import Limits
from foretoken.remote.room import Room
from foretoken.remote.wire import LARGEST
from foretoken.sampling.samplers import Samplers
from foretoken.text.stream import watch_for_stops
from foretoken.trained.files import expect_trained, read_trained
from foretoken.trained.observer import ObservingLayers
from foretoken.verification.local import LocalVerifier


def host(
    model: Model, listening: Listening, limits: Limits, drafters: Sequence[str] = (), place: Place | None = None
) -> Host:
    """A host of a model that is loaded here. Its clients share the passes of the model. Nobody else should use the
    model meanwhile. drafters: the folders of trained drafters that clients may use, beside the model's own.
    place: what was reserved to listen.

    Raises SettingError if it cannot listen there, or if the tokenizer's files are too large to be sent; CheckpointError
    or InputError for a folder that holds no drafter of this model.
    """
    target = model.target
    bounded = model.settings.memory is not None
    if bounded:
        limits = _as_planned(limits, model, drafters)
    its_own = fingerprint(model.folder, read_config(model.folder))
    observers = [] if bounded else _observers(model, drafters, its_own)
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
    identity = f"{its_own} {engine} {weights} {hash_of(files)} {ends}"
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
        its_own,
        NOTHING_OFFERED if bounded else _offered(target, observers),
    )
    verifier = LocalVerifier(
        target,
        extractors=observers,
        samplers=Samplers(model.tokenizer).target,
        stops=watch_for_stops(model.tokenizer),
    )
    each = target.config.bytes_of_position(target.weights.embedding.element_size())
    if not bounded and (left := memory_left()) is not None:
        limits = replace(limits, positions=max(target.config.context_length, left // 2 // each))
    limits = replace(limits, bytes_each=each, prompt_rows=model.settings.prefill_chunk)
    checking = None if price is None else PassCost(price, Moment())
    room = Room(verifier, limits, lambda: changed(model.mapped), about.offered, checking)
    try:
        return Host(room, about, files, listening, place)
    except BaseException:
        room.close()
        raise


def _as_planned(limits: Limits, model: Model, drafters: Sequence[str]) -> Limits:
    """The limits within a bound of memory, which was planned for the keys and values of one text, and for a pass over
    one draft, but not for what drafters see. A client gets one text at a time: several of its own would wait for one
    another. drafters: those that are named for clients."""
    if model.target.device.type != "cpu":
        raise SettingError(
            f"memory bounds the model on {model.target.device.type}, where each text takes the room of a whole one; "
            "leave memory out on a host"
        )
    if drafters:
        raise SettingError(
            "a drafter is named for clients, and under a bound of memory there is no room for what it sees; leave one "
            "of the two out"
        )
    rows = min(limits.rows, 1 + max((budget.rows for budget in model.budgets.values()), default=0))
    return replace(
        limits,
        sessions=min(limits.sessions, rows),
        of_client=1,
        positions=model.target.config.context_length + rows,
        scratch=rows,
        rows=rows,
        together=max(model.settings.prefill_chunk, rows),
    )


def _observers(model: Model, drafters: Sequence[str], its_own: str) -> list[ObservingLayers]:
    """The parts of trained drafters that run beside the model. its_own: the model's fingerprint."""
    found = trained_for(model.folder)
    usual = OBSERVED_IN if model.target.arithmetic.startswith("native") and native.module() is not None else None
    observers: dict[str, ObservingLayers] = {}
    for name in (*drafters, *found):
        place = resolve(name)
        expect_trained(place)
        drafter = read_trained(place)
        drafter.config.expect_suits(model.target.config, str(place))
        drafter.config.expect_made_for(its_own, str(place))
        observer = drafter.observer(model.target, usual)
        if observer is not None:
            observers[observer.name] = observer
    return list(observers.values())


def _offered(target: Decoder, observers: Sequence[ObservingLayers]) -> Offered:
    """The features that clients may ask for."""
    if len(observers) > MOST_EXTRACTORS:
        raise SettingError(f"{len(observers)} trained drafters are named, and a host takes {MOST_EXTRACTORS}")
    its = {each.name: layout_of(each) for each in observers}
    return Offered(target.config.num_layers, target.config.hidden_size, its)
