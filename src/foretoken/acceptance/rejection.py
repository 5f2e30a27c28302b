"""The rejection rule: accept a draft token with a probability, so that the output has the target's distribution.

The rule needs the draft's own distributions, and random numbers that are independent of the target's. It is exact in
distribution, not in tokens: another draft gives another text. It serves comparison with the literature; the walk is the
default.

Sources: Leviathan et al. 2023 and Chen et al. 2023 for chains; SpecInfer (Miao et al. 2023) for several candidates at a
node, with the residual updated at each; Sequoia (Chen et al. 2024) for candidates drawn without replacement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from foretoken.errors import ContractError
from foretoken.protocol.types import Distribution


class Judging(Protocol):
    """The calls that the rule makes to the target's side, along the path and in order."""

    def target_probs(self, node: int) -> Distribution:
        """The target's distribution after a draft token, float64 [V]; -1 is the root."""
        ...

    def coin(self, n: int, probability: float) -> bool:
        """For the nth child of the current node: True with this probability."""
        ...

    def pick(self, probs: Distribution) -> int:
        """A token drawn from a distribution."""
        ...

    def accept(self, token: int) -> None:
        """A token was accepted. The calls that follow are about the node after it."""
        ...


def reject(
    tokens: Sequence[int], parents: Sequence[int], draft_probs: Mapping[int, Distribution], judging: Judging
) -> tuple[list[int], int]:
    """Returns (accepted, bonus), as `walk` does.

    draft_probs: the distributions from which the children of a node were drawn, by node. The children of a node without
    one were certain, one after the other. A distribution that is shorter than the target's gives the missing tokens no
    probability; a longer one raises ContractError. A child to which its node's distribution gives no probability is
    passed over.
    """
    accepted: list[int] = []
    at = -1
    while True:
        wanted = judging.target_probs(at)
        given = _given(draft_probs, at, len(wanted))
        for n, child in enumerate(i for i, parent in enumerate(parents) if parent == at):
            token = tokens[child]
            drawn_from = _certain(token, len(wanted)) if given is None else given
            if drawn_from[token] <= 0.0:  # such as a repeated child, for which the residual must not shrink again
                continue
            if judging.coin(n, chance(wanted, drawn_from, token)):
                break
            wanted = residual(wanted, drawn_from)
            given = None if given is None else without(given, token)
        else:
            return accepted, judging.pick(wanted)
        accepted.append(child)
        judging.accept(token)
        at = child


def chance(wanted: Distribution, given: Distribution, token: int) -> float:
    """The probability with which a token drawn from `given` is accepted as a token of `wanted`."""
    enough = wanted[token] >= given[token]
    return 1.0 if enough else float(wanted[token] / given[token])


def residual(wanted: Distribution, given: Distribution) -> Distribution:
    """The distribution from which to draw after a token drawn from `given` was rejected."""
    left = np.maximum(wanted - given, 0.0)
    total = left.sum()
    # nothing is left only if both are the same, and then only rounding can reject a token
    return left / total if total > 0.0 else wanted


def without(given: Distribution, token: int) -> Distribution:
    """The distribution of the next token drawn without replacement."""
    left = given.copy()
    left[token] = 0.0
    total = left.sum()
    return left / total if total > 0.0 else left


def _given(draft_probs: Mapping[int, Distribution], node: int, size: int) -> Distribution | None:
    """The distribution of a node's children over the target's tokens. A draft model may have fewer (less padding)."""
    given = draft_probs.get(node)
    if given is None or len(given) == size:
        return given
    if len(given) > size:
        raise ContractError(f"draft_probs of node {node} came for {len(given)} tokens; expected at most {size}")
    return np.concatenate([given, np.zeros(size - len(given))])


def _certain(token: int, size: int) -> Distribution:
    probs = np.zeros(size)
    probs[token] = 1.0
    return probs
