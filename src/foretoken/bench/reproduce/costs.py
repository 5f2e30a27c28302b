"""What passes cost beside each other: measured in turn, for what a method is predicted to gain."""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

from foretoken.bench.generations import speedup
from foretoken.bench.reproduce.paper import beside, share
from foretoken.bench.reproduce.workbench import Measured, Workbench
from foretoken.prices.measuring import measure

COST_NOTE = (
    "c is what an inner pass costs beside a plain one, both measured here, in turn: a pass of the low-bit copy over so "
    "many rows, over a pass of the model over one row, behind a prefix of the median length whose keys and values are "
    "there; without a cache both passes are over the prefix, too. That a check of more rows costs more than one of one "
    "row is in the measurement and not in the prediction."
)


class Predicted(NamedTuple):
    """A method whose round costs so many passes of the model and so many of its copy in a `format`, each of the latter
    over `inner_rows`; its gain is over the method `over`. most: tokens of a whole draft. cache: whether it keeps keys
    and values."""

    method: str
    over: str
    format: str
    plain_passes: int
    inner_passes: int
    inner_rows: int
    most: int
    cache: bool = True


def predict(bench: Workbench, ours: Measured, its: Predicted) -> dict[str, Any]:
    """A row: what the costs of passes predict that the method gains, (accepted + 1) / (plain + inner c), and what it
    gained."""
    assert ours.subject is not None
    opened = bench.open(ours.subject)
    prices = measure(
        {"plain": opened.plain.target, "inner": opened.copy(its.format)},
        prefix=round(median(each.prompt_tokens + each.tokens / 2 for each in ours.generations)),
        rows=sorted({1, its.inner_rows}),
        cached=its.cache,
    )
    c = prices["inner"].whole(its.inner_rows) / prices["plain"].whole(1)
    accepted, _ = ours.accepted(its.method, its.most)
    predicted = None if accepted is None else (accepted + 1) / (its.plain_passes + its.inner_passes * c)
    gained, interval = speedup(ours.generations, its.method, its.over)
    return {
        "ours on": ours.called,
        "method": its.method,
        "accepted a check": beside(None, accepted),
        "inner passes": its.inner_passes,
        "rows of each": its.inner_rows,
        "c": beside(None, c),
        "predicted speed-up": beside(None, predicted),
        "measured": beside(None, gained, interval),
        "of the prediction": beside(None, share(gained, predicted)),
    }
