"""The choices of one sequence: edits of its logits, warping, and seeded noise.

The token at step i is the one with the largest score. The score is the warped logit plus a number from the noise of
(seed, completion, i, token); at temperature 0 it is the logit alone. So the choice is a function of the logits and of
the tokens before, and drafting cannot change it (docs/lossless.md). The verifier asks its sampler row by row along its
walk. A drafter has a sampler of its own for the same request, and asks for the token that the target would choose if it
had the draft's logits.
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

# streams of noise
TARGET_NOISE = 0  # the target's own
DRAFT_NOISE = 1  # a draft's: the rejection rule needs draft and target to be independent
COINS = 2  # the coins with which that rule accepts tokens
RESIDUAL = 3  # the noise of the tokens that it draws instead
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
        """Take in one more token. After a token that is not allowed nothing may follow, until it is taken back."""
        ...

    def rewind(self, count: int) -> None:
        """Forget the last `count` tokens."""
        ...


class Sampler:
    """Chooses the tokens of one sequence. It holds the tokens that the sequence has gained, on which processors and
    noise depend.

    stream: the target's noise, which a drafter that guesses the target's choices adds, too; or `DRAFT_NOISE`.
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
        """Take in tokens that the sequence has gained."""
        for token in tokens:
            if self._constraint is not None:
                self._constraint.advance(token)
            if self._history is not None:
                self._history.add(token)
            self._tokens.append(token)

    def rewind(self, step: int) -> None:
        """Go back to the state after `step` tokens. Raises ContractError for a step that has not been reached."""
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
        """The `count` best next tokens and their scores, best first: the first is the choice. None if a logit is NaN or
        +inf.

        When sampling, the scores include the noise, so the tokens are a sample without replacement. This call is for
        drafters: where the grammar cannot be followed any further it gives no tokens, and no error.
        """
        try:
            return self._rank(logits, count)
        except GrammarError:
            return [], []

    def log_total(self, logits: torch.Tensor, temperature: float) -> float:
        """The logarithm of the sum of exp(logit / temperature) over the vocabulary, without noise: by it scores of
        greedy decoding become probabilities. For whoever guesses, behind a `rank` that found some."""
        return kernels.log_total(self.edited(logits), temperature)

    def _rank(self, logits: torch.Tensor, count: int) -> tuple[list[int], list[float]] | None:
        edited = self.edited(logits)
        noise = None if self.greedy else self._dice(self._stream)
        return kernels.rank(edited, self._warp, noise, count)

    def probabilities(self, logits: torch.Tensor) -> Doubles | None:
        """The distribution from which a token is drawn: float64 [V]. At temperature 0 the choice has probability 1.
        None if a logit is NaN or +inf. GrammarError if no token may come next."""
        edited = self.edited(logits)
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
        """True with this probability. Coin number `which` of a step gives the same number whenever it is asked."""
        return uniform(self._dice(COINS), which) < probability

    def pick(self, probs: Doubles) -> int:
        """A token drawn from a distribution, float64 [V], with noise that nothing else uses at this step."""
        possible = np.flatnonzero(probs > 0.0)
        sums = np.cumsum(probs[possible])
        at = int(np.searchsorted(sums, uniform(self._dice(RESIDUAL), 0) * sums[-1], side="right"))
        return int(possible[min(at, len(possible) - 1)])  # rounding may reach the sum itself

    def _dice(self, stream: int) -> Noise:
        return Noise(self.params.seed, self._completion, self.step, stream)

    def edited(self, logits: torch.Tensor) -> Floats:
        """A row of logits behind penalties, bias and grammar, float32 [V]: what is warped, and chosen from."""
        row: Floats = logits.detach().cpu().numpy()
        if self._history is None and self._constraint is None:
            return row
        row = row.copy()
        if self._history is not None:
            self._history.edit(row, self.params)
        if self._constraint is not None:
            # NaN and infinite logits stay, so that they are found: a grammar must not hide broken weights
            row[~self._constraint.allowed(len(row)) & (row < np.inf)] = -np.inf
        return row


def _edits(params: SamplingParams) -> bool:
    penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    return penalties != (1.0, 0.0, 0.0) or bool(params.logit_bias)


def _nothing_left() -> GrammarError:
    return GrammarError("no token may come next: constraint, bias and penalties together leave none")


MakeSampler = Callable[[Request], Sampler]  # for the verifier, and for drafters that guess tokens
