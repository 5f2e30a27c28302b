"""Makes the pace of a draft from its levels and from a first measurement of what their passes cost."""

from __future__ import annotations

import bisect
import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from foretoken.decoder.decoder import Decoder
from foretoken.decoder.streaming import stream_of
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.recipe import Level
from foretoken.pace.auto import AutoPace
from foretoken.pace.cost import ASSUMED, ASSUMED_OF_COPIES, LearnedCost, Moment, PassCost
from foretoken.pace.fixed import FixedPace
from foretoken.pace.levels import Paced
from foretoken.pace.replay import ReplayPace, choices_from_json, replayed_file
from foretoken.pace.unpriced import PlainAtTimes, SeenCost
from foretoken.pace.waiting import WaitingPace
from foretoken.prices import remembered
from foretoken.prices.measuring import quick
from foretoken.prices.price import Price
from foretoken.protocol.roles import Drafter, Pace
from foretoken.protocol.types import TARGET, Budget
from foretoken.settings.load import LoadSettings

log = logging.getLogger(__name__)
_FARTHEST = 32  # tokens that a paced chain may have: beyond the rows that cost little, few drafts go on to pay
_QUICK = (1, 8, 16, 24, 32)  # rows whose passes are timed at the start: about as long as eight passes
# More of them, where 32 rows cost less than so many times one, and so many seconds: there, several texts draft together
# in one pass.
_MANY, _CHEAP, _SHORT = (64, 128), 2.0, 0.3
_MATCHES = (1, 2, 4, 8, 16)  # tokens of a match: longer ones are likelier to go on
_PREFIX = 16  # tokens before those rows
_NOISE, _MARGIN = 2e-4, 1.25  # seconds by which the times of two passes may differ by chance, and times as long
_FAST = 0.01  # seconds of a pass up to which prices are measured at every load: that takes a tenth of a second
_BRIEF, _AGAIN = 0.1, 2  # seconds of a pass up to which it is timed again, and how often: others disturb it
_SLOW = 1.0  # seconds of a pass from which on timing passes at the start would take too long

_known: WeakKeyDictionary[Decoder, Price | None] = WeakKeyDictionary()  # first prices: several drafts of one model ask
_ones: WeakKeyDictionary[Decoder, Price | None] = WeakKeyDictionary()  # prices of one row


def pace_of(
    levels: Sequence[Level],
    drafter: Drafter,
    decoders: Mapping[str, Decoder],
    settings: LoadSettings,
    checks: Price | LearnedCost | None = None,
    *,
    farthest: int = _FARTHEST,
) -> Pace:
    """The pace of a draft. A level whose length the user has named keeps it, and so do fractal drafts and most trees.

    decoders: of the target and of the levels. checks: what checks cost if the target is not in this process (it is then
    not among the decoders), known or still to be learned. farthest: the most tokens of a chain whose length is chosen.
    """
    pace = _by_prices(levels, drafter, decoders, settings, checks, min(farthest, _FARTHEST))
    stream = None if checks is not None else stream_of(decoders[TARGET].weights)
    its = levels[0]
    fits = settings.pace == "auto" and settings.num_speculative_tokens is None and "nodes" not in its.options
    if stream is None or not fits or not its.recipe.substitutes or its.options.get("shape") != "best-first":
        return pace
    return WaitingPace(pace, lambda: stream.traffic.waited)


def _by_prices(
    levels: Sequence[Level],
    drafter: Drafter,
    decoders: Mapping[str, Decoder],
    settings: LoadSettings,
    checks: Price | LearnedCost | None,
    farthest: int,
) -> Pace:
    choices = choices_of(levels, settings)
    if choices is not None:
        return ReplayPace(choices)
    budgets = [level.budget for level in levels]
    free = [level.recipe.free(level) for level in levels]
    free[0] &= settings.num_speculative_tokens is None
    fixed = settings.pace == "fixed" or settings.rule == "rejection"  # there, its choices would change the text
    names = [TARGET, *(level.called for level in levels)]
    on_cpu = settings.device == "cpu"  # elsewhere a clock does not see when a pass ends
    if fixed or not any(free) or not settings.cache:  # without a cache passes have no price by rows
        beside = checks is None and len(decoders) > 1 and stream_of(decoders[TARGET].weights) is None
        if on_cpu and settings.cache and beside:
            _warn_of_slow_levels(names, {name: _one_row(decoder) for name, decoder in decoders.items()})
        return FixedPace(budgets)
    prices = {name: first_price(decoder) if on_cpu else None for name, decoder in decoders.items()}
    if isinstance(checks, Price):
        prices[TARGET] = checks
    _warn_of_slow_levels(names, prices)
    paced, moment = [], Moment()
    for at, (level, budget, its) in enumerate(zip(levels, budgets, free, strict=True)):
        price = prices.get(level.called)
        cost = PassCost(price or ASSUMED_OF_COPIES, moment) if level.has_decoder else None
        most = Budget(farthest, farthest, budget.width) if its else budget
        shares, weight = level.recipe.expected(level)
        at_once = level.recipe.at_once(level)
        if its and at_once > 1:  # what follows a guess of the level below may be longer
            longest = at_once * (1 if at + 1 == len(levels) else 2)
            most = replace(most, rows=longest if most.width == 1 else most.rows, depth=longest)
        paced.append(Paced(level.called, most, its, shares, cost, weight, at_once, level.recipe.ends_itself(level)))
    if checks is None or isinstance(checks, Price):
        checks = PassCost(prices.get(TARGET) or ASSUMED, moment)
    pace = AutoPace(paced, checks, _kind_of_place(drafter))
    return PlainAtTimes(pace) if isinstance(checks, SeenCost) and free[0] else pace


