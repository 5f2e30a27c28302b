"""The decoder of a published EAGLE-3: its first layer's attention reads the embedding and the state side by side, and
it has an output layer of its own, for some of the tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from foretoken.decoder.rows import Rows
from foretoken.formats.table import Format
from foretoken.protocol.types import Needs
from foretoken.trained.files import Trained
from foretoken.trained.following import FollowingDecoder
from foretoken.trained.published_eagle import PublishedEagle


class PublishedDecoder(FollowingDecoder):
    """The arguments are `StepwiseDecoder`'s."""

    def _begin(self, trained: Trained, format: Format | None) -> None:
        super()._begin(trained, format)
        assert isinstance(trained.config, PublishedEagle)
        self._published = trained.config
        self.skips = 1  # its first row is that of the second token, behind the state of the first

    @property
    def needs(self) -> Needs:
        """What it needs of the target."""
        return Needs(hidden=self._published.sees)

    def reduced(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """As `FollowingDecoder.reduced`."""
        seen, norms, eps = self._seen(features), self._published.norms, self.config.norm_eps
        if norms == "each":
            seen = [self._parts.normed(each, f"seen{at}", eps) for at, each in enumerate(seen)]
        both = self._beside_each_other(seen)
        if norms == "all":
            both = self._parts.normed(both, "seen", eps)
        return self._parts.multiplied(both, "reduction")

    def _through(self, rows: Rows, embedded: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        pair = self._normed_pair(embedded, states)
        hidden = pair[1] if self._published.residual_normed else states
        return self.layers(hidden, rows, entering=self._beside_each_other(pair))

    def _handed_on(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.norm(hidden) if self._published.hands_on_normed else hidden
