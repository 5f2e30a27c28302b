"""A decoder that fills a block of places in one pass, in which each row sees all others: a published DFlash.

The keys and values of a text are not computed by passes. Each layer makes them of vectors, one for each token, which
come from the target's states (`reduced`). The rows of a block are dropped with its draft.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.rows import Rows, chain
from foretoken.formats.table import Format
from foretoken.protocol.telemetry import Cost
from foretoken.protocol.types import Needs
from foretoken.trained.files import Trained
from foretoken.trained.published_block import PublishedBlock
from foretoken.trained.stepwise import StepwiseDecoder

_CHUNK = 256  # tokens whose vectors, keys and values are made together


class FillingDecoder(StepwiseDecoder):
    """The arguments are `StepwiseDecoder`'s."""

    def _begin(self, trained: Trained, format: Format | None) -> None:
        assert isinstance(trained.config, PublishedBlock)
        self.its = trained.config
        self._parts = self._beside(trained.more, format)

    @property
    def needs(self) -> Needs:
        """What it needs of the target."""
        return Needs(hidden=self.its.sees)

    def reduced(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """One vector for each of some tokens, float32 [tokens, hidden]. features: as `needs` names them."""
        states, made = [features[f"hidden.{at}"].cpu().numpy() for at in self.its.sees], []
        for at in range(0, len(states[0]), _CHUNK):
            seen = torch.from_numpy(np.concatenate([each[at : at + _CHUNK] for each in states], axis=1))
            reduced = self._parts.multiplied(seen.to(self.device), "reduction")
            made.append(self._parts.normed(reduced, "seen_norm", self.config.norm_eps).cpu().numpy())
        return torch.from_numpy(np.concatenate(made)).to(self.device)

    def fill(self, cache: Cache, tokens: Sequence[int], vectors: torch.Tensor) -> None:
        """Commit the keys and values of the next tokens of a text. vectors: theirs, float32 [tokens, hidden]."""
        for at in range(0, len(tokens), _CHUNK):
            rows = chain(cache, tokens[at : at + _CHUNK])
            (segment,) = rows.segments
            for layer in range(self.config.num_layers):
                pair = self.keys_and_values(layer, vectors[at : at + _CHUNK], rows.positions, entering=True)
                cache.write(layer, segment.slots, *pair, rows.writer)
            cache.commit(segment.slots, rows.writer)

    def cost_of_reducing(self, tokens: int) -> Cost:
        """What `reduced` costs."""
        name = "reduction.weight"
        return Cost(2 * tokens * self._parts.numbers[name], self._parts.bytes_of(name))

    def cost_of_filling(self, tokens: int) -> Cost:
        """What `fill` costs."""
        linears = [linear for layer in self.weights.layers for linear in (layer.key, layer.value)]
        numbers = sum(math.prod(each.weight.shape) for each in linears)
        written = tokens * self.config.bytes_of_position(self.weights.embedding.element_size())
        return Cost(2 * tokens * numbers, sum(each.nbytes for each in linears), written)

    def blocks(self, parts: Sequence[tuple[Cache, int, int]], writer: int) -> Rows:
        """The rows of a pass that fills a block for each of some texts. parts: the cache of each, which holds all of
        the text but its last token; that token; and how many tokens are to be drafted, at most `its.drafts`. With fewer
        there are fewer rows, as in its authors' code at the end of a text."""
        mask, more = self.its.mask, self.its.block - self.its.drafts
        sizes = [drafts + more for _, _, drafts in parts]
        rows = Rows(
            [
                (cache, [last, *[mask] * (size - 1)], range(-1, size - 1))
                for (cache, last, _), size in zip(parts, sizes, strict=True)
            ],
            writer=writer,
        )
        rows.see_each_other()
        return rows
