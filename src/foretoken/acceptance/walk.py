"""The walk: follow the draft for as long as it says what the target says.

From the root, step to the child whose token is the target's token there, until there is none; the target's token at
that point is the bonus. Nothing of the draft but its tokens is used, so the result is what plain decoding gives
whatever the drafter claims; sampled too, because the target's choice is a function of logits, place and seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

NOTHING = -1  # what follows where no token does: equal to none of a draft


def walk(tokens: Sequence[int], parents: Sequence[int], choose: Callable[[int], int]) -> tuple[list[int], int]:
    """(accepted, bonus): indices of the accepted tokens from the root down, and the token that follows them.

    `choose(i)` is the target's token after draft token i, -1 for the root; it is asked only along the path, and in
    order, because what it does may depend on what was chosen before (penalties, grammars). It is `NOTHING` where no
    token follows, which ends the walk.
    """
    children: dict[tuple[int, int], int] = {}
    for i, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        children.setdefault((parent, token), i)
    accepted: list[int] = []
    at = -1
    while True:
        token = choose(at)
        child = children.get((at, token))
        if child is None:
            return accepted, token
        accepted.append(child)
        at = child


def agreeing(some: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens two runs begin with in common."""
    differing = (at for at, (one, other) in enumerate(zip(some, others, strict=False)) if one != other)
    return next(differing, min(len(some), len(others)))
