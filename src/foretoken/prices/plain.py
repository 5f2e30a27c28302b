"""How fast plain decoding would have been, told by the passes of a generation that was drafted for."""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord

_SMALL = 3  # passes of one or two rows, at least: what larger ones cost says too little of a small one
_FEWEST, _ENOUGH = 8, 40  # passes that the estimate is made of: fewer are chance, more take milliseconds


def plain_speed(records: Sequence[RoundRecord], sequence: int) -> float:
    """Tokens a second: one by the seconds that a pass of one row takes, by the passes that only checked this sequence's
    drafts. 0 of few passes: a pass that others shared says nothing of one alone."""
    alone = [
        (1 + record.drafted.get(sequence, 0), record.check_seconds)
        for record in records
        if not record.read and set(record.new_tokens) == {sequence}
    ]
    if len(alone) < _FEWEST or sum(rows <= 2 for rows, _ in alone) < _SMALL:
        return 0.0
    seconds = Price.observed(alone[:: -(-len(alone) // _ENOUGH)]).of(1)
    return 1 / seconds if seconds > 0 else 0.0
