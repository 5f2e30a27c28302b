"""What a verifier knows of a sequence between passes, and what a pass makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretoken.decoder.cache import Cache
from foretoken.decoder.checking import Part
from foretoken.errors import ContractError
from foretoken.protocol.types import Draft, FinishReason, PromptChunk, Request
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

    def awaits(self, draft: Draft, cache: Cache, held: int) -> bool:
        """Whether a draft is for the round and the place that it has come to. Refused where its cache does not hold
        `held` positions, as it should."""
        if not self.round:
            raise ContractError(f"a draft came for sequence {draft.sequence}, whose prompt has not been read")
        if (draft.round, draft.position) != (self.round, self.known):
            return False
        if cache.length != held:
            raise ContractError(
                f"the cache of sequence {draft.sequence} holds {cache.length} positions, expected {held}: "
                "it was cut, or a pass was broken off while it committed; end the sequence"
            )
        return True

    def check_of(self, draft: Draft, cache: Cache) -> Part:
        """Its part in a pass that checks a draft."""
        cache.discard()  # what a pass that was broken off may have left
        return Part(cache, self.text[cache.length : self.known], draft.tokens, draft.parents)

    def reading_of(self, chunk: PromptChunk, cache: Cache) -> Part:
        """Its part in a pass that reads on in its prompt."""
        if self.round or chunk.rows < 1:
            raise ContractError(
                f"a chunk of {chunk.rows} rows came for sequence {chunk.sequence}; expected one that is reading its "
                "prompt, and some rows"
            )
        cache.discard()
        prompt = self.request.prompt
        text = prompt[cache.length : cache.length + chunk.rows]
        return Part(cache, text, wanted=cache.length + len(text) == len(prompt))


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


def expect_readable(request: Request, context_length: int) -> None:
    """Refuse a prompt that nothing can follow, and one that waits for itself."""
    if not 0 < len(request.prompt) < context_length:
        raise ContractError(
            f"sequence {request.sequence} has a prompt of {len(request.prompt)} tokens; "
            f"expected 1 to {context_length - 1}"
        )
    if request.prompt_of == request.sequence:
        raise ContractError(f"sequence {request.sequence} has its own prompt_of; expected another, or None")
