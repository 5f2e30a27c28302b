"""The rejection rule: accept a draft token with a probability, so that what comes out has the target's distribution.

It needs the draft's own distributions and dice that are independent of the target's. Exact in distribution, not in
tokens: with another draft, another text. For comparison with the literature; the walk is the rule that is used.

Sources: Leviathan et al. 2023 and Chen et al. 2023 for chains; SpecInfer (Miao et al. 2023) for several candidates at a
node, with the residual updated at each; Sequoia (Chen et al. 2024) for candidates drawn without replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from foretoken.types import Distribution


def reject(
    tokens: Sequence[int],
    parents: Sequence[int],
    draft_probs: Mapping[int, Distribution],
    target_probs: Callable[[int], Distribution],
    coin: Callable[[int], float],
    pick: Callable[[Distribution], int],
    accept: Callable[[int], None],
) -> tuple[list[int], int]:
    """(accepted, bonus), as `walk` gives them.

    target_probs(i): the target's distribution after draft token i, -1 for the root; asked along the path, in order.
    coin(n): a number within (0, 1) for the nth child of the node at hand; pick: a token drawn from a distribution.
    accept(token): told of each accepted token before the next node is asked for. A node without `draft_probs` has
    children that were certain, one after the other.
    """
    accepted: list[int] = []
    at = -1
    while True:
        wanted = target_probs(at)
        given = draft_probs.get(at)
        for n, child in enumerate(i for i, parent in enumerate(parents) if parent == at):
            token = tokens[child]
            drawn_from = _certain(token, len(wanted)) if given is None else given
            if coin(n) * drawn_from[token] < wanted[token]:
                break
            wanted = residual(wanted, drawn_from)
            given = None if given is None else without(given, token)
        else:
            return accepted, pick(wanted)
        accepted.append(child)
        accept(token)
        at = child


def residual(wanted: Distribution, given: Distribution) -> Distribution:
    """What of a distribution is left to be drawn after a token drawn from another one was rejected."""
    left = np.maximum(wanted - given, 0.0)
    total = left.sum()
    # nothing is left only where both are the same, and then nothing is rejected but by rounding
    return left / total if total > 0.0 else wanted


def without(given: Distribution, token: int) -> Distribution:
    """The distribution of the next token drawn without replacement."""
    left = given.copy()
    left[token] = 0.0
    total = left.sum()
    return left / total if total > 0.0 else left


def _certain(token: int, size: int) -> Distribution:
    probs = np.zeros(size)
    probs[token] = 1.0
    return probs
