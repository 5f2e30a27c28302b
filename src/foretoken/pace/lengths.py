"""The lengths of drafts that give the most tokens a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretoken.pace.sharing import Shares

_Floats = NDArray[np.float64]
_Ints = NDArray[np.intp]


class Choice(NamedTuple):
    """Lengths by sequence, the tokens that are expected of the round, its seconds, what the draft tokens are worth,
    and how many of them are expected of each sequence."""

    lengths: dict[int, int]
    tokens: float
    seconds: float
    worth: float
    gained: Mapping[int, float]


def best(
    sequences: Sequence[int],
    survival: _Floats,
    seconds: Callable[[_Ints, _Ints], _Floats],
    shares: Shares | None = None,
) -> Choice:
    """The lengths with the most expected tokens a second.

    survival: [sequences, most], the probabilities that the first 1, 2, ... tokens of each sequence's draft are all
    accepted, which never rise. seconds: of rounds, given the rows that each checks and its longest draft. shares: what
    a token of each sequence is worth, how much each may lose, and how many seconds do not count, as prompts are read in
    them; None if that does not matter. Tokens are added where they are worth most, over all sequences. The seconds may
    rise in steps, so every number of tokens is looked at, not only the first at which the rate falls.
    """
    live, most = survival.shape
    likely = survival.ravel()
    values = likely if shares is None else (survival * shares.weights[:, None]).ravel()
    lengths = np.tile(np.arange(1, most + 1), live)
    owners = np.repeat(np.arange(live), most)
    order = np.lexsort((owners, lengths, -values))
    if shares is not None:  # more rows never take less time: what does not fit into the longest round needs no look
        rows = np.arange(live + 1, live + 1 + len(order))
        order = order[: np.count_nonzero(seconds(rows, np.ones_like(rows)) <= shares.most)]
    gained = np.concatenate(([0.0], values[order].cumsum()))  # by the number of draft tokens
    longest = np.concatenate(([0], np.maximum.accumulate(lengths[order])))
    took = seconds(live + np.arange(len(gained)), longest)
    texts, aside = (live, 0.0) if shares is None else (shares.texts, shares.aside)
    rates = (texts + gained) / (took - aside)
    if shares is not None:
        each = np.zeros((len(order), live))
        each[np.arange(len(order)), owners[order]] = likely[order]
        rates[1:][shares.leave_behind(each.cumsum(axis=0), took[1:])] = 0.0
    used = int(rates.argmax())
    counts = np.bincount(owners[order[:used]], minlength=live)
    chosen = dict(zip(sequences, counts.tolist(), strict=True))
    by_text = [float(survival[at, :count].sum()) for at, count in enumerate(counts)]
    its = dict(zip(sequences, by_text, strict=True))
    return Choice(chosen, live + sum(by_text), float(took[used]), float(gained[used]), its)
