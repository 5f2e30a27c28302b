"""A decoder whose rows are made of two things: the embedding of their token, and a state of the row before.

EAGLE's drafters are such decoders. Where the target has computed the row before, its state is the target's; in a draft
it is what this decoder itself put out. So a row can only run when the row before has run: several guesses cannot be
checked in one pass, and no other drafter can speed it up.

Source: Li et al. 2024, "EAGLE-2", and 2025, "EAGLE-3".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.rows import Rows
from foretoken.formats.table import Format
from foretoken.protocol.telemetry import Cost
from foretoken.protocol.types import Needs
from foretoken.trained.config import StackConfig
from foretoken.trained.files import Trained
from foretoken.trained.stepwise import StepwiseDecoder

_Floats = npt.NDArray[np.float32]


@dataclass(eq=False)
class Before:
    """The states that the rows of one cache follow. known: the target's, by position, as `FollowingDecoder.reduced`
    gives them. slots, positions: those of rows of a draft, by slot and by position. first: the position of the cache's
    first row in the text."""

    known: list[_Floats] = field(default_factory=list)
    slots: dict[int, _Floats] = field(default_factory=dict)
    positions: dict[int, _Floats] = field(default_factory=dict)
    first: int = 0

    def of(self, cache: Cache, slot: int) -> _Floats | None:
        """The state of the row before the one in a slot; None if there is none."""
        position, parent = self.first + cache.position(slot) - 1, cache.parent_of(slot)
        if position < len(self.known):
            return self.known[position] if position >= 0 else None
        return self.slots.get(parent) if parent >= 0 else self.positions.get(position)


class FollowingDecoder(StepwiseDecoder):
    """The arguments are `StepwiseDecoder`'s."""

    def _begin(self, trained: Trained, format: Format | None) -> None:
        self._its = trained.config
        self._parts = self._beside(trained.more, format)
        self._before: WeakKeyDictionary[Cache, Before] = WeakKeyDictionary()

    def follow(self, cache: Cache, before: Before) -> None:
        """From now on the rows of a cache follow these states."""
        before.slots.clear()
        before.positions.clear()
        before.first = self.skips
        self._before[cache] = before

    @property
    def needs(self) -> Needs:
        """What it needs of the target."""
        assert isinstance(self._its, StackConfig)
        return Needs(normed=True) if self._its.sees_normed else Needs(hidden=self._its.sees)

    def reduced(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """What rows follow of the target's states: float32 [rows, hidden]. features: as `needs` names them."""
        if self.needs.normed:
            return features["normed"]
        return self._parts.multiplied(self._beside_each_other(self._seen(features)), "reduction")

    def _seen(self, features: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        return [features[f"hidden.{at}"].to(self.device) for at in self.needs.hidden]

    def _beside_each_other(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """Rows of several states each: float32 [N, states * hidden]."""
        return torch.from_numpy(np.concatenate([each.cpu().numpy() for each in states], axis=1)).to(self.device)

    def cost_of_reducing(self, rows: int) -> Cost:
        """What `reduced` costs."""
        return Cost() if self.needs.normed else self._cost_of("reduction.weight", rows)

    def _cost_of(self, matrix: str, rows: int) -> Cost:
        return Cost(2 * rows * self._parts.numbers[matrix], self._parts.bytes_of(matrix))

    @torch.no_grad()
    def forward(self, rows: Rows) -> torch.Tensor:
        """As `Decoder.forward`."""
        hidden = self._through(rows, *self._pair(rows))
        self._remember(rows, hidden)
        return hidden

    def _through(self, rows: Rows, embedded: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """What the layers put out for rows of such embeddings and states, float32 [N, hidden] each."""
        rows.cost += self._cost_of("combination.weight", len(rows))
        pair = [embedded, states] if self.needs.normed else self._normed_pair(embedded, states)
        return self.layers(self._parts.multiplied(self._beside_each_other(pair), "combination"), rows)

    def _normed_pair(self, embedded: torch.Tensor, states: torch.Tensor) -> list[torch.Tensor]:
        named = ((embedded, "embedded_norm"), (states, "seen_norm"))
        return [self._parts.normed(x, name, self.config.norm_eps) for x, name in named]

    def _pair(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each row, the embedding of its token, and the state of the row before: float32 [N, hidden]."""
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
        return embedded, torch.from_numpy(states).to(self.device)

    def _handed_on(self, hidden: torch.Tensor) -> torch.Tensor:
        """The states that following rows see, of what the layers put out."""
        return self.norm(hidden) if self.needs.normed else hidden

    def _remember(self, rows: Rows, hidden: torch.Tensor) -> None:
        """Keep what rows of a draft put out, for the rows that will follow them."""
        states: _Floats | None = None
        for segment in rows.segments:
            before = self._before.get(segment.cache)
            for row, slot in enumerate(segment.slots, segment.span.start):
                position = self.skips + rows.positions[row]
                if before is None or position < len(before.known):
                    continue
                if states is None:
                    states = self._handed_on(hidden).cpu().numpy()
                before.slots[slot] = before.positions[position] = states[row]
