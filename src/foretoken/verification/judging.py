"""How a draft is judged: by the walk, which is lossless token for token, or by the rejection rule, for comparison."""

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
# of one part of a check: its draft, what chooses its tokens, the error for a NaN
Judge = Callable[[Check, int, Draft, Sampler, Nan], Walked]


def by_walk(check: Check, part: int, draft: Draft, sampler: Sampler, nan: Nan) -> Walked:
    """The target's own choices, followed as far as the draft has them."""

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
            return NOTHING  # plain decoding may stop before it comes here; if not, the next round begins here
        sampler.advance([token])
        return token

    return check.walk(part, choose)


def by_rejection(check: Check, part: int, draft: Draft, sampler: Sampler, nan: Nan) -> Walked:
    """The classical rule: the distribution is kept, the tokens are not. Greedy text has only one way to be judged."""
    if sampler.greedy:
        return by_walk(check, part, draft, sampler, nan)
    root, begun, broken = check.root(part), sampler.step, False

    def target_probs(i: int) -> Distribution:
        nonlocal broken
        logits = check.outputs.logits(root + 1 + i)
        if sampler.complete:
            return np.zeros(len(logits))
        try:
            probs = sampler.probabilities(logits)
            if probs is None:
                raise nan()
        except ForetokenError:
            if sampler.step == begun:
                raise
            broken = True  # as in the walk: the next round begins here, if there is one
            return np.zeros(len(logits))
        return probs

    accepted, bonus = reject(
        draft.tokens,
        draft.parents,
        draft.draft_probs or {},
        target_probs,
        coin=sampler.coin,
        pick=lambda probs: NOTHING if broken or sampler.complete else sampler.pick(probs),
        accept=lambda token: sampler.advance([token]),
    )
    if bonus != NOTHING:
        sampler.advance([bonus])
    return Walked(accepted, bonus)


JUDGES: dict[str, Judge] = {"walk": by_walk, "rejection": by_rejection}
