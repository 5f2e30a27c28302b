"""What a verifier knows of a sequence between passes, and what a pass makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretoken.protocol.types import FinishReason, Request
from foretoken.sampling.sampler import Sampler
from foretoken.text.stopping import Watch
from foretoken.verification.features import Seen


@dataclass(frozen=True)
class State:
    """What the verifier knows of a sequence between passes.

    `text` begins with the `known` tokens of prompt and output; what may stand behind them is left of a pass that was
    broken off. The cache holds all of them but the last; while the prompt is read (round 0), what has been read of it.
    `told`: of so many positions the drafter has the features. The sampler is moved along a walk before anything is
    committed, so each round puts it back first.
    """

    request: Request
    sampler: Sampler
    watch: Watch
    text: list[int]
    known: int
    seen: Seen
    round: int = 0
    told: int = 0
    cached: int = 0
    ended: bool = False

    @property
    def gained(self) -> int:
        """How many tokens it has gained."""
        return self.known - len(self.request.prompt)


@dataclass(frozen=True)
class Gain:
    """What one part of a pass comes to for its sequence, before it is committed: rows of the part that are kept, and
    the tokens behind them. tokens: none while a prompt is read."""

    sequence: int
    part: int
    path: Sequence[int]
    tokens: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    origins: tuple[str, ...] = ()
    reason: FinishReason | None = None
