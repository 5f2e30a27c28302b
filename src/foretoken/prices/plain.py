"""Estimates how fast plain decoding would have been, from the passes of a generation with drafts."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord

_SMALL = 3  # the fewest passes of one or two rows: larger passes say too little about their cost
_FEWEST, _ENOUGH = 8, 40  # passes for an estimate: with fewer it would be chance, with more it takes milliseconds


def plain_speed(records: Sequence[RoundRecord], sequence: int, price: Price | None = None) -> float:
    """Tokens per second of plain decoding: 1 over the seconds of a pass of one row.

    The estimate uses the passes that checked only this sequence's drafts: passes that several sequences shared say
    nothing of one sequence alone. Fewer than eight such passes, or fewer than three of one or two rows, do not tell how
    the seconds rise with the rows. Then the `price` that was measured before tells it, if there is one. Without one,
    and with fewer than three passes, the estimate is 0.
    """
    alone = [
        (1 + record.drafted.get(sequence, 0), record.check_seconds)
        for record in records
        if not record.read and not record.unverified and set(record.new_tokens) == {sequence}
    ]
    if len(alone) < _FEWEST or sum(rows <= 2 for rows, _ in alone) < _SMALL:
        if price is None or len(alone) < _SMALL:
            return 0.0
        return 1 / (price.of(1) * median(seconds / price.of(rows) for rows, seconds in alone))
    seconds = Price.observed(alone[:: -(-len(alone) // _ENOUGH)]).of(1)
    return 1 / seconds if seconds > 0 else 0.0
