"""The contents of a picture of rounds: when each level worked, and what became of the tokens of each pass.

Times are seconds of decoding. The time between two rounds, such as for printing text, is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from foretoken.protocol.telemetry import RoundRecord


@dataclass(frozen=True)
class Pass:
    """One piece of a level's work. Of its `drafted` tokens, the level above accepted the first `accepted`."""

    level: int
    start: float
    seconds: float
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Round:
    """One round. The target's check begins at `check` and ends the round, with the accepted tokens and the bonus."""

    number: int
    start: float
    check: float
    end: float
    drafted: int
    accepted: int
    new_tokens: int
    passes: tuple[Pass, ...]
    # tokens that the pace allowed each level on one path, nearest to the target first; of a tree, those that were sent
    allowed: tuple[int, ...] = ()

    @property
    def seconds(self) -> float:
        """How long the round took."""
        return self.end - self.start


def lanes(records: Sequence[RoundRecord], levels: Sequence[str]) -> list[Round]:
    """The rounds in which no prompt is read. Several sequences of one round are drawn as one. What was drafted while
    the target checked is drawn there, in the round before."""
    rounds: list[Round] = []
    now = 0.0
    for record in records:
        if record.read:
            continue
        check = now + record.propose_seconds
        earliest = rounds[-1].check if rounds else now
        made = [each for sequence in record.work for each in _passes(record, sequence, levels, (earliest, now, check))]
        passes = [each for each in made if each.start >= now]
        if len(passes) < len(made):
            before = [each for each in made if each.start < now]
            rounds[-1] = replace(rounds[-1], passes=(*rounds[-1].passes, *before))
        rounds.append(
            Round(
                number=len(rounds) + 1,  # reading a prompt may have taken several rounds
                start=now,
                check=check,
                end=check + record.check_seconds,
                drafted=sum(record.drafted.values()),
                accepted=sum(record.accepted.values()),
                new_tokens=sum(record.new_tokens.values()),
                passes=tuple(passes),
                allowed=tuple(max(each) for each in zip(*map(partial(_allowed, record), record.budgets), strict=True)),
            )
        )
        now = rounds[-1].end
    return rounds


def _allowed(record: RoundRecord, sequence: int) -> tuple[int, ...]:
    sent = record.drafted.get(sequence, 0)
    return tuple(each.longest if each.width == 1 else min(each.rows, sent) for each in record.budgets[sequence])


def _passes(record: RoundRecord, sequence: int, levels: Sequence[str], times: tuple[float, float, float]) -> list[Pass]:
    """The passes for a sequence. Work is in the order of time: what a level drafts is checked by the next work of the
    level above. times: when the check before began, when drafting began, and when it ended."""
    earliest, first, last = times
    done: list[Pass] = []
    waiting: dict[int, list[int]] = {}  # by level: its passes whose tokens are not checked yet
    for item in record.work[sequence]:
        if item.level not in levels:
            continue
        level = levels.index(item.level)
        start = item.began - record.began + first
        meanwhile = earliest <= start < first  # made while the target checked the draft before
        if not meanwhile:
            start = min(max(start, first), last)  # a remote drafter may have a different clock
        ends = first if meanwhile else last
        if item.draft_tokens > 0:
            _judge(done, waiting.pop(level + 1, []), item.checked_tokens, item.accepted_tokens)
            waiting.setdefault(level, []).append(len(done))
        done.append(Pass(level, start, min(max(item.seconds, 0.0), ends - start), item.draft_tokens))
    _judge(
        done,
        waiting.pop(record.begins_at(sequence), []),
        record.drafted.get(sequence, 0),
        record.accepted.get(sequence, 0),
    )
    return done


def _judge(done: list[Pass], waiting: Sequence[int], drafted: int, accepted: int) -> None:
    """Set for some passes how many of their tokens were checked (the rest was cut off), and how many were accepted."""
    for i in waiting:
        mine = min(done[i].drafted, drafted)
        right = min(mine, accepted)
        done[i] = Pass(done[i].level, done[i].start, done[i].seconds, mine, right)
        drafted, accepted = drafted - mine, accepted - right


def rows_of(rounds: Sequence[Round], count: int, most: float) -> tuple[list[list[Round]], float]:
    """The rounds in at most `count` rows, in order, and the seconds of the widest row, which is as narrow as possible.

    A round that takes more than `most` seconds counts as `most` and ends its row: the rest of the round is not drawn.
    """
    low, high = 0.0, sum(min(r.seconds, most) for r in rounds)
    for _ in range(40):
        middle = (low + high) / 2
        rows = _packed(rounds, middle, most)
        fits = len(rows) <= count and all(_width(row, most) <= middle for row in rows)
        low, high = (low, middle) if fits else (middle, high)
    rows = _packed(rounds, high * (1 + 1e-9), most)
    return rows, max(_width(row, most) for row in rows)


def _packed(rounds: Sequence[Round], width: float, most: float) -> list[list[Round]]:
    rows: list[list[Round]] = []
    for r in rounds:
        if not rows or rows[-1][-1].seconds > most or _width([*rows[-1], r], most) > width:
            rows.append([])
        rows[-1].append(r)
    return rows


def _width(row: Sequence[Round], most: float) -> float:
    return sum(min(r.seconds, most) for r in row)
