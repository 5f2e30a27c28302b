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

    The last five fields are None if all tokens are the same.
    """

    # Whether all tokens are the same.
    identical: bool
    # How many tokens were compared, the first that differs included.
    compared_tokens: int
    # The index of the first token that differs, in the completion's `tokens`.
    position: int | None = None
    # The completion's token there.
    token: int | None = None
    # The token of plain decoding there; None if plain decoding has ended.
    plain_token: int | None = None
    # The logit of `token` in the pass of plain decoding; None if plain decoding has ended.
    logit: float | None = None
    # The logit of `plain_token` in the same pass; it is the larger one.
    plain_logit: float | None = None

    @property
    def gap(self) -> float | None:
        """How far apart the two logits are: what little it took to choose the other token."""
        return None if self.logit is None or self.plain_logit is None else self.plain_logit - self.logit


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How probable the model found a token, and which tokens it found likeliest at that place.

    Log probabilities are natural logarithms, from before penalties and temperature.
    """

    # The token's id.
    token: int
    # Its log probability.
    logprob: float
    # The likeliest tokens, the best first: for each, its id and its log probability.
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Completion:
    """One finished generation. A setting asks for each of the last six fields; otherwise the field is None."""

    # The ids of the new tokens.
    tokens: tuple[int, ...]
    # The text of the new tokens, up to the stop string.
    text: str
    # Why the text ended: `stop`, `length` or `cancelled`; or `disconnected`, if the host that checks it was lost, even
    # if the text went on without the host.
    finish_reason: FinishReason
    # Who proposed each token: a drafter's name, or `target`.
    origins: tuple[str, ...]
    # The promise that was kept: `exact` or `algorithmic`; `none` if some tokens are unverified.
    promise: str
    # What drafted, as the setting `draft` has it.
    draft: str
    # Counts, speeds and costs.
    stats: Stats
    # What did the arithmetic: `native` and its instruction set, or `pytorch`.
    arithmetic: str
    # The number of threads of arithmetic.
    threads: int
    # The seed of the random numbers; None if the text is greedy.
    seed: int | None = None
    # The stop string that ended the text; None if none did.
    stop_string: str | None = None
    # How many tokens the prompt has.
    prompt_tokens: int = 0
    # How many of the prompt's tokens were not read again, because an earlier turn of the conversation, the first of
    # several completions of the prompt, or another request that begins alike had read them.
    cached_tokens: int = 0
    # How many of the last tokens the model has not checked, because its host was gone (`offline="keep"`), or must not
    # see them (`private_suffix`).
    unverified: int = 0
    # With `logprobs`: the log probabilities of each token.
    logprobs: tuple[TokenLogprobs, ...] | None = None
    # With `prompt_logprobs`: the log probabilities of each of the prompt's tokens but the first.
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    # With `keep_logits`: the logits that each token was chosen from, float32, a row for each token.
    logits: torch.Tensor | None = None
    # With `hash_logits`: a SHA-256 of these logits as little-endian bytes.
    logits_sha256: str | None = None
    # With `audit`: the comparison with plain decoding; None if the generation was cancelled.
    audit: Audit | None = None
    # With `keep_rounds`: what each round did, the prompt's rounds first. Rounds of completions that shared passes with
    # this one are among them.
    rounds: tuple[RoundRecord, ...] | None = None

    def __repr__(self) -> str:
        """A line: the beginning of the text, and what came of it."""
        count = len(self.tokens)
        ended = "cancelled" if self.finish_reason == "cancelled" else f"ended by {self.finish_reason}"
        came = f"{count} token{'s' * (count != 1)}, {ended}"
        return f"<foretoken.Completion {quoted(self.text, 60)}, {came}, draft {self.draft!r}, promise {self.promise!r}>"
