"""The lengths of drafts that give the most tokens a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]
_Ints = NDArray[np.intp]


class Choice(NamedTuple):
    """Lengths by sequence, the tokens that are expected of the round, and its seconds."""

    lengths: dict[int, int]
    tokens: float
    seconds: float


def best(
    sequences: Sequence[int],
    survival: _Floats,
    seconds: Callable[[_Ints, _Ints], _Floats],
    worth: float = 1.0,
) -> Choice:
    """The lengths with the most expected tokens a second.

    survival: [sequences, most], the probabilities that the first 1, 2, ... tokens of each sequence's draft are all
    accepted, which never rise. seconds: of rounds, given the rows that each checks and its longest draft. worth: what
    an accepted draft token counts beside a token that a check yields anyway. Tokens are added where they are likeliest,
    over all sequences. The seconds may rise in steps, so every number of tokens is looked at, not only the first at
    which the rate falls.
    """
    live, most = survival.shape
    shares = survival.ravel()
    lengths = np.tile(np.arange(1, most + 1), live)
    owners = np.repeat(np.arange(live), most)
    order = np.lexsort((owners, lengths, -shares))
    gained = np.concatenate(([0.0], shares[order].cumsum()))  # by the number of draft tokens
    longest = np.concatenate(([0], np.maximum.accumulate(lengths[order])))
    took = seconds(live + np.arange(len(gained)), longest)
    used = int(((live + worth * gained) / took).argmax())
    counts = np.bincount(owners[order[:used]], minlength=live)
    chosen = dict(zip(sequences, counts.tolist(), strict=True))
    return Choice(chosen, live + float(gained[used]), float(took[used]))
