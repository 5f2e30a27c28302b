"""What a level's drafts cost, and what they spared: an estimate from the rounds of one sequence.

Each accepted token spared one pass of the level that checks. The seconds of such a pass, with a single row, are read
off a straight line through the rows and seconds of the passes that were made. The seconds that the rows of drafts added
to these passes are a cost of the drafts, beside the time of drafting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretoken.prices.price import Price
from foretoken.protocol.telemetry import RoundRecord, Work

_Passes = list[tuple[int, float]]  # rows and seconds


@dataclass(frozen=True)
class Worth:
    """One level's worth, in seconds. drafting: its own time and that of each level below it. wider: how much longer the
    checks took. checks: how many drafts the target checked itself, and how many the level above. accepted: the tokens
    of these. known: false if nearly all passes had the same number of rows. Then `wider` is missing, and `spared` is
    too large.
    """

    drafting: tuple[float, ...]
    wider: float
    checks: tuple[int, int]
    accepted: tuple[int, int]
    spared: float
    known: bool

    @property
    def cost(self) -> float:
        """The whole cost of the level's drafts."""
        return sum(self.drafting) + self.wider


def worth(records: Sequence[RoundRecord], levels: Sequence[str]) -> list[Worth]:
    """The worth of each level, the level nearest to the target first, from the rounds in which no prompt is read."""
    rounds = [record for record in records if not record.read]
    found = []
    for at, level in enumerate(levels):
        ours = [record for record in rounds if _begins(record) == at]
        below = [record for record in rounds if _begins(record) < at]  # there, the level above checks
        above = [work for work in _works(below, levels[at - 1]) if work.draft_tokens]
        passes = [(1 + work.checked_tokens, work.seconds) for work in above]
        target, other = _Checked([*map(_check, rounds)], [*map(_check, ours)]), _Checked(passes, passes)
        own = _works(rounds, level)  # it reads along where it is left out, too
        lower = [_works([*ours, *below], name) for name in levels[at + 1 :]]
        accepted = (
            sum(sum(record.accepted.values()) for record in ours),
            sum(work.accepted_tokens for work in above),
        )
        found.append(
            Worth(
                drafting=tuple(sum(work.seconds for work in each) for each in [own, *lower]),
                wider=target.wider + other.wider,
                checks=(len(ours), len(above)),
                accepted=accepted,
                spared=accepted[0] * target.one + accepted[1] * other.one,
                known=all(each.known for each, count in zip((target, other), accepted, strict=True) if count),
            )
        )
    return found


def _begins(record: RoundRecord) -> int:
    """The level whose drafts the target checked in a round. All sequences of a round have the same, if they draft."""
    return next((record.begins_at(sequence) for sequence, allowed in record.allowed.items() if any(allowed)), 0)


def _works(records: Sequence[RoundRecord], level: str) -> list[Work]:
    return [work for record in records for its in record.work.values() for work in its if work.level == level]


def _check(record: RoundRecord) -> tuple[int, float]:
    """The rows of the target's check, and its seconds."""
    return 1 + sum(record.drafted.values()), record.check_seconds


class _Checked:
    """Passes of one model. known: whether it is known what a pass of one row takes, which is `one`, in seconds. wider:
    how much longer than that some of them took."""

    def __init__(self, passes: _Passes, some: _Passes) -> None:
        self.known = _vary([rows for rows, _ in passes])
        price = Price.observed(passes if self.known else [(1, took) for _, took in passes])
        self.one = price.of(1)
        self.wider = sum(price.of(rows) - self.one for rows, _ in some) if self.known else 0.0


def _vary(rows: Sequence[int]) -> bool:
    """Whether enough passes had a number of rows other than the most frequent one."""
    others = len(rows) - max(map(rows.count, set(rows)), default=0)
    return others >= 3 and 20 * others >= len(rows)
