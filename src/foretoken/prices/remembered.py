"""Keeps measured prices of passes, so that they need not be measured at every load of a model."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import Counter
from pathlib import Path
from typing import Any

from foretoken.common.files import cache_folder, read_json, write_json
from foretoken.common.provenance import machine, version_of
from foretoken.decoder.decoder import Decoder
from foretoken.errors import InputError
from foretoken.prices.price import Price

log = logging.getLogger(__name__)

_KIND = "prices"
_ALIKE = 1.5  # a machine that is this much faster or slower than it was may have other prices altogether


def recall(decoder: Decoder, one: float) -> Price | None:
    """The price that was kept for such a decoder on this machine, as it is at today's speed. one: the seconds of a pass
    of one row now. None if nothing was kept, or if a pass takes far more or far less time than it did."""
    place = _place(decoder)
    if not place.is_file():
        return None
    try:
        price = _read(place)
    except InputError as error:
        log.debug("%s", error)
        return None
    now = one / price.of(1)
    return price.times(now) if 1 / _ALIKE <= now <= _ALIKE else None


def keep(decoder: Decoder, price: Price) -> None:
    """Keep a measured price. Where nothing can be written, it is measured again next time."""
    seconds = {str(rows): each for rows, each in price.seconds.items()}
    try:
        write_json(_place(decoder), {"kind": _KIND, **_circumstances(decoder), "seconds": seconds})
    except InputError as error:
        log.debug("%s", error)


def _read(place: Path) -> Price:
    raw = read_json(place, "it will be measured again")
    seconds = raw.get("seconds") if isinstance(raw, dict) else None
    if not isinstance(seconds, dict) or not seconds:
        raise InputError(f"{place} holds no prices")
    try:
        found = {int(rows): float(each) for rows, each in seconds.items()}
    except (TypeError, ValueError):
        found = {}
    if not found or not all(rows > 0 and math.isfinite(each) and each > 0 for rows, each in found.items()):
        raise InputError(f"{place} holds no prices")
    return Price(dict(sorted(found.items())))


def _place(decoder: Decoder) -> Path:
    its = hashlib.sha256(json.dumps(_circumstances(decoder), sort_keys=True).encode()).hexdigest()
    return cache_folder(_KIND) / f"{its[:24]}.json"


def _circumstances(decoder: Decoder) -> dict[str, Any]:
    """What the price of a pass depends on: the shapes of the weights and not their values."""
    config = decoder.config
    linears = Counter(f"{each.format} {each.inputs} {list(each.weight.shape)}" for each in decoder.weights.linears)
    return {
        "version": version_of("foretoken"),
        "machine": machine(),
        "arithmetic": decoder.arithmetic,
        "threads": decoder.threads,
        "home": decoder.home,
        "heads": [config.num_heads, config.num_kv_heads, config.head_dim],
        "linears": dict(sorted(linears.items())),
    }
