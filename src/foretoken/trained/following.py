"""A decoder whose rows are made of two things: the embedding of their token, and a state of the row before.

EAGLE's drafters are such decoders. Where the target has computed the row before, its state is the target's; in a draft
it is what this decoder itself put out. So a row can only run when the row before has run: several guesses cannot be
checked in one pass, and no other drafter can speed it up.

Source: Li et al. 2024, "EAGLE-2", and 2025, "EAGLE-3".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.rows import Rows
from foretoken.decoder.weights import Weights
from foretoken.formats.table import Format
from foretoken.protocol.telemetry import Cost
from foretoken.trained.config import EAGLE3, StackConfig
from foretoken.trained.files import Trained
from foretoken.trained.stepwise import StepwiseDecoder

_Floats = npt.NDArray[np.float32]


@dataclass(eq=False)
class Before:
    """The states that the rows of one cache follow. known: the target's, by position, as `FollowingDecoder.reduced`
    gives them. own: those of rows of a draft, by slot and by position."""

    known: list[_Floats] = field(default_factory=list)
    slots: dict[int, _Floats] = field(default_factory=dict)
    positions: dict[int, _Floats] = field(default_factory=dict)

    def of(self, cache: Cache, slot: int) -> _Floats | None:
        """The state of the row before the one in a slot; None if there is none."""
        position, parent = cache.position(slot) - 1, cache.parent_of(slot)
        if position < len(self.known):
            return self.known[position] if position >= 0 else None
        return self.slots.get(parent) if parent >= 0 else self.positions.get(position)


class FollowingDecoder(StepwiseDecoder):
    """trained: the drafter as it was read. format: to cast its projections to, as `Parts` has it. The others are
    `Decoder`'s."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        trained: Trained,
        format: Format | None = None,
        *,
        threads: int | None = None,
        arithmetic: str = "auto",
    ) -> None:
        super().__init__(config, weights, threads=threads, arithmetic=arithmetic)
        assert isinstance(trained.config, StackConfig)
        self.stack = trained.config
        self._parts = self._beside(trained.more, format)
        self._before: WeakKeyDictionary[Cache, Before] = WeakKeyDictionary()

    def follow(self, cache: Cache, before: Before) -> None:
        """From now on the rows of a cache follow these states."""
        before.slots.clear()
        before.positions.clear()
        self._before[cache] = before

    def reduced(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """What rows follow of the target's states: float32 [rows, hidden]. features: as `needs` names them."""
        if self.stack.sees_normed:
            return features["normed"]
        seen = torch.from_numpy(np.concatenate([features[f"hidden.{at}"].cpu().numpy() for at in self.stack.sees], 1))
        return self._parts.multiplied(seen.to(self.device), "reduction")

    def cost_of_reducing(self, rows: int) -> Cost:
        """What `reduced` costs."""
        return Cost() if self.stack.sees_normed else self._cost_of("reduction.weight", rows)

    def _cost_of(self, matrix: str, rows: int) -> Cost:
        return Cost(2 * rows * self._parts.numbers[matrix], self._parts.bytes_of(matrix))

    @torch.no_grad()
    def forward(self, rows: Rows) -> torch.Tensor:
        """As `Decoder.forward`."""
        hidden = self.layers(self._entered(rows), rows)
        self._remember(rows, hidden)
        return hidden

    def _entered(self, rows: Rows) -> torch.Tensor:
        """The rows' input: float32 [N, hidden]."""
        embedded = self.embed(rows)
        states = np.zeros(tuple(embedded.shape), dtype=np.float32)
        for segment in rows.segments:
            before = self._before.get(segment.cache)
            if before is None:
                continue
            if segment.slots.start == 0:
                before.slots.clear()
            for row, slot in enumerate(segment.slots, segment.span.start):
                state = before.of(segment.cache, slot)
                if state is not None:
                    states[row] = state
        rows.cost += self._cost_of("combination.weight", len(rows))
        pair = [embedded, torch.from_numpy(states).to(self.device)]
        if self.stack.method == EAGLE3:
            named, eps = zip(pair, ("embedded_norm", "seen_norm"), strict=True), self.config.norm_eps
            pair = [self._parts.normed(x, name, eps) for x, name in named]
        both = np.concatenate([x.cpu().numpy() for x in pair], axis=1)
        return self._parts.multiplied(torch.from_numpy(both).to(self.device), "combination")

    def _remember(self, rows: Rows, hidden: torch.Tensor) -> None:
        """Keep what rows of a draft put out, for the rows that will follow them."""
        states: _Floats | None = None
        for segment in rows.segments:
            before = self._before.get(segment.cache)
            for row, slot in enumerate(segment.slots, segment.span.start):
                position = rows.positions[row]
                if before is None or position < len(before.known):
                    continue
                if states is None:
                    put_out = self.norm(hidden) if self.stack.sees_normed else hidden
                    states = put_out.cpu().numpy()
                before.slots[slot] = before.positions[position] = states[row]
