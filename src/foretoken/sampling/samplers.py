"""Makes the samplers of requests, with what their grammars need."""

from __future__ import annotations

from foretoken.protocol.types import Request
from foretoken.sampling.grammar import Grammars
from foretoken.sampling.sampler import DRAFT_NOISE, Sampler
from foretoken.text.tokenizer import Tokenizer


class Samplers:
    """Of one target. Whoever chooses a request's tokens, or guesses them, gets a sampler of its own."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._grammars = Grammars(tokenizer)

    def target(self, request: Request) -> Sampler:
        """What chooses the target's tokens, and what guesses them with the target's seeded noise."""
        return Sampler(request, self._grammars.constraint(request))

    def independent(self, request: Request) -> Sampler:
        """What samples with noise of its own, for the rejection rule."""
        return Sampler(request, self._grammars.constraint(request), DRAFT_NOISE)
