"""What rounds cost and what was done in them: measured where it happens, for statistics, pictures and records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from foretoken.protocol.budget import Budget


@dataclass(frozen=True, slots=True)
class Cost:
    """What calls of a decoder cost together, counted from shapes, positions and layers."""

    # Floating-point operations. A multiplication and an addition are two.
    flops: int = 0
    # Bytes read of weights, in their format, and of embedding rows. Each call is taken to read a weight once, whatever
    # its number of rows, and to find nothing in the processor's caches.
    weight_bytes: int = 0
    # Bytes of keys and values: those that were written, and the committed ones that were read, once for each call,
    # sequence and layer.
    cache_bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.weight_bytes + other.weight_bytes,
            self.cache_bytes + other.cache_bytes,
        )

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            self.flops - other.flops,
            self.weight_bytes - other.weight_bytes,
            self.cache_bytes - other.cache_bytes,
        )


@dataclass(frozen=True, slots=True)
class Work:
    """What one level of a draft did in one call. The work of different levels does not overlap in time. Some may have
    been done while the target checked the draft before."""

    # The level's name.
    level: str
    # How many rows its model computed. Without a pass: how many tokens were caught up with before the first pass.
    rows: int = 0
    # When the work began (`time.perf_counter`).
    began: float = 0.0
    # How long the work took.
    seconds: float = 0.0
    # How many draft tokens the work gave.
    draft_tokens: int = 0
    # How many tokens of the level below were checked.
    checked_tokens: int = 0
    # How many of these were accepted.
    accepted_tokens: int = 0
    # How many passes the level's model made.
    passes: int = 0
    # What the work cost, by the level whose decoder did it, or `target`. If sequences shared passes, the cost is that
    # of all of them, as the seconds are.
    cost: Mapping[str, Cost] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What one round did: drafting, then the check.

    Mappings lead from a sequence's number to its value, and those of `cost` from a level's name.
    """

    # The number of the round.
    round: int
    # How many tokens were drafted.
    drafted: Mapping[int, int]
    # How many draft tokens were accepted.
    accepted: Mapping[int, int]
    # How many tokens the sequence gained, the bonus token included.
    new_tokens: Mapping[int, int]
    # The seconds of drafting.
    propose_seconds: float
    # The seconds of the check.
    check_seconds: float
    # How many drafts were dropped: late ones, repeated ones, and those for an unknown sequence.
    dropped: int = 0
    # What each level of the draft did.
    work: Mapping[int, tuple[Work, ...]] = field(default_factory=dict)
    # When the round began (`time.perf_counter`).
    began: float = 0.0
    # What decoders computed and read in the round for all its sequences, by the name of their level.
    cost: Mapping[str, Cost] = field(default_factory=dict)
    # How much each level of the draft was allowed, nearest to the target first.
    budgets: Mapping[int, tuple[Budget, ...]] = field(default_factory=dict)
    # How many prompt tokens were read. A round with an entry here belongs to the prompt, also the last one, which gives
    # the first token.
    read: Mapping[int, int] = field(default_factory=dict)
    # Sequences whose draft came too late, or behind a wrong guess, and was passed over: the round's time is theirs,
    # too.
    late: frozenset[int] = frozenset()
    # Sequences whose draft became text without a check.
    unverified: frozenset[int] = frozenset()

    @property
    def allowed(self) -> dict[int, tuple[int, ...]]:
        """How many tokens each level of the draft was allowed on one path."""
        return {sequence: tuple(each.longest for each in own) for sequence, own in self.budgets.items()}

    def begins_at(self, sequence: int) -> int:
        """The level, counted from 0, whose draft the target checked: the first one that was allowed any tokens. 0 if
        none was, or if it is not known."""
        return next((at for at, own in enumerate(self.budgets.get(sequence, ())) if own.longest), 0)


def together(costs: Iterable[Mapping[str, Cost]]) -> dict[str, Cost]:
    """Costs by level, added up."""
    total: dict[str, Cost] = {}
    for each in costs:
        for name, cost in each.items():
            total[name] = total[name] + cost if name in total else cost
    return total
