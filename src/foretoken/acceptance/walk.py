"""The walk: follow the draft for as long as it agrees with the target.

From the root, step to the child whose token is the target's token there, until there is no such child. The target's
token at that point is the bonus. Only the draft's tokens are used, so no draft can change the result of plain decoding.
This holds for sampled text, too, because the target's choice is a function of logits, place and seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BLOCK = 256  # tokens that are compared at once
NOTHING = -1  # stands for "no token follows"; equal to no token of a draft


def walk(tokens: Sequence[int], parents: Sequence[int], choose: Callable[[int], int]) -> tuple[list[int], int]:
    """Returns (accepted, bonus): indices of the accepted tokens from the root down, and the token that follows them.

    `choose(i)` gives the target's token after draft token i, or -1 for the root. It is called only along the path, and
    in order, because it may depend on the tokens chosen before (penalties, grammars). If no token follows, it gives
    `NOTHING`, which ends the walk.
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
    """The length of the common prefix of two runs of tokens."""
    stop = min(len(some), len(others))
    for at in range(0, stop, _BLOCK):
        block = tuple(some[at : at + _BLOCK]), tuple(others[at : at + _BLOCK])
        if block[0] != block[1]:
            differing = (at + n for n, (one, other) in enumerate(zip(*block, strict=False)) if one != other)
            return next(differing, stop)
    return stop
