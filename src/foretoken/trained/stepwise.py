"""The decoder of a trained drafter. Its passes begin or end with something of their own, so a chain is a pass for each
token."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.decoder import Decoder, Drafted
from foretoken.decoder.outputs import Outputs, Scored, step_by_step
from foretoken.decoder.rows import Rows, chain
from foretoken.decoder.weights import Weights
from foretoken.formats.table import Format
from foretoken.protocol.telemetry import Cost
from foretoken.trained.choosing import Choices
from foretoken.trained.files import Trained
from foretoken.trained.parts import Parts


class StepwiseDecoder(Decoder):
    """trained: the drafter as it was read. format: to cast what lies beside its layers to, as `Parts` has it. The
    others are `Decoder`'s.

    `head` gives logits of its own rows, which may be those of some tokens alone. Logits that come with a pass are those
    of all tokens, -inf where it cannot draft one. A subclass says what `forward` does, and what it begins with
    (`_begin`)."""

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
        self._choices = Choices(trained, config.valid_vocab_size)
        self._begin(trained, format)

    def _begin(self, trained: Trained, format: Format | None) -> None:
        """Take what lies beside the layers. The arguments are the constructor's."""

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

    def _score(self, rows: Rows) -> Callable[[torch.Tensor], Scored]:
        def score(hidden: torch.Tensor) -> Scored:
            with torch.no_grad():
                return self._scored(self.head(hidden, rows))

        return score

    def _scored(self, logits: torch.Tensor) -> Scored:
        """What logits of its own rows, float32 [N, valid_vocab_size], stand for."""
        return self._choices.scored(logits)

    def _beside(self, tensors: Mapping[str, torch.Tensor], format: Format | None) -> Parts:
        """What lies beside its layers, multiplied with as its arithmetic does. format: as `Parts` has it."""
        engine, _, isa = self.arithmetic.partition(" ")
        is_native = engine == "native"
        dtype = torch.bfloat16 if is_native else self.weights.embedding.dtype
        own = {name: each.to(self.device) for name, each in tensors.items()}
        return Parts(own, isa if is_native else None, self.threads, format, dtype)
