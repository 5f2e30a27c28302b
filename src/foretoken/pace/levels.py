"""What is known of one level of a draft: the price of its passes, and how much of the drafts below it accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretoken.pace.acceptance import UNSURE, Acceptance, Counts
from foretoken.pace.cost import PassCost
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Budget

_PROPOSED = 0.99  # of the tokens that a level with a decoder may draft, before anything is known
PROBE = 2  # draft tokens of a draft that is made to learn
_PROBE_ROUNDS = 64  # a level that drafts nothing for the one above drafts once in so many rounds


@dataclass(frozen=True)
class Paced:
    """One level of a draft. most: its budget, with the largest length that the pace may choose; a width above 1 makes
    it a tree. free: whether the pace may choose the length. expected: the share of its tokens that is accepted
    before anything is known, for each kind of place in the text (`AutoPace`). weight: how many tokens that opinion
    is worth. cost: of its passes; None for a level without a decoder, which costs next to nothing. at_once: how many
    tokens it drafts in one pass. ends: whether its drafts end themselves, where they are unsure."""

    name: str
    most: Budget
    free: bool
    expected: tuple[float, ...]
    cost: PassCost | None = None
    weight: float = UNSURE
    at_once: int = 1
    ends: bool = False


class Inner(NamedTuple):
    """How a level drafts: seconds for each of its tokens, the budgets of the levels below it, and seconds for each of
    its passes. in_one_pass: it drafts all tokens in one."""

    seconds: float
    below: tuple[Budget, ...]
    each_pass: float = 0.0
    in_one_pass: bool = False

    def drafting(self, lengths: NDArray[np.intp]) -> NDArray[np.float64]:
        """The seconds of drafts of some lengths."""
        return np.asarray(
            self.each_pass * (lengths > 0) if self.in_one_pass else self.seconds * lengths, dtype=np.float64
        )

    def of_one(self, length: int) -> float:
        """The seconds of a draft."""
        return float(self.drafting(np.array(length)))


@dataclass
class Levels:
    """The levels of a draft, nearest to the target first. Chooses how the levels below each level draft for it."""

    levels: Sequence[Paced]
    _accepted: list[Acceptance] = field(init=False)  # of the drafts of each level, by the level above it
    _proposed: list[Counts] = field(init=False)  # of the tokens that each level might draft for the level above it
    _rounds: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        # within a round the kind of place changes, so drafts for the levels between are not told apart
        self._accepted = [Acceptance((_middle(level.expected),), level.weight) for level in self.levels]
        self._proposed = [Counts(half_life=512) for _ in self.levels]

    def inner(self, at: int, sequences: Sequence[int], width: int | None = None) -> Inner:
        """How level `at` drafts fastest for some sequences at once, which share its passes. width: how many tokens it
        expands in a pass; None: as many as it may.

        For a level with a decoder, the length that is allowed to the drafts below it is the one with the fewest
        seconds for each token: those of a pass with the draft of the level below, divided by the tokens that the pass
        is expected to give. A level that often proposes less than it may, as lookup does, costs less than it may.
        """
        level, deeper = self.levels[at], self.levels[at + 1 :]
        nothing = tuple(Budget(0, 0) for _ in deeper)
        if level.cost is None:
            return Inner(0.0, nothing)
        together = len(sequences)
        if level.at_once > 1:
            return self._in_one_pass(level, together, deeper)
        width = level.most.width if width is None else width
        base = level.cost.of(together * width)
        if not deeper:
            return Inner(base, (), base)
        first = deeper[0]
        below = self.inner(at + 1, sequences)
        most = min(first.most.rows, first.most.depth)
        gained = self._accepted[at + 1].survival(sequences, most).mean(axis=0)
        tokens = 1 + np.concatenate(([0.0], gained.cumsum()))  # of a pass, by the length of the draft that it checks
        rows = together * np.arange(width, width + most + 1)
        steps = np.diff(level.cost.upto(int(rows[-1]))[rows]) + below.seconds  # that each draft token adds
        likely = _PROPOSED if first.cost else _middle(first.expected)
        proposed = self._proposed[at + 1].chances(most, likely).cumprod()
        seconds = base + np.concatenate(([0.0], (proposed * steps).cumsum()))
        seconds /= tokens
        count = int(seconds.argmin()) if first.free else most
        each = float(seconds[count])
        if not count and first.free and self._rounds % _PROBE_ROUNDS == _PROBE_ROUNDS - 1:
            count = min(PROBE, most)
        own = Budget(count, count, first.most.width) if first.free else first.most
        return Inner(each, (own, *below.below) if count else nothing, each * float(tokens[count]))

    def _in_one_pass(self, level: Paced, together: int, deeper: Sequence[Paced]) -> Inner:
        """How a level drafts that needs one pass for a draft. Of the level below it, it takes as many guesses as it has
        places: they cost rows of that pass."""
        assert level.cost is not None
        guesses = 0 if not deeper else deeper[0].most.rows
        if deeper and deeper[0].free:
            guesses = min(level.at_once, guesses)
        seconds = level.cost.of(together * (level.at_once + guesses))
        own = (Budget(guesses, guesses),) * bool(deeper)
        return Inner(seconds / level.at_once, (*own, *(Budget(0, 0) for _ in deeper[1:])), seconds, in_one_pass=True)

    def heard(self, works: Mapping[int, Sequence[Work]], asked: Mapping[int, Sequence[int]]) -> None:
        """Learn from the work of a round, by sequence. asked: how many tokens each level was allowed."""
        self._rounds += 1
        for at, level in enumerate(self.levels):
            if level.cost is not None:
                _hear_passes(level.cost, [work for each in works.values() for work in each if work.level == level.name])
            if level.cost is None or at + 1 == len(self.levels):
                continue
            for sequence, each in works.items():
                allowed = asked.get(sequence, ())
                if len(allowed) > at + 1 and allowed[at + 1]:
                    self._hear_checks(at, sequence, [work for work in each if work.level == level.name], allowed)

    def forget(self, sequences: Sequence[int]) -> None:
        """Drop what was learned of some sequences by themselves."""
        for accepted in self._accepted:
            accepted.forget(sequences)

    def _hear_checks(self, at: int, sequence: int, works: Sequence[Work], allowed: Sequence[int]) -> None:
        left = allowed[at]
        for work in works:
            if work.draft_tokens:  # otherwise the pass only read tokens that the level lacked
                most = min(allowed[at + 1], left - 1)  # the last token is the level's own
                most = max(most, work.checked_tokens)
                self._accepted[at + 1].heard(sequence, most, work.accepted_tokens)
                self._proposed[at + 1].heard(most, work.checked_tokens)
                left -= work.draft_tokens


def _middle(expected: Sequence[float]) -> float:
    return expected[len(expected) // 2]


def _hear_passes(cost: PassCost, works: Sequence[Work]) -> None:
    """Sequences that share passes each report them: works of one beginning are one."""
    for _, shared in groupby(sorted(works, key=lambda work: work.began), key=lambda work: work.began):
        same = list(shared)
        passes = same[0].passes
        if passes == 1:
            cost.heard(sum(work.rows for work in same), same[0].seconds)
        elif passes > 1:
            cost.heard(len(same), same[0].seconds / passes)
