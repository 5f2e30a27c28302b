"""What a host's answers say: verdicts, checked before anything is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretoken.errors import RemoteError
from foretoken.protocol.types import TARGET, Draft, FinishReason, Verdict
from foretoken.remote.seats import Seat, accepted_of
from foretoken.remote.wire import ReadyBody, VerdictBody
from foretoken.text.stopping import limit


@dataclass(frozen=True)
class Answers:
    """Reads the answers of a host whose model has this context and this vocabulary. What an answer brings is noted in
    its seat. Raises RemoteError for one that makes no sense."""

    context_length: int
    vocab_size: int

    def to_prompt(self, seat: Seat, ready: ReadyBody) -> Verdict | None:
        """The verdict of a prompt that was read; None if that is known."""
        request = seat.request
        count = len(seat.shown)
        if seat.round:
            return None
        sound = ready.read + ready.cached == count and len(ready.tokens) == 1 and ready.known == count + 1
        expect(sound, f"an answer to a prompt of {ready.read} and {ready.cached} tokens")
        self._expect_known(ready.tokens)
        if request.private:  # what the host says of what follows is of no use
            seat.round, seat.output, seat.alone = 1, [request.private[-1]], True
            its, seen, at = (request.private[-1],), seat.arriving.taken(), len(request.prompt)
            return Verdict(request.sequence, 0, at, (), its, (TARGET,), seen, read=at, unverified=True)
        seat.round, seat.output, seat.busy = 1, list(ready.tokens), None
        self._expect_end(seat, ready.reason)
        return Verdict(
            request.sequence,
            0,
            count,
            (),
            ready.tokens,
            (TARGET,),
            seat.arriving.taken(),
            finish_reason=ready.reason,
            cached_tokens=ready.cached,
            read=ready.read,
        )

    def to_draft(self, seat: Seat, draft: Draft, body: VerdictBody) -> Verdict:
        """The verdict of the draft for a seat's round."""
        expect(body.base == seat.known and bool(body.tokens), f"a verdict for position {body.base}")
        self._expect_known(body.tokens)
        accepted = accepted_of(draft, body.tokens)
        origins = [draft.origins[node] for node in accepted] + [TARGET] * (len(body.tokens) - len(accepted))
        round_, seat.round = seat.round, seat.round + 1
        seat.reopened = seat.busy = None
        seat.output += body.tokens
        self._expect_end(seat, body.reason)
        if body.features:
            seat.arriving.come(body.base - 1, body.features, seat.known - 1)
        return Verdict(
            seat.request.sequence,
            round_,
            body.base,
            accepted,
            body.tokens,
            tuple(origins),
            seat.arriving.taken(),
            finish_reason=body.reason,
        )

    def _expect_end(self, seat: Seat, reason: FinishReason | None) -> None:
        most = limit(seat.request, self.context_length)
        count = len(seat.output)
        expect(count < most or (count == most and reason is not None), f"token {count} of at most {most}")

    def _expect_known(self, tokens: Sequence[int]) -> None:
        expect(max(tokens) < self.vocab_size, f"token {max(tokens)}")


def expect(sound: bool, what: str) -> None:
    """Raise RemoteError for what a host should not send."""
    if not sound:
        raise RemoteError(f"{what} came from the host, which makes no sense here; the host is at fault")
