"""The state that a verifier keeps of a sequence between passes, and the gain that a pass brings it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Kept
from foretoken.decoder.checking import Part
from foretoken.errors import ContractError
from foretoken.protocol.types import Draft, FinishReason, PromptChunk, Request
from foretoken.sampling.sampler import Sampler
from foretoken.text.stopping import Watch
from foretoken.verification.features import Seen


@dataclass(frozen=True)
class State:
    """The state of a sequence between passes.

    The first `known` tokens of `text` are prompt and output. Tokens behind them are left over from a pass that was
    broken off. The cache holds the known tokens but the last; while the prompt is read (round 0), it holds the part
    that has been read. `told` counts the positions whose features the drafter has been given, and `read` the rows of
    the prompt that passes have read for this sequence. A walk moves the sampler before anything is committed, so each
    round first puts the sampler back. A sequence that has `failed` ended with an error.
    """

    request: Request
    sampler: Sampler
    watch: Watch
    text: list[int]
    known: int
    seen: Seen
    round: int = 0
    told: int = 0
    read: int = 0
    ended: bool = False
    failed: bool = False

    @property
    def gained(self) -> int:
        """How many tokens the output has."""
        return self.known - len(self.request.prompt)

    def read_in(self, cache: Cache) -> Kept[Seen]:
        """What the sequence's cache holds of the known text, for others to begin with. It may hold more than is known,
        where a pass was broken off."""
        return Kept(cache, tuple(self.text[: min(cache.length, self.known)]), self.seen)

    def awaits(self, draft: Draft, cache: Cache, held: int) -> bool:
        """Whether a draft is for the current round and position. Raises ContractError if the prompt has not been read,
        or if the cache does not hold `held` positions, as it should."""
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
        """The sequence's part in a pass that checks a draft."""
        cache.discard()  # a pass that was broken off may have left rows in scratch
        return Part(cache, self.text[cache.length : self.known], draft.tokens, draft.parents)

    def reading_of(self, chunk: PromptChunk, cache: Cache) -> Part:
        """The sequence's part in a pass that reads a chunk of its prompt."""
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
    """The gain of one sequence from a pass, before it is committed. path: the rows of the part that are kept. tokens:
    the new tokens; none while a prompt is read. reason: why the sequence stops; None if it goes on."""

    sequence: int
    part: int
    path: Sequence[int]
    tokens: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    origins: tuple[str, ...] = ()
    reason: FinishReason | None = None


def expect_readable(request: Request, context_length: int) -> None:
    """Raise ContractError for an empty prompt, for one that leaves no room, and for one that waits for itself."""
    if not 0 < len(request.prompt) < context_length:
        raise ContractError(
            f"sequence {request.sequence} has a prompt of {len(request.prompt)} tokens; "
            f"expected 1 to {context_length - 1}"
        )
    if request.prompt_of == request.sequence:
        raise ContractError(f"sequence {request.sequence} has its own prompt_of; expected another, or None")
