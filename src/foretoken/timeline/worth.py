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
    begins = [
        next((record.begins_at(sequence) for sequence, allowed in record.allowed.items() if any(allowed)), 0)
        for record in rounds
    ]
    works = [[w for its_work in record.work.values() for w in its_work] for record in rounds]
    checks = [(1 + sum(record.drafted.values()), record.check_seconds) for record in rounds]
    found = []
    for at, level in enumerate(levels):
        ours = [began == at for began in begins]
        target = _Checked(checks, [check for check, its in zip(checks, ours, strict=True) if its])
        beneath = [w for work, began in zip(works, begins, strict=True) if began < at for w in work]
        above = [w for w in beneath if w.level == levels[at - 1] and w.draft_tokens]
        passes = [(1 + w.checked_tokens, w.seconds) for w in above]
        other = _Checked(passes, passes)
        drafted = [w for work, began in zip(works, begins, strict=True) if began <= at for w in work]
        own = [w for work in works for w in work if w.level == level]  # it reads along where it is left out, too
        lower = [[w for w in drafted if w.level == name] for name in levels[at + 1 :]]
        accepted = (
            sum(sum(record.accepted.values()) for record, its in zip(rounds, ours, strict=True) if its),
            sum(w.accepted_tokens for w in above),
        )
        found.append(
            Worth(
                drafting=tuple(sum(w.seconds for w in each) for each in [own, *lower]),
                wider=target.wider + other.wider,
                checks=(sum(ours), len(above)),
                accepted=accepted,
                spared=accepted[0] * target.one + accepted[1] * other.one,
                known=all(each.known for each, count in zip((target, other), accepted, strict=True) if count),
            )
        )
    return found


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
