"""EAGLE: a small trained decoder that follows the target's hidden states.

Each row is made of a token and of a state of the row before it (`foretoken.trained.following`). The target's states
come with the verdicts. In a draft, the drafter's own take their place. So the rows of a draft are dropped after each
verdict, and those tokens that were accepted are run again, now behind the target's states. A draft is made only where
the states of all tokens but the last are known: the first pass over a prompt has none.

Source: Li et al. 2024, "EAGLE-2: faster inference of language models with dynamic draft trees", and 2025, "EAGLE-3:
scaling up inference acceleration of large language models via training-time test".
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.reading import Open
from foretoken.drafters.seeing import Seeing
from foretoken.drafters.tree import TreeDrafter
from foretoken.protocol.telemetry import Cost, Work
from foretoken.protocol.types import Request, Turn, Verdict
from foretoken.trained.following import Before, FollowingDecoder


@dataclass(eq=False, kw_only=True)
class Following(Seeing):
    """What a chain and a tree of EAGLE's have in common."""

    _before: dict[int, Before] = field(init=False, default_factory=dict)  # by sequence

    @property
    def _decoder(self) -> FollowingDecoder:
        assert isinstance(self.model, FollowingDecoder)
        return self.model

    def begin(self, requests: Sequence[Request]) -> None:
        """Take new sequences on."""
        super().begin(requests)
        self._before.update((request.sequence, Before(known=self._known[request.sequence])) for request in requests)

    def observe(self, verdicts: Sequence[Verdict]) -> list[Work]:
        """Keep the target's states, and of the rows those that followed such states."""
        reduced = self._keep(verdicts)
        work: list[Work] = list(super().observe(verdicts) or ())  # type: ignore[misc]
        for verdict in verdicts:
            if not verdict.prompt_left:
                self._readings[verdict.sequence].keep(verdict.position)
            if verdict.unverified:
                work += self._go_on(verdict.sequence)
        return [*reduced, *work]

    def _go_on(self, sequence: int) -> list[Work]:
        """Nobody checks the text any more: what the drafter puts out takes the place of the target's states, row by
        row, because each row needs the one before."""
        reading, before = self._readings[sequence], self._before[sequence]
        began, rows, cost = time.perf_counter(), 0, Cost()
        reading.keep(len(before.known))
        self._decoder.follow(reading.open(), before)
        while (at := len(before.known)) < len(reading.text) - 1:
            made = reading.read(at + 1)
            if at not in before.positions:  # there is no room, or an earlier state is not known
                break
            rows, cost = rows + 1, sum((each.cost for each in made), cost)
            before.known.append(before.positions[at])
        if not rows:
            return []
        return [Work(self.name, rows, began, time.perf_counter() - began, passes=rows, cost={self.name: cost})]

    def opened(self, turn: Turn, count: int) -> Open | None:
        """A sequence ready for a draft. None if a state is not known that a row of its text must follow, or if there is
        no such row."""
        reading = self._readings[turn.sequence]
        if not self._knows(turn.sequence) or len(reading.text) <= self._decoder.skips:
            return None
        self._decoder.follow(reading.open(), self._before[turn.sequence])
        return super().opened(turn, count)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        super().end(sequence)
        self._before.pop(sequence, None)

    def _read(self, sequence: int, stop: int) -> list[Work]:
        """Read as much as the known states allow."""
        before = self._before[sequence]
        self._decoder.follow(self._readings[sequence].open(), before)
        return super()._read(sequence, min(stop, len(before.known) + 1))


@dataclass(eq=False, kw_only=True)
class EagleDrafter(Following, ModelDrafter):
    """A chain."""


@dataclass(eq=False, kw_only=True)
class EagleTreeDrafter(Following, TreeDrafter):
    """A tree."""
