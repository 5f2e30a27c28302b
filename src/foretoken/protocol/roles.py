"""The two sides of the loop: who proposes tokens, and who owns the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Draft, Needs, PromptChunk, Request, Turn, Verdict


class Drafter(Protocol):
    """Proposes tokens. Sees turns and verdicts, and of the target's cache only views; never verifier or engine."""

    name: str
    needs: Needs

    def begin(self, requests: Sequence[Request]) -> None:
        """New sequences: their prompts, which the target is about to read."""
        ...

    def propose(self, turns: Sequence[Turn]) -> Sequence[Draft]:
        """Drafts for this round, in any order. No draft for a turn means: nothing to propose."""
        ...

    def observe(self, verdicts: Sequence[Verdict]) -> Sequence[Work] | None:
        """What became of the drafts. Those of round 0 are of the prompt, and the last of them brings the first token.
        Returns what it did with them, if that was any work: such as reading along.

        A verdict may be a guess, made while the true one is on its way; `rewind` takes it back if it was wrong.
        """
        ...

    def rewind(self, sequence: int, position: int) -> None:
        """Forget the tokens from a position on: they were a guess, and were not right.

        The verdict that says what stands there instead comes next.
        """
        ...

    def end(self, sequence: int) -> None:
        """The sequence is finished or cancelled: forget it. May come twice, and for one that never began."""
        ...


class Verifier(Protocol):
    """Owns the target. Turns prompts and drafts into verdicts."""

    context_length: int
    vocab_size: int  # tokens from here up are never generated

    def admit(self, request: Request) -> None:
        """Take a request on. Nothing is computed yet; raises what is wrong with the request itself."""
        ...

    def submit(self, drafts: Sequence[Draft], chunks: Sequence[PromptChunk] = ()) -> int:
        """Start one pass: a check of one draft for each of some sequences, and chunks of prompts of others.

        Returns a ticket for `result`, perhaps before the pass is done. A draft that is not for the round
        and the place that its sequence has come to is passed over.
        """
        ...

    def result(self, ticket: int) -> list[Verdict]:
        """The verdicts of a pass, drafts before chunks, each in its order. What fails for one sequence is in its
        verdict."""
        ...

    def end(self, sequence: int) -> None:
        """The sequence is finished or cancelled: free what it holds. May come twice, and for one that never began.

        What it has read is kept where its request names a conversation, until the next one takes it.
        """
        ...

    def forget(self, conversation: int) -> None:
        """Free what is kept of a conversation; one that is not there is free already."""
        ...
