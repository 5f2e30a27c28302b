"""What rounds did and what they cost. Measured where it happens, for statistics, pictures and records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one or more calls of a decoder.

    `flops`: floating-point operations; a multiplication and an addition count as two. `weight_bytes`: bytes read of
    weights, in their format, and of embedding rows. A weight counts once for each call, whatever the number of rows, as
    if no cache of the processor held it. `cache_bytes`: bytes of keys and values. Committed ones that are read count
    once for each call, sequence and layer; those that are written count, too.
    """

    flops: int = 0
    weight_bytes: int = 0
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
    """What one level of a drafter did in one call. Without this, the cost of inner levels would be invisible.

    The level computed `rows` rows in `passes` passes of its model and gained `draft_tokens`. The work began at `began`
    (`time.perf_counter`) and took `seconds`. If the level checked a draft of the level below, the draft had
    `checked_tokens` tokens, of which `accepted_tokens` were right. The work of different levels does not overlap in
    time. `cost` is by the name of the level whose decoder did the work, or `target`. If sequences shared passes, cost
    and seconds are those of all of them.
    """

    level: str
    rows: int = 0
    began: float = 0.0
    seconds: float = 0.0
    draft_tokens: int = 0
    checked_tokens: int = 0
    accepted_tokens: int = 0
    passes: int = 0
    cost: Mapping[str, Cost] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What one round did, for statistics, pictures and (later) the pace. Times are in seconds.

    By sequence s: `drafted[s]` and `accepted[s]` count tokens of its draft. `new_tokens[s]` counts the tokens gained,
    the bonus included. `work[s]` is the work that went into its draft. `read[s]` counts the tokens of its prompt that
    were read. A sequence in `read` was reading its prompt in this round; the last such round brings its first token.

    `dropped` counts drafts that were late, repeated or for an unknown sequence. The round began at `began`
    (`time.perf_counter`) with drafting; checking followed. `cost` is what decoders computed and read for all sequences
    of the round, by the name of their level.
    """

    round: int
    drafted: Mapping[int, int]
    accepted: Mapping[int, int]
    new_tokens: Mapping[int, int]
    propose_seconds: float
    check_seconds: float
    dropped: int = 0
    work: Mapping[int, tuple[Work, ...]] = field(default_factory=dict)
    began: float = 0.0
    cost: Mapping[str, Cost] = field(default_factory=dict)
    read: Mapping[int, int] = field(default_factory=dict)


def together(costs: Iterable[Mapping[str, Cost]]) -> dict[str, Cost]:
    """Costs by level, added up."""
    total: dict[str, Cost] = {}
    for each in costs:
        for name, cost in each.items():
            total[name] = total[name] + cost if name in total else cost
    return total
