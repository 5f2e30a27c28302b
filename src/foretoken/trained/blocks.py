"""A decoder that fills several places of a text in one pass.

Behind the end of a text stand blanks: rows without a token. Each is a vector of its own, by its place. The pass gives a
row of logits for each of them. What was chosen for the place before then changes these logits, by a product with a
table, for which no pass is needed.

Source: DFlash (2602.06036), JetSpec (2606.18394), and DSpark's Markov head; `network.Block` says what differs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from foretoken.decoder.outputs import Scored
from foretoken.decoder.rows import Rows
from foretoken.formats.table import Format
from foretoken.protocol.telemetry import Cost
from foretoken.trained.config import BlockConfig
from foretoken.trained.files import Trained
from foretoken.trained.stepwise import StepwiseDecoder

_CORRECTION = "correction."


class BlockDecoder(StepwiseDecoder):
    """The arguments are `StepwiseDecoder`'s. Logits that come with a pass are those of its own rows."""

    def _begin(self, trained: Trained, format: Format | None) -> None:
        assert isinstance(trained.config, BlockConfig)
        self.block = trained.config.block
        self._blanks = trained.tensors["blanks"].float().to(self.device)
        self._size = len(self.weights.embedding)  # of the vocabulary; from there up numbers stand for blanks
        its = {
            name.removeprefix(_CORRECTION): tensor
            for name, tensor in trained.tensors.items()
            if name.startswith(_CORRECTION)
        }
        # what a correction changes of the logits: the output layer is linear, so it is applied once, to all its rows
        out = its.pop("out.weight").float().T.contiguous().to(self.device)
        self._parts = self._beside({**its, "table.weight": self.output(out).T.contiguous()}, format)

    def tokens_at(self, places: Sequence[int]) -> list[int]:
        """The tokens whose logits lie at some places of a row of its own."""
        found: list[int] = self._choices.tokens[list(places)].tolist()
        return found

    def over_all(self, logits: torch.Tensor) -> torch.Tensor:
        """As `Choices.over_all`."""
        return self._choices.over_all(logits)

    def blanks(self, count: int) -> list[int]:
        """The first places behind a text, as a pass takes them beside tokens."""
        return list(range(self._size, self._size + count))

    def embed(self, tokens: list[int] | Rows) -> torch.Tensor:
        """As `Decoder.embed`; blanks may be among the tokens."""
        rows, tokens = (tokens, tokens.tokens) if isinstance(tokens, Rows) else (None, tokens)
        size = self._size
        blanks = [(row, token - size) for row, token in enumerate(tokens) if token >= size]
        hidden = super().embed([min(token, size - 1) for token in tokens])
        for row, which in blanks:
            hidden[row] = self._blanks[which]
        self._add_cost(self._costs.embed(len(tokens)), rows)
        return hidden

    @torch.no_grad()
    def forward(self, rows: Rows) -> torch.Tensor:
        """As `Decoder.forward`."""
        return self.layers(self.embed(rows), rows)

    def _scored(self, logits: torch.Tensor) -> Scored:
        """Of its own rows: a draft looks at those."""
        logits = logits.cpu()
        return Scored(logits, self._choices.choice(logits))

    @torch.no_grad()
    def correction(self, normed: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        """What the tokens before some blanks add to their logits: float32 [N, valid_vocab_size]. normed: the states of
        the blanks, behind the final norm, float32 [N, hidden]."""
        embedded = self._parts.normed(self.embed(list(tokens)), "norm", self.config.norm_eps)
        inner = (self._parts.multiplied(x, name) for x, name in ((normed, "of_state"), (embedded, "of_token")))
        one, other = (each.cpu().numpy() for each in inner)
        both = one + other
        passed_on = torch.from_numpy(both / (1 + np.exp(-both))).to(self.device)
        return self._parts.multiplied(passed_on, "table").cpu()[:, : self.config.valid_vocab_size]

    def cost_of_correcting(self, rows: int) -> Cost:
        """What one `correction` costs."""
        return Cost(2 * rows * sum(self._parts.numbers.values()), self._parts.nbytes)
