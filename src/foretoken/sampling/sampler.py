"""One sequence's choices: what edits its logits, how they are warped, which seeded noise is added.

The token at step i is the one with the largest score: warped logit plus a number from the noise of (seed, completion,
i, token), or the logit alone at temperature 0. That is a function of the logits and of what came before, so drafting
cannot change it (docs/lossless.md): the verifier asks it row by row along its walk, and a drafter, which has a sampler
of its own for the same request, asks it what the target would choose if it saw the draft's logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import torch

from foretoken import kernels
from foretoken.errors import ContractError, GrammarError
from foretoken.kernels.choosing import Doubles, Floats, Noise, Warp, probabilities, uniform
from foretoken.protocol.types import Request, SamplingParams
from foretoken.sampling.processors import History

TARGET_NOISE = 0  # streams of noise: the target's own,
DRAFT_NOISE = 1  # a draft's, for a rule that needs draft and target to be independent,
COINS = 2  # the coins by which that rule accepts,
RESIDUAL = 3  # and the noise of what it draws instead
_AS_THEY_ARE = Warp()


class Constraint(Protocol):
    """A grammar's state after some tokens."""

    @property
    def complete(self) -> bool:
        """Whether the text is whole and nothing may follow."""
        ...

    def allowed(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """bool [size]: which tokens may come next. GrammarError if the grammar cannot be followed any further."""
        ...

    def advance(self, token: int) -> None:
        """One more token. One that is not allowed ends what may follow, until it is taken back."""
        ...

    def rewind(self, count: int) -> None:
        """Forget the last `count` tokens."""
        ...


class Sampler:
    """Holds the tokens that a sequence has gained, on which processors and noise depend.

    `stream` is the target's noise, which whoever guesses its choices adds too, or `DRAFT_NOISE`.
    """

    def __init__(self, request: Request, constraint: Constraint | None = None, stream: int = TARGET_NOISE) -> None:
        params = request.sampling
        self._stream = stream
        self.params = params
        self._completion = request.completion
        self._constraint = constraint
        self._tokens: list[int] = []
        self._history = History(request.prompt) if _edits(params) else None
        self.greedy = params.temperature == 0.0
        self._warp = _AS_THEY_ARE if self.greedy else Warp(params.temperature, params.top_k, params.top_p, params.min_p)

    @property
    def plain(self) -> bool:
        """Whether a choice is simply the largest logit."""
        return self.greedy and self._history is None and self._constraint is None

    @property
    def step(self) -> int:
        """How many tokens the sequence has gained: the index of the next one."""
        return len(self._tokens)

    @property
    def complete(self) -> bool:
        """Whether the text is whole and nothing may follow: its grammar says so."""
        return self._constraint is not None and self._constraint.complete

    def advance(self, tokens: Iterable[int]) -> None:
        """The sequence has gained these."""
        for token in tokens:
            if self._constraint is not None:
                self._constraint.advance(token)
            if self._history is not None:
                self._history.add(token)
            self._tokens.append(token)

    def rewind(self, step: int) -> None:
        """Go back to when the sequence had gained `step` tokens."""
        count = self.step - step
        if not 0 <= count <= self.step:
            raise ContractError(f"cannot rewind to step {step}; expected 0 to {self.step}")
        if count and self._constraint is not None:
            self._constraint.rewind(count)
        for _ in range(count):
            token = self._tokens.pop()
            if self._history is not None:
                self._history.remove(token)

    def choose(self, logits: torch.Tensor) -> int | None:
        """The next token, from its row of logits, float32 [V]. None if one of them is NaN or +inf. GrammarError if no
        token may come next."""
        ranked = self._rank(logits, 1)
        if ranked is not None and not ranked[0]:
            raise _nothing_left()
        return None if ranked is None else ranked[0][0]

    def rank(self, logits: torch.Tensor, count: int) -> tuple[list[int], list[float]] | None:
        """The likeliest next tokens and their scores, best first: the first is the choice. None if a logit is NaN
        or +inf.

        Sampling, the scores hold the noise, and `count` tokens are a sample without replacement. This is for whoever
        guesses: there is no token where the grammar cannot be followed any further, and no error.
        """
        try:
            return self._rank(logits, count)
        except GrammarError:
            return [], []

    def log_total(self, logits: torch.Tensor, temperature: float) -> float:
        """The logarithm of the sum of exp(logit / temperature) over the vocabulary, without noise: by it scores of
        greedy decoding become probabilities. For whoever guesses, behind a `rank` that found some."""
        return float(torch.logsumexp(torch.as_tensor(self._edited(logits)) / temperature, 0))

    def _rank(self, logits: torch.Tensor, count: int) -> tuple[list[int], list[float]] | None:
        edited = self._edited(logits)
        noise = None if self.greedy else self._dice(self._stream)
        return kernels.rank(edited, self._warp, noise, count)

    def probabilities(self, logits: torch.Tensor) -> Doubles | None:
        """The distribution that a choice is drawn from: float64 [V]. At temperature 0 all of it is on the choice."""
        edited = self._edited(logits)
        if bool((edited == -np.inf).all()):
            raise _nothing_left()
        if not self.greedy:
            return probabilities(edited, self._warp)
        ranked = kernels.rank(edited, self._warp, None, 1)
        if ranked is None:
            return None
        certain = np.zeros(len(edited))
        certain[ranked[0]] = 1.0
        return certain

    def coin(self, which: int, probability: float) -> bool:
        """True with a probability: this step's coin of that number, the same whenever it is thrown."""
        return uniform(self._dice(COINS), which) < probability

    def pick(self, probs: Doubles) -> int:
        """A token drawn from a distribution, with noise that nobody else uses at this step."""
        possible = np.flatnonzero(probs > 0.0)
        sums = np.cumsum(probs[possible])
        at = int(np.searchsorted(sums, uniform(self._dice(RESIDUAL), 0) * sums[-1], side="right"))
        return int(possible[min(at, len(possible) - 1)])  # rounding may reach the sum itself

    def _dice(self, stream: int) -> Noise:
        return Noise(self.params.seed, self._completion, self.step, stream)

    def _edited(self, logits: torch.Tensor) -> Floats:
        row: Floats = logits.detach().cpu().numpy()
        if self._history is None and self._constraint is None:
            return row
        row = row.copy()
        if self._history is not None:
            self._history.edit(row, self.params)
        if self._constraint is not None:
            # what is NaN or infinite stays, to be found: a grammar must not hide broken weights
            row[~self._constraint.allowed(len(row)) & (row < np.inf)] = -np.inf
        return row


def _edits(params: SamplingParams) -> bool:
    penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    return penalties != (1.0, 0.0, 0.0) or bool(params.logit_bias)


def _nothing_left() -> GrammarError:
    return GrammarError("no token may come next: constraint, bias and penalties together leave none")


MakeSampler = Callable[[Request], Sampler]  # for whoever chooses a request's tokens, or guesses them
