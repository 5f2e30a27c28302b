"""A drafter that sees states of the target, which come with the verdicts.

It keeps what its decoder makes of them, one vector for each token of a text. A draft can be made only where those of
all tokens but the last are known: the first pass over a prompt has none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field, replace

import numpy as np
import numpy.typing as npt

from foretoken.decoder.views import Views
from foretoken.drafters.reading import DecoderDrafter
from foretoken.protocol.roles import Drafter
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Request, Verdict
from foretoken.trained.filling import FillingDecoder
from foretoken.trained.following import FollowingDecoder


@dataclass(eq=False, kw_only=True)
class Seeing(DecoderDrafter):
    """It stands before `ModelDrafter` or `TreeDrafter`, whose methods it calls though its own base lacks them."""

    below: InitVar[Callable[[Views], Drafter] | None] = None
    _known: dict[int, list[npt.NDArray[np.float32]]] = field(init=False, default_factory=dict)  # by sequence

    def __post_init__(self, below: Callable[[Views], Drafter] | None) -> None:
        super().__post_init__(None)  # type: ignore[misc]
        self.needs = self._decoder.needs

    @property
    def _decoder(self) -> FollowingDecoder | FillingDecoder:
        assert isinstance(self.model, FollowingDecoder | FillingDecoder)
        return self.model

    def begin(self, requests: Sequence[Request]) -> None:
        """Take new sequences on. Each reads its prompt anew: what another has read followed states that are gone."""
        super().begin([replace(request, conversation=None, prompt_of=None) for request in requests])
        self._known.update((request.sequence, []) for request in requests)

    def _keep(self, verdicts: Sequence[Verdict]) -> list[Work]:
        """Keep the states that came with verdicts. States behind a gap, where others were lost, are of no use."""
        work = []
        for verdict in verdicts:
            known, features = self._known.get(verdict.sequence), verdict.features
            if known is None or features is None or features.start > len(known):
                continue
            began, start = time.perf_counter(), len(known)
            states = self._decoder.reduced(features.tensors)[start - features.start :]
            known += list(states.cpu().numpy())
            cost = {self.name: self._decoder.cost_of_reducing(len(states))}
            work.append(Work(self.name, len(states), began, time.perf_counter() - began, cost=cost))
        return work

    def _knows(self, sequence: int) -> bool:
        """Whether the states of all tokens of a text but the last are known."""
        return len(self._known[sequence]) >= len(self._readings[sequence].text) - 1

    def rewind(self, sequence: int, position: int) -> None:
        """Forget the tokens from a position on."""
        super().rewind(sequence, position)  # type: ignore[misc]
        del self._known[sequence][position:]

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        super().end(sequence)
        self._known.pop(sequence, None)
