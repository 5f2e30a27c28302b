"""The lengths of drafts that give the most tokens a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Choice(NamedTuple):
    """Lengths by sequence, the tokens that are expected of the round, and its seconds."""

    lengths: dict[int, int]
    tokens: float
    seconds: float


def best(survival: Mapping[int, Sequence[float]], seconds: Callable[[int, int], float]) -> Choice:
    """The lengths with the most expected tokens a second.

    survival: for each sequence, the probabilities that the first 1, 2, ... tokens of its draft are accepted; they never
    rise. seconds: of a round that checks so many rows, with a longest draft of so many tokens. Tokens are added where
    they are likeliest, over all sequences. The seconds may rise in steps, so every number of tokens is looked at, not
    only the first at which the rate falls.
    """
    rows, longest, tokens = len(survival), 0, float(len(survival))
    order = sorted(
        ((-share, at, sequence) for sequence, shares in survival.items() for at, share in enumerate(shares, 1))
    )
    used, most, took = 0, tokens, seconds(rows, 0)
    for added, (less, at, _) in enumerate(order, 1):
        longest = max(longest, at)
        tokens -= less
        now = seconds(rows + added, longest)
        if tokens * took > most * now:
            used, most, took = added, tokens, now
    lengths = dict.fromkeys(survival, 0)
    for _, _, sequence in order[:used]:
        lengths[sequence] += 1
    return Choice(lengths, most, took)
