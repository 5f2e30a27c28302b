"""A decoder whose rows are made of two things: the embedding of their token, and a state of the row before.

EAGLE's drafters are such decoders. Where the target has computed the row before, its state is the target's; in a draft
it is what this decoder itself put out. So a row can only run when the row before has run: several guesses cannot be
checked in one pass, and no other drafter can speed it up.

Source: Li et al. 2024, "EAGLE-2", and 2025, "EAGLE-3".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from foretoken import kernels
from foretoken.decoder.cache import Cache
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.decoder import Decoder, Drafted
from foretoken.decoder.outputs import Outputs, Scored, step_by_step
from foretoken.decoder.rows import Rows, chain
from foretoken.decoder.weights import Weights
from foretoken.formats.quantiser import quantise
from foretoken.formats.table import Format
from foretoken.formats.weight import QuantisedWeight
from foretoken.kernels import native
from foretoken.protocol.telemetry import Cost
from foretoken.trained.config import EAGLE3, StackConfig

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


class FollowingDecoder(Decoder):
    """stack: the sizes of the drafter. more: its tensors beside the decoder's layers. format: to cast its projections
    to; None, or without the native module: bf16. The others are `Decoder`'s."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        stack: StackConfig,
        more: Mapping[str, torch.Tensor],
        format: Format | None = None,
        *,
        threads: int | None = None,
        promise: str = "exact",
        arithmetic: str = "auto",
    ) -> None:
        super().__init__(config, weights, threads=threads, promise=promise, arithmetic=arithmetic)
        self.stack = stack
        self._isa = self.arithmetic.partition(" ")[2] if self.arithmetic.startswith("native") else None
        format = None if self._isa is None else format
        dtype = torch.bfloat16 if self._isa is not None else weights.embedding.dtype
        self._inputs = "bf16" if format is None else "int8"
        self._norms = {
            n: each.to(self.device, torch.float32).contiguous() for n, each in more.items() if each.ndim == 1
        }
        matrices = {name: each for name, each in more.items() if each.ndim == 2}
        self._projections: dict[str, torch.Tensor | QuantisedWeight] = {
            name: each.to(self.device, dtype).contiguous()
            if format is None
            else quantise(each.float(), format, name=name, threads=self.threads)
            for name, each in matrices.items()
        }
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
        return self._multiplied(seen.to(self.device), "reduction.weight")

    def cost_of_reducing(self, rows: int) -> Cost:
        """What `reduced` costs."""
        weight = self._projections.get("reduction.weight")
        return Cost() if weight is None else Cost(2 * rows * math.prod(weight.shape), weight.nbytes)

    @torch.no_grad()
    def forward(self, rows: Rows) -> torch.Tensor:
        """As `Decoder.forward`."""
        hidden = self.layers(self._entered(rows), rows)
        self._remember(rows, hidden)
        return hidden

    @torch.no_grad()
    def run(self, rows: Rows) -> Outputs:
        """As `Decoder.run`."""
        hidden, scored = self._ran(rows)
        return Outputs(hidden, self._score(rows), self._together(rows), scored=scored)

    @torch.no_grad()
    def check(
        self,
        rows: Rows,
        wanted: Sequence[range],
        taps: Sequence[int] = (),
        between: Callable[[], object] | None = None,
    ) -> Outputs:
        """As `Decoder.check`, in one piece: neither taps nor pauses."""
        outputs = Outputs(self.forward(rows), self._score(rows), self._together(rows))
        outputs.prepare(self._first(rows, wanted))
        return outputs

    @torch.no_grad()
    def draft_chain(self, cache: Cache, token: int, count: int, *, writer: int | None = None) -> Drafted:
        """As `Decoder.draft_chain`, a pass for each token."""
        if count < 1:
            return Drafted([], Cost())
        rows, cost = chain(cache, [token] * count, writer=writer), Cost()

        def step(row: Rows) -> tuple[torch.Tensor, Scored]:
            nonlocal cost
            ran = self._ran(row)
            cost += row.cost
            return ran

        tokens = step_by_step(step, token, rows)
        return Drafted(tokens, cost)

    def _ran(self, rows: Rows) -> tuple[torch.Tensor, Scored]:
        hidden = self.forward(rows)
        logits = self.head(hidden, rows)
        return hidden, Scored(logits, lambda row: kernels.argmax(logits[row]))

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
        width = self.config.hidden_size
        rows.cost += Cost(2 * len(rows) * 2 * width * width, self._projections["combination.weight"].nbytes)
        pair = [embedded, torch.from_numpy(states).to(self.device)]
        if self.stack.method == EAGLE3:
            pair = [self._normed(x, name) for x, name in zip(pair, ("embedded_norm", "seen_norm"), strict=True)]
        both = np.concatenate([x.cpu().numpy() for x in pair], axis=1)
        return self._multiplied(torch.from_numpy(both).to(self.device), "combination.weight")

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

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self._norms[f"{name}.weight"]
        if self._isa is not None:
            return native.rms_norm(x.contiguous(), weight, self.config.norm_eps, self._isa)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.norm_eps) * weight

    def _multiplied(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self._projections[name]
        if self._isa is not None:
            return native.linear(x.contiguous(), weight, None, self._isa, self.threads, inputs=self._inputs)
        assert isinstance(weight, torch.Tensor)
        return torch.nn.functional.linear(x.to(weight.dtype), weight).float()
