"""What a level's drafts cost, and what they spared: an estimate from the rounds of one sequence.

Each accepted token is a pass of the level that checks which was not needed. How long that one, of a single row, would
have taken is read off the passes that were made: with how many rows, in which time, along a straight line. What the
rows of drafts added to those is a cost of the drafts, beside the time of drafting itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from foretoken.telemetry import RoundRecord

_MOST = 160  # passes that the line is drawn through: with all pairs of them, an instant


@dataclass(frozen=True)
class Worth:
    """Of one level, in seconds. `drafting`: its own and that of each level below it; `wider`: what checks took longer.

    `known` is false where nearly all passes had one number of rows: then `wider` is missing, and `spared` too much.
    """

    drafting: tuple[float, ...]
    wider: float
    accepted: int
    spared: float
    known: bool

    @property
    def cost(self) -> float:
        """All that its drafts cost."""
        return sum(self.drafting) + self.wider


def worth(records: Sequence[RoundRecord], levels: Sequence[str]) -> list[Worth]:
    """Of each level, nearest to the target first, from the rounds in which no prompt is read."""
    rounds = [record for record in records if not record.read]
    work = [w for record in rounds for its_work in record.work.values() for w in its_work]
    seconds = [sum(w.seconds for w in work if w.level == level) for level in levels]
    passes = [(1 + sum(record.drafted.values()), record.check_seconds) for record in rounds]
    accepted = sum(sum(record.accepted.values()) for record in rounds)
    found = []
    for i, level in enumerate(levels):
        known = _vary([rows for rows, _ in passes])
        one, each = line(passes) if known else (median([took for _, took in passes] or [0.0]), 0.0)
        found.append(
            Worth(
                drafting=tuple(seconds[i:]),
                wider=each * sum(rows - 1 for rows, _ in passes),
                accepted=accepted,
                spared=accepted * one,
                known=known,
            )
        )
        checks = [w for w in work if w.level == level and w.draft_tokens]
        passes = [(1 + w.checked_tokens, w.seconds) for w in checks]
        accepted = sum(w.accepted_tokens for w in checks)
    return found


def _vary(rows: Sequence[int]) -> bool:
    """Whether enough passes had other numbers of rows than most had."""
    others = len(rows) - max(map(rows.count, set(rows)), default=0)
    return others >= 3 and 20 * others >= len(rows)


def line(passes: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """What a pass of one row takes, and what each further row adds, from passes as (rows, seconds).

    Medians of slopes (Theil 1950, Sen 1968): a pass that lost its core for a while does not bend the line.
    """
    if not passes:
        return 0.0, 0.0
    some = passes[:: -(-len(passes) // _MOST)]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(some, 2) if a[0] != b[0]]
    each = max(0.0, median(slopes)) if slopes else 0.0
    return max(0.0, median(seconds - each * (rows - 1) for rows, seconds in some)), each
