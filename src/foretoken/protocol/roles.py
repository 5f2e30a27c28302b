"""The roles in the loop: a drafter proposes tokens, a verifier owns the target, and a pace says how much to draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from foretoken.protocol.telemetry import RoundRecord, Work
from foretoken.protocol.types import Budget, Draft, Needs, PromptChunk, Request, Turn, Verdict


class Drafter(Protocol):
    """Proposes tokens. It sees turns, verdicts and views of the target's cache. It never sees verifier or engine."""

    name: str
    needs: Needs

    def begin(self, requests: Sequence[Request]) -> None:
        """Take new sequences on. The target is about to read their prompts."""
        ...

    def propose(self, turns: Sequence[Turn]) -> Sequence[Draft]:
        """Drafts for this round, in any order. A turn without a draft means that there is nothing to propose."""
        ...

    def observe(self, verdicts: Sequence[Verdict]) -> Sequence[Work] | None:
        """Take in the verdicts on the drafts. Verdicts of round 0 belong to the prompt; the last of them brings the
        first token. Returns the work that the drafter did meanwhile, such as reading the prompt, if any.

        A verdict may be a guess, made while the true one is on its way. If the guess was wrong, `rewind` takes it back.
        """
        ...

    def rewind(self, sequence: int, position: int) -> None:
        """Forget the tokens from a position on: they were a wrong guess.

        The verdict with the right tokens comes next.
        """
        ...

    def end(self, sequence: int) -> None:
        """Forget a sequence, which has finished or was cancelled. May be called twice, and for one that never began. If
        its request names a conversation, what was read of it may be kept for the next request of that conversation."""
        ...

    def forget(self, conversation: int) -> None:
        """Free what is kept of a conversation, if anything is."""
        ...


class Verifier(Protocol):
    """Owns the target. Turns prompts and drafts into verdicts."""

    context_length: int
    vocab_size: int  # tokens from this number up are never generated

    def admit(self, request: Request) -> None:
        """Take a request on. Nothing is computed yet. Raises the error for a request that cannot be served."""
        ...

    def submit(self, drafts: Sequence[Draft], chunks: Sequence[PromptChunk] = ()) -> int:
        """Start one pass. It checks one draft for each of some sequences, and reads chunks of prompts of others.

        Returns a ticket for `result`, perhaps before the pass is done. A draft is passed over if its round or its
        position is not that of its sequence.
        """
        ...

    def result(self, ticket: int) -> list[Verdict]:
        """The verdicts of a pass, those of drafts before those of chunks, in the order of submission. If a sequence
        fails, its verdict has the error."""
        ...

    def end(self, sequence: int) -> None:
        """Free a sequence, which has finished or was cancelled. May be called twice, and for one that never began.

        If its request names a conversation, its cache is kept until the next request of that conversation takes it.
        """
        ...

    def forget(self, conversation: int) -> None:
        """Free what is kept of a conversation, if anything is."""
        ...


class Pace(Protocol):
    """Says how much is drafted in a round. It sees what rounds cost and what came of them, and never a token."""

    def choose(self, sequences: Sequence[int], left: Mapping[int, int]) -> Mapping[int, Sequence[Budget]]:
        """For each of the sequences that may draft now: a budget for each level, nearest to the target first. left: how
        many tokens each sequence under way may still gain, with those that may not draft, or whose prompts are being
        read."""
        ...

    def heard(self, record: RoundRecord) -> None:
        """Learn from a round that has ended."""
        ...
