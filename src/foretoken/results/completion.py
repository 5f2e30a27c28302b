"""The results of a generation: the completion, its log probabilities, and the findings of an audit."""

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

    If the two differ, `position` is the index of the first token of the completion's `tokens` that differs. `token` is
    the completion's token there, and `plain_token` the token of plain decoding (None if plain decoding had ended).
    `logit` and `plain_logit` are the logits of these two tokens in the plain pass, which chose the larger one.
    `compared_tokens` counts the tokens compared, the differing one included.
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
        """`plain_logit` minus `logit`: how little rounding was enough to choose the other token. None without these."""
        return None if self.logit is None or self.plain_logit is None else self.plain_logit - self.logit


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log probability of a token (natural logarithm), before penalties and temperature.

    `top` holds the likeliest tokens at that place, best first, as pairs of token and log probability.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Completion:
    """One finished generation.

    `origins[i]` names who proposed `tokens[i]`: a level of the draft, or `target`. `arithmetic` names the engine
    ("native" with its instruction set, or "pytorch"), which ran on `threads` threads. `seed` is the seed of the random
    numbers; it is None for greedy text. `stop_string` is the stop string at which the text was cut.

    `cached_tokens` says how many of the `prompt_tokens` were not read again. Their keys and values were kept from an
    earlier turn of a conversation, or came from the first of several completions of one prompt.

    Filled only on request: `logprobs`, one for each token. `logits`, float32 [len(tokens), vocabulary].
    `logits_sha256`, the SHA-256 of these logits as little-endian bytes. `audit`, unless the generation was cancelled.
    `rounds`, a record of each round, the prompt's first; rounds of other sequences between the first and the last of
    this one are included.
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
        """One line: the beginning of the text, the number of tokens, and why the generation ended."""
        count = len(self.tokens)
        came = f"{count} token{'s' * (count != 1)}, ended by {self.finish_reason}"
        return f"<foretoken.Completion {quoted(self.text, 60)}, {came}, draft {self.draft!r}, promise {self.promise!r}>"
