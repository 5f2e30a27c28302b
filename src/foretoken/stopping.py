"""Where a generation stops: at an end token, at a stop string, at the end of its grammar (the verifier says where), or
when its length is reached. Cuts verdicts in the middle, exactly."""

from __future__ import annotations

from collections.abc import Callable

from foretoken.types import Request, Verdict


def limit(request: Request, context_length: int) -> int:
    """How many tokens the request may gain: what it asked for, or what the context leaves."""
    return min(request.max_new_tokens, context_length - len(request.prompt))


def cut(
    verdict: Verdict, request: Request, context_length: int, stops_after: Callable[[int], bool] = lambda token: False
) -> Verdict:
    """The verdict up to and including the token at which plain decoding would have stopped; whole if it would not.

    `stops_after` is told of each token that stays, in order, and says whether a stop string ends with it.
    """
    done = verdict.position - len(request.prompt)
    room = limit(request, context_length) - done
    for count, token in enumerate(verdict.tokens[:room], 1):
        stopped = stops_after(token)
        if stopped or token in request.end_tokens:
            return verdict.first(count, "stop")
    if len(verdict.tokens) > room or (len(verdict.tokens) == room and verdict.finish_reason is None):
        return verdict.first(room, "length")
    return verdict