def choices_of(levels: Sequence[Level], settings: LoadSettings) -> list[tuple[Budget, ...]] | None:
    """The recorded choices that a draft is to repeat; None if it is to repeat none. Raises SettingError for a file
    without any, and for those of another draft."""
    file = replayed_file(settings.pace)
    return None if file is None else choices_from_json(file, [level.called for level in levels])


def _kind_of_place(drafter: Drafter) -> Callable[[int], int]:
    """Tells places in a text apart by how long their end has occurred before, if a lookup in the ladder knows."""
    while not isinstance(drafter, LookupDrafter):
        inner = getattr(drafter, "inner", None)
        if inner is None:
            return lambda sequence: 0
        drafter = inner
    lookup = drafter
    return lambda sequence: bisect.bisect(_MATCHES, lookup.matched(sequence))


def _warn_of_slow_levels(names: Sequence[str], prices: Mapping[str, Price | None]) -> None:
    """Log a warning for each level whose passes take more time than those of the level for which it drafts."""
    for above, name in itertools.pairwise(name for name in names if prices.get(name)):
        slow, other = prices[name], prices[above]
        if slow and other and slow.of(1) > _MARGIN * other.of(1) + _NOISE:
            log.warning(
                "%s cannot speed up %s: a pass takes %.3g ms, one of %s %.3g ms; leave it out of the draft",
                *(name, above, 1e3 * slow.of(1), above, 1e3 * other.of(1)),
            )


def _one_row(decoder: Decoder) -> Price | None:
    """The price of a pass of one row, all that a fixed pace needs to know. None if the context is too short."""
    if decoder not in _ones:
        _ones[decoder] = None
        if decoder.config.context_length > _PREFIX:
            price = quick(decoder, _QUICK[:1], _PREFIX)
            again = [quick(decoder, _QUICK[:1], _PREFIX) for _ in range(_AGAIN)] if price.of(1) < _BRIEF else []
            _ones[decoder] = min([price, *again], key=lambda each: each.of(1))
    return _ones[decoder]


def price_at_start(decoder: Decoder) -> Price | None:
    """What passes of a decoder cost when its model was loaded; None if nobody has measured it."""
    return _known.get(decoder)


def first_price(decoder: Decoder) -> Price | None:
    """A first opinion of what passes cost. None if passes take too long to find out."""
    if decoder not in _known:
        _known[decoder] = _found_price(decoder)
    return _known[decoder]


def _found_price(decoder: Decoder) -> Price | None:
    rows = [count for count in _QUICK if count + _PREFIX <= decoder.config.context_length]
    one = quick(decoder, rows[:1], _PREFIX).of(1) if rows else math.inf
    if one > _SLOW:
        return None
    if one < _FAST:
        return _farther(decoder, quick(decoder, rows, _PREFIX))
    known = remembered.recall(decoder, one)
    price = known or Price.measured({1: one, **quick(decoder, rows[1:], _PREFIX, warm=True).seconds})
    farther = _farther(decoder, price)
    if farther is not known:
        remembered.keep(decoder, farther)
    return farther


def _farther(decoder: Decoder, price: Price) -> Price:
    """The price of many rows, too, if rows cost little as far as they were measured."""
    last = max(price.seconds)
    rows = [count for count in _MANY if last < count and count + _PREFIX <= decoder.config.context_length]
    if last < _QUICK[-1] or not rows or price.of(last) > min(_SHORT, _CHEAP * price.of(1)):
        return price
    return Price.measured({**price.seconds, **quick(decoder, rows, _PREFIX, warm=True).seconds})
