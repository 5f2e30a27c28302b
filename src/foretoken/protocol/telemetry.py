"""What rounds cost and what was done in them: measured where it happens, for statistics, pictures and records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Cost:
    """What calls of a decoder cost, together.

    `flops`: floating-point operations, of which a multiplication and an addition are two. `weight_bytes`: those read of
    weights in their format, and of embedding rows; a weight is taken to be read once a call, whatever the number of
    rows, and to be in no cache of the processor before. `cache_bytes`: of keys and values, those read of what is
    committed, once a call, sequence and layer, and those written.
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
    """What one level of a drafter did in one call: without it, the cost of inner levels would be invisible.

    It computed `rows` in some `passes` of its model, from `began` on (`time.perf_counter`) for some `seconds`, and
    gained `draft_tokens`. Where it checked what the level below it had drafted, once, `checked_tokens` of those
    `accepted_tokens` were right. The work of different levels does not overlap in time. `cost` is what that took, by
    the name of the level whose decoder did it, or `target`; where sequences shared passes, it is that of all of them,
    as the seconds are.
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
    """What one round did, for statistics, pictures and (later) the pace. Times in seconds.

    `drafted[s]` and `accepted[s]` count tokens of sequence s, `new_tokens[s]` what it gained, bonus included; `work[s]`
    is what went into its draft. `read[s]` counts tokens of its prompt that were read: a round that has it is one of the
    prompt's, also the last of them, which brings the first token. `dropped` counts drafts that were late, repeated or
    for an unknown sequence. The round began at `began` (`time.perf_counter`), with drafting; checking followed. `cost`
    is what decoders computed and read in it, for all its sequences, by the name of their level.
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
