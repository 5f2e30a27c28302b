"""Two rules that judge a draft: the walk, which is lossless token for token, and the rejection rule, for comparison."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from foretoken.acceptance.rejection import reject
from foretoken.acceptance.walk import NOTHING
from foretoken.decoder.checking import Check, Walked
from foretoken.errors import ForetokenError, NumericsError
from foretoken.protocol.types import Distribution, Draft
from foretoken.sampling.sampler import Sampler

Nan = Callable[[], NumericsError]
# arguments: a check, a part of it, that part's draft, its sampler, and a function that makes the error for a NaN
Judge = Callable[[Check, int, Draft, Sampler, Nan], Walked]


def by_walk(check: Check, part: int, draft: Draft, sampler: Sampler, nan: Nan) -> Walked:
    """Follow the target's own choices for as long as the draft has them."""

    begun = sampler.step

    def choose(row: int) -> int:
        if sampler.complete:
            return NOTHING
        try:
            token = check.outputs.choice(row) if sampler.plain else sampler.choose(check.outputs.logits(row))
            if token is None:
                raise nan()
        except ForetokenError:
            if sampler.step == begun:
                raise
            return NOTHING  # plain decoding may stop before this row; if not, the next round begins here and raises
        sampler.advance([token])
        return token

    return check.walk(part, choose)


def by_rejection(check: Check, part: int, draft: Draft, sampler: Sampler, nan: Nan) -> Walked:
    """The classical rule, which keeps the distribution but not the tokens. Greedy text is judged by the walk."""
    if sampler.greedy:
        return by_walk(check, part, draft, sampler, nan)
    judging = _Rejecting(check, check.root(part), sampler, nan)
    accepted, bonus = reject(draft.tokens, draft.parents, draft.draft_probs or {}, judging)
    if bonus != NOTHING:
        sampler.advance([bonus])
    return Walked(accepted, bonus)


class _Rejecting:
    """The target's side of the rejection rule. root: the row of the text's last token."""

    def __init__(self, check: Check, root: int, sampler: Sampler, nan: Nan) -> None:
        self._check, self._root, self._sampler, self._nan = check, root, sampler, nan
        self._begun = sampler.step
        self._broken = False

    def target_probs(self, node: int) -> Distribution:
        logits = self._check.outputs.logits(self._root + 1 + node)
        if self._sampler.complete:
            return np.zeros(len(logits))
        try:
            probs = self._sampler.probabilities(logits)
            if probs is None:
                raise self._nan()
        except ForetokenError:
            if self._sampler.step == self._begun:
                raise
            self._broken = True  # as in the walk: the next round, if there is one, begins here and raises
            return np.zeros(len(logits))
        return probs

    def coin(self, n: int, probability: float) -> bool:
        return self._sampler.coin(n, probability)

    def pick(self, probs: Distribution) -> int:
        return NOTHING if self._broken or self._sampler.complete else self._sampler.pick(probs)

    def accept(self, token: int) -> None:
        self._sampler.advance([token])


JUDGES: dict[str, Judge] = {"walk": by_walk, "rejection": by_rejection}
