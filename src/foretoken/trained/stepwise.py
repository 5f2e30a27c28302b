"""A decoder each of whose passes begins or ends with something of its own, so that a chain is a pass for each token."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from foretoken import kernels
from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder, Drafted
from foretoken.decoder.outputs import Outputs, Scored, step_by_step
from foretoken.decoder.rows import Rows, chain
from foretoken.formats.table import Format
from foretoken.protocol.telemetry import Cost
from foretoken.trained.parts import Parts


class StepwiseDecoder(Decoder):
    """A subclass says what `forward` does, or what the logits of the output layer stand for (`_scored`)."""

    @torch.no_grad()
    def run(self, rows: Rows) -> Outputs:
        """As `Decoder.run`."""
        hidden, scored = self._ran(rows)
        return Outputs(hidden, self._score(rows), self._together(rows), scored=scored)

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
        return hidden, self._scored(self.head(hidden, rows))

    def _scored(self, logits: torch.Tensor) -> Scored:
        """What logits of the output layer, float32 [N, valid_vocab_size], stand for."""
        return Scored(logits, lambda row: kernels.argmax(logits[row]))

    def _beside(self, tensors: Mapping[str, torch.Tensor], format: Format | None) -> Parts:
        """What lies beside its layers, multiplied with as its arithmetic does. format: as `Parts` has it."""
        engine, _, isa = self.arithmetic.partition(" ")
        is_native = engine == "native"
        dtype = torch.bfloat16 if is_native else self.weights.embedding.dtype
        own = {name: each.to(self.device) for name, each in tensors.items()}
        return Parts(own, isa if is_native else None, self.threads, format, dtype)
