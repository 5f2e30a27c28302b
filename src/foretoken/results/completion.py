"""What a generation gives back: the completion, its log probabilities, and what an audit found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretoken.errors import quoted
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import FinishReason

if TYPE_CHECKING:
    import torch

    from foretoken.results.stats import Stats


@dataclass(frozen=True, slots=True)
class Audit:
    """A generation compared with plain decoding of the same prompt, token by token.

    Where they differ, `position` is the index of the first such token in the completion's `tokens`, `token` is what
    stands there and `plain_token` what plain decoding says (None if it has ended); the two logits are those of the
    plain pass, which chose the larger one. `compared_tokens` counts that token, too.
    """

    identical: bool
    compared_tokens: int
    position: int | None = None
    token: int | None = None
    plain_token: int | None = None
    logit: float | None = None
    plain_logit: float | None = None

    @property
    def gap(self) -> float | None:
        """How far apart the two logits are: what little it took to choose the other token."""
        return None if self.logit is None or self.plain_logit is None else self.plain_logit - self.logit


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How probable the model found a token, as a natural logarithm, before penalties and temperature; and what it found
    likeliest, best first: (token, log probability) each."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Completion:
    """One finished generation. `origins[i]` is who proposed `tokens[i]`: a drafter's name, or `target`.

    `arithmetic` is what ran ("native", with its instruction set, or "pytorch") on `threads` threads. `seed` is that
    of the random numbers, when sampling; `stop_string` the one at which the text was cut. Of the `prompt_tokens`, so
    many were `cached_tokens`: not read again, but kept from an earlier turn of a conversation, or from the first of
    several completions of one prompt. On request: `logprobs`, one a token; `logits`, float32 [len(tokens), vocabulary];
    `logits_sha256`, of the same numbers as little-endian bytes; `audit` (not of one that was cancelled); `rounds`, what
    each round did, that of the prompt first and those of completions that shared its passes among them.
    """

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    origins: tuple[str, ...]
    promise: str
    draft: str
    stats: Stats
    arithmetic: str
    threads: int
    seed: int | None = None
    stop_string: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] | None = None
    logits: torch.Tensor | None = None
    logits_sha256: str | None = None
    audit: Audit | None = None
    rounds: tuple[RoundRecord, ...] | None = None

    def __repr__(self) -> str:
        """A line: the beginning of the text, and what came of it."""
        count = len(self.tokens)
        came = f"{count} token{'s' * (count != 1)}, ended by {self.finish_reason}"
        return f"<foretoken.Completion {quoted(self.text, 60)}, {came}, draft {self.draft!r}, promise {self.promise!r}>"
