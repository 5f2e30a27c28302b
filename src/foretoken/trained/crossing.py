"""The decoder of a published Mixture of Attentions: its second layer sees the observer's vectors and nothing else."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.rows import Rows
from foretoken.formats.table import Format
from foretoken.trained.files import Trained
from foretoken.trained.stepwise import StepwiseDecoder

_CROSSING = 1  # the first layer that sees the observer's vectors


class CrossingDecoder(StepwiseDecoder):
    """The arguments are `StepwiseDecoder`'s. What lies beside the layers is the observer's."""

    def _begin(self, trained: Trained, format: Format | None) -> None:
        self._seen: WeakKeyDictionary[Cache, int] = WeakKeyDictionary()

    def see(self, cache: Cache, count: int) -> None:
        """From now on the rows of a cache see its first positions in layer 1, as many as `count` says: those that hold
        the observer's vectors."""
        self._seen[cache] = count

    @torch.no_grad()
    def forward(self, rows: Rows) -> torch.Tensor:
        """As `Decoder.forward`."""
        return self.layers(self.embed(rows), rows)

    @torch.no_grad()
    def layers(
        self,
        hidden: torch.Tensor,
        rows: Rows,
        lo: int = 0,
        hi: int | None = None,
        entering: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `Decoder.layers`."""
        hi = self.config.num_layers if hi is None else hi
        if lo < _CROSSING:
            hidden = super().layers(hidden, rows, lo, min(hi, _CROSSING), entering)
            lo, entering = min(hi, _CROSSING), None
        if lo == hi:
            return hidden
        # where nothing was observed yet, a row sees the first position, whatever that holds
        across = rows.seeing([max(1, self._seen.get(segment.cache, 0)) for segment in rows.segments])
        hidden = super().layers(hidden, across, lo, hi, entering)
        rows.cost += across.cost
        return hidden

    @torch.no_grad()
    def head(self, hidden: torch.Tensor, rows: Rows | None = None) -> torch.Tensor:
        """As `Decoder.head`, without the final norm."""
        logits = self.output(hidden)[:, : self.config.valid_vocab_size]
        self._add_cost(self._costs.head(len(hidden)), rows)
        return logits

    def norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """There is none."""
        return hidden
