"""What a level's drafts cost, and what they spared: an estimate from the rounds of one sequence.

Each accepted token spared one pass of the level that checks. The seconds of such a pass, with a single row, are read
off a straight line through the rows and seconds of the passes that were made. The seconds that the rows of drafts added
to these passes are a cost of the drafts, beside the time of drafting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord


@dataclass(frozen=True)
class Worth:
    """One level's worth, in seconds. drafting: its own time and that of each level below it. wider: how much longer the
    checks took. known: false if nearly all passes had the same number of rows. Then `wider` is missing, and `spared` is
    too large.
    """

    drafting: tuple[float, ...]
    wider: float
    accepted: int
    spared: float
    known: bool

    @property
    def cost(self) -> float:
        """The whole cost of the level's drafts."""
        return sum(self.drafting) + self.wider


def worth(records: Sequence[RoundRecord], levels: Sequence[str]) -> list[Worth]:
    """The worth of each level, the level nearest to the target first, from the rounds in which no prompt is read."""
    rounds = [record for record in records if not record.read]
    work = [w for record in rounds for its_work in record.work.values() for w in its_work]
    seconds = [sum(w.seconds for w in work if w.level == level) for level in levels]
    passes = [(1 + sum(record.drafted.values()), record.check_seconds) for record in rounds]
    accepted = sum(sum(record.accepted.values()) for record in rounds)
    found = []
    for i, level in enumerate(levels):
        known = _vary([rows for rows, _ in passes])
        price = Price.observed(passes if known else [(1, took) for _, took in passes])
        found.append(
            Worth(
                drafting=tuple(seconds[i:]),
                wider=sum(price.of(rows) - price.of(1) for rows, _ in passes) if known else 0.0,
                accepted=accepted,
                spared=accepted * price.of(1),
                known=known,
            )
        )
        checks = [w for w in work if w.level == level and w.draft_tokens]
        passes = [(1 + w.checked_tokens, w.seconds) for w in checks]
        accepted = sum(w.accepted_tokens for w in checks)
    return found


def _vary(rows: Sequence[int]) -> bool:
    """Whether enough passes had a number of rows other than the most frequent one."""
    others = len(rows) - max(map(rows.count, set(rows)), default=0)
    return others >= 3 and 20 * others >= len(rows)
