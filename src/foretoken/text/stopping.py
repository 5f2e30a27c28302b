"""Decides where a generation stops: at an end token, at a stop string, at the end of its grammar (which the verifier
knows), or at its length. It is decided beside the target, before anything is committed, exactly, also in the middle of
a draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foretoken.protocol.types import FinishReason, Request

StopsAfter = Callable[[int], bool]  # called with each new token in order; whether a stop string ends with it
MakeStopsAfter = Callable[[Request], StopsAfter]


def limit(request: Request, context_length: int) -> int:
    """How many tokens the request may gain: as many as it asked for, or as the context leaves room for."""
    return min(request.max_new_tokens, context_length - len(request.prompt))


def stop_in(
    tokens: Sequence[int], room: int, request: Request, stops_after: StopsAfter, *, complete: bool = False
) -> tuple[int, FinishReason | None]:
    """Returns how many of some new tokens plain decoding would have reached, and why it stops there; None if it goes
    on.

    room: how many tokens the request may still gain. complete: whether nothing may follow the last token in its
    grammar.
    """
    for count, token in enumerate(tokens[:room], 1):
        if stops_after(token) or token in request.end_tokens:
            return count, "stop"
    if complete and len(tokens) <= room:
        return len(tokens), "stop"
    return (room, "length") if len(tokens) >= room else (len(tokens), None)


class Watch:
    """Watches a request's tokens for its stop strings. Each token is asked about once and in order, even if rounds are
    broken off in between."""

    def __init__(self, request: Request, make: MakeStopsAfter) -> None:
        self._make = make
        self._request = request
        self._stops_after = make(request)
        self._told = 0

    def at(self, gained: Sequence[int]) -> StopsAfter:
        """The function to call with each token that follows those gained so far."""
        if self._told != len(gained):  # a round was broken off after it had asked
            self._stops_after, self._told = self._make(self._request), 0
            for token in gained:
                self._tell(token)
        return self._tell

    def _tell(self, token: int) -> bool:
        self._told += 1
        return self._stops_after(token)


def never(request: Request) -> StopsAfter:
    """For requests without stop strings."""
    return lambda token: False
