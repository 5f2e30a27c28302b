"""Rounds made by hand, for the tests of pictures."""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.protocol.telemetry import RoundRecord, Work
from foretoken.results.completion import Completion
from foretoken.results.stats import summarise

PROMPT = RoundRecord(0, {}, {0: 0}, {0: 1}, 0.0, 0.02, read={0: 5})


def rounds(count: int, *, stall: int | None = None) -> list[RoundRecord]:
    """A ladder of `small` and `lookup`: lookup guesses 2, of which small takes 1; of small's 3 the target takes i % 4.

    stall: the round in which the machine did something else for half a second.
    """
    records, now = [PROMPT], 100.0
    for i in range(count):
        slow = 0.5 if i == stall else 0.001
        work = (
            Work("small", 2, now, 0.0005, passes=1),
            Work("lookup", 0, now + 0.0006, 0.000002, draft_tokens=2),
            Work("small", 3, now + 0.0007, slow, 2, 2, 1, passes=1),
            Work("lookup", 0, now + 0.0008 + slow, 0.000002),
            Work("small", 1, now + 0.0009 + slow, 0.0008, 1, passes=1),
        )
        right, propose, check = i % 4, 0.002 + slow, 0.004
        records.append(
            RoundRecord(i + 1, {0: 3}, {0: right}, {0: right + 1}, propose, check, work={0: work}, began=now)
        )
        now += propose + check + 0.01  # between rounds text is printed
    return records


def completion(records: Sequence[RoundRecord], levels: Sequence[str] = ("small", "lookup")) -> Completion:
    """What a model would return, as far as pictures look at it."""
    tokens = (7,) * sum(r.new_tokens[0] for r in records)
    stats = summarise(records, 0, levels)
    draft = ",".join(levels) or "none"
    return Completion(tokens, "", "length", (), "exact", draft, stats, "native", 1, rounds=tuple(records))
