"""How likely draft tokens are to be accepted, learned from the verdicts so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]
UNSURE = 3.0  # how many tokens an opinion is worth that has little behind it
_POOLED = 6.0  # drafts that the average over all positions is worth at one position
_STEPS = (0.03, 0.3)  # how far a tendency moves with a token that was not foreseen at all, in logits
_FADE = 0.95  # of the likelihood of earlier tokens, with each token
_CERTAIN, _NEVER = 0.995, 1e-9  # no token is taken to be likelier or less likely: a text may change at any time


class Counts:
    """Drafts by position: how many reached it, and how many were accepted there. Older drafts count less.

    half_life: after so many drafts, a draft counts half. weight: how many tokens the opinion is worth that one has
    before any draft was heard of.
    """

    def __init__(self, half_life: float, weight: float = UNSURE) -> None:
        self._weight = weight
        self._decay = 0.5 ** (1 / half_life)
        self._seen = np.zeros((2, 0))  # accepted and reached, by position

    def heard(self, asked: int, accepted: int) -> None:
        """Note a chain for which `asked` tokens were allowed. A position is reached if all tokens before it were
        accepted. If the drafter proposed no token there, that counts as one that was refused."""
        if more := max(0, asked - self._seen.shape[1]):
            self._seen = np.pad(self._seen, ((0, 0), (0, more)))
        self._seen *= self._decay
        self._seen[0, : min(asked, accepted)] += 1
        self._seen[1, : min(asked, accepted + 1)] += 1

    def chances(self, most: int, prior: float) -> _Floats:
        """For each of `most` positions: the probability that a token there is accepted if those before it are. prior:
        before anything was heard."""
        accepted, reached = self._seen.sum(axis=1)
        pooled = float(accepted + self._weight * prior) / float(reached + self._weight)
        found = np.full(most, pooled)
        accepted, reached = self._seen[:, :most]
        found[: len(reached)] = (accepted + _POOLED * pooled) / (reached + _POOLED)
        return found


@dataclass
class Tendency:
    """How much easier or harder one text is than texts are on average, in logits.

    Two estimates follow the verdicts, one slowly and one at once. The slow one is best while a text is of one kind, the
    other when its kind changes. Each counts by how well it has foreseen the last tokens.
    """

    shifts: list[float] = field(default_factory=lambda: [0.0] * len(_STEPS))
    foreseen: list[float] = field(default_factory=lambda: [0.0] * len(_STEPS))  # recent log likelihood
    shift: float = 0.0  # the mean of the estimates, by how well they foresaw

    def heard(self, chances: Sequence[float], accepted: int) -> None:
        """Note a draft of which so many tokens were accepted. chances: with which probability each token that was
        looked at is accepted on average."""
        for at, chance in enumerate(chances):
            self._heard_of(chance, at < accepted)
        best = max(self.foreseen)
        weights = [math.exp(each - best) for each in self.foreseen]
        self.shift = sum(w * s for w, s in zip(weights, self.shifts, strict=True)) / sum(weights)

    def _heard_of(self, chance: float, accepted: bool) -> None:
        for which, step in enumerate(_STEPS):
            expected = _shifted(chance, self.shifts[which])
            self.foreseen[which] *= _FADE
            self.foreseen[which] += math.log(max(1e-3, expected if accepted else 1 - expected))
            self.shifts[which] += step * (accepted - expected)


class Acceptance:
    """Learns how likely a token is at its position of a draft, apart for each kind of place in the text.

    expected: the probability of a token before anything was drafted, for each kind. Kinds are numbers from 0 up.
    weight: how many tokens that opinion is worth. What is learned of all sequences together is shifted for each
    sequence by its own tendency.
    """

    def __init__(self, expected: tuple[float, ...], weight: float = UNSURE) -> None:
        self._expected = expected
        self._counts = [Counts(512, weight) for _ in expected]
        self._own: dict[int, Tendency] = {}

    def heard(self, sequence: int, asked: int, accepted: int, kind: int = 0) -> None:
        """Note a draft for which `asked` tokens were allowed, and how many were accepted."""
        kind, own = min(kind, len(self._counts) - 1), self._own.setdefault(sequence, Tendency())
        chances = self._counts[kind].chances(min(asked, accepted + 1), self._expected[kind])
        own.heard(chances.tolist(), accepted)
        if asked:
            self._counts[kind].heard(asked, accepted)

    def forget(self, sequences: Iterable[int]) -> None:
        """Drop what was learned of some sequences by themselves."""
        for sequence in sequences:
            self._own.pop(sequence, None)

    def survival(self, sequences: Sequence[int], most: int, kinds: Sequence[int] | None = None) -> _Floats:
        """For each sequence, and each i from 1 to `most`: the probability that the first i tokens of a draft are all
        accepted: [sequences, most]. kinds: the kind of place that each sequence has reached; None: all the first."""
        last = len(self._counts) - 1
        its = [0] * len(sequences) if kinds is None else [min(kind, last) for kind in kinds]
        against = {
            kind: 1 / np.clip(self._counts[kind].chances(most, self._expected[kind]), _NEVER, _CERTAIN) - 1
            for kind in set(its)
        }
        moved = [math.exp(-self._own[sequence].shift) if sequence in self._own else 1.0 for sequence in sequences]
        shifted = 1 / (1 + np.array([against[kind] for kind in its]) * np.array(moved)[:, None])
        return np.asarray(np.multiply.accumulate(np.minimum(_CERTAIN, shifted), axis=1))


def _shifted(chance: float, shift: float) -> float:
    """A probability whose logit is moved."""
    chance = min(max(chance, _NEVER), _CERTAIN)
    return min(_CERTAIN, 1 / (1 + (1 / chance - 1) * math.exp(-shift)))
