"""Makes the samplers of requests, with their grammars."""

from __future__ import annotations

from foretoken.protocol.types import Request
from foretoken.sampling.grammar import Grammars
from foretoken.sampling.sampler import DRAFT_NOISE, Sampler
from foretoken.text.tokenizer import Tokenizer


class Samplers:
    """Makes the samplers for one target. The verifier and every drafter get a sampler of their own for each request."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._grammars = Grammars(tokenizer)

    def target(self, request: Request) -> Sampler:
        """A sampler with the target's seeded noise. It chooses the target's tokens, or guesses them for a drafter."""
        return Sampler(request, self._grammars.constraint(request))

    def independent(self, request: Request) -> Sampler:
        """A sampler with noise of its own, for the rejection rule."""
        return Sampler(request, self._grammars.constraint(request), DRAFT_NOISE)
