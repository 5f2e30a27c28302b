"""The output of a generation: pieces, streams of pieces, and the output of one sequence so far."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch

from foretoken.errors import ContractError, InputError
from foretoken.kernels.totals import log_total
from foretoken.protocol.types import FinishReason, Request, Verdict
from foretoken.results.completion import Completion, TokenLogprobs
from foretoken.settings.generate import GenerateSettings
from foretoken.text.stream import TextStream
from foretoken.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """One streamed token. `text` is the text that it completes; it may be empty, such as within a character. `origin`
    names who proposed the token: a level of the draft, or `target`. `unverified`: the model has not checked it, because
    its host is gone (`foretoken.connect` with offline="keep")."""

    token: int
    text: str
    origin: str
    unverified: bool = False


# yields pieces as they come, each with the index of its completion; returns the completions
Generation = Generator[tuple[int, Piece], None, list[Completion]]


class Cancelled(BaseException):
    """Thrown into a generation to cancel it: the generation ends, and returns the completions as far as they came."""


def cancel(run: Generation) -> list[Completion]:
    """Cancel a generation. Returns the completions as far as they came. Raises Cancelled if the generation had not
    begun, or had ended."""
    try:
        run.throw(Cancelled())
    except StopIteration as end:
        return list(end.value)
    raise ContractError("a generation went on after it was cancelled")


class Stream:
    """A generation under way. Iterate it for its pieces. `completion` is available once it has ended or was closed."""

    def __init__(self, run: Generation) -> None:
        self._completion: Completion | None = None
        self._run = run
        self._closed = False

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        try:
            _, piece = next(self._run)
        except StopIteration as end:
            if end.value is not None:  # None: the generation had ended before
                (self._completion,) = end.value
            raise StopIteration from None
        return piece

    def close(self) -> None:
        """Cancel the generation and free its memory. `completion` then has the pieces that came."""
        self._closed = True
        with suppress(Cancelled):
            (self._completion,) = cancel(self._run)

    @property
    def completion(self) -> Completion:
        """The completion: whole, or as far as it came before the stream was closed (`finish_reason` "cancelled").

        Raises InputError if the stream has not ended, or was closed before its first piece.
        """
        if self._completion is None:
            raise InputError(
                "the stream was closed before its first piece, so it has no completion; iterate it first"
                if self._closed
                else "the stream has not ended, or ended with an error; iterate it to its end, or close it"
            )
        return self._completion


class Output:
    """The output of one request so far. `take` must be given each verdict of its sequence."""

    def __init__(self, request: Request, tokenizer: Tokenizer | None, settings: GenerateSettings) -> None:
        self.text = TextStream(
            tokenizer, (*request.prompt, *request.private[-1:]), settings.stops, keep_stop=settings.keep_stop
        )
        self._prompt = request.prompt
        self._private = bool(request.private)
        self._given = int(self._private)  # tokens of the first verdict that are the prompt's
        self.pieces: list[Piece] = []
        self.logits: list[torch.Tensor] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.digest = hashlib.sha256()
        self.finish_reason: FinishReason | None = None
        self.cached_tokens = 0
        self.unverified = 0  # tokens that the model has not checked: the last ones
        self._whole = False  # whether the last piece was given out
        self._settings = settings

    def take(self, verdict: Verdict) -> Iterator[Piece]:
        """The pieces of a verdict."""
        tokens, origins = verdict.tokens[self._given :], verdict.origins[self._given :]
        self._given = 0 if verdict.tokens else self._given
        for token in tokens:
            self.text.feed(token)
        self.finish_reason = verdict.finish_reason
        self.cached_tokens += verdict.cached_tokens
        self._keep_prompt(verdict)
        if verdict.finish_reason is not None:
            self.text.finish()
            if self.text.stopped_by is not None:
                self.finish_reason = "stop"  # `finish` may complete a stop string with the text that was held back
            if (self.unverified or verdict.unverified) and not self._private:
                self.finish_reason = "disconnected"
        for row, (token, text, origin) in enumerate(zip(tokens, self.text.take(), origins, strict=True)):
            self.pieces.append(Piece(token, text, origin, verdict.unverified))
            self.unverified += verdict.unverified
            if verdict.logits is not None:
                self._keep(token, verdict.logits[row])
            self._whole = self.finish_reason is not None and row == len(tokens) - 1
            yield self.pieces[-1]
        if verdict.finish_reason is not None and not tokens:  # it ends behind a token that was given out
            self._whole = True

    def cancel(self) -> None:
        """Cancel: the output is the pieces that were given out, which may be all of them."""
        if not self._whole:
            self.finish_reason = "cancelled"

    @property
    def stop_string(self) -> str | None:
        """The stop string at which the text was cut; None if there was none."""
        return None if self.finish_reason == "cancelled" else self.text.stopped_by

    def _keep_prompt(self, verdict: Verdict) -> None:
        """The log probabilities of the prompt's tokens that follow the rows that were read."""
        top = self._settings.prompt_logprobs
        if verdict.prompt_logits is None or top is None:
            return
        for row in verdict.prompt_logits:
            at = len(self.prompt_logprobs) + 1
            if at < len(self._prompt):  # the last row gives the first token of the output
                self.prompt_logprobs.append(log_probabilities(row, self._prompt[at], top))

    def _keep(self, token: int, row: torch.Tensor) -> None:
        if self._settings.keep_logits:
            self.logits.append(row[None])
        if self._settings.hash_logits:
            self.digest.update(row.cpu().contiguous().numpy().astype("<f4", copy=False).tobytes())
        if self._settings.logprobs is not None:
            self.logprobs.append(log_probabilities(row, token, self._settings.logprobs))


def log_probabilities(logits: torch.Tensor, token: int, top: int) -> TokenLogprobs:
    """The log probability of a token and of the `top` likeliest tokens. logits: the token's row, float32 [V]."""
    row = logits.cpu().numpy().astype(np.float64)
    total = log_total(row)
    likeliest = np.flatnonzero(row >= np.partition(row, -top)[-top]) if 0 < top < len(row) else np.arange(len(row))
    best = likeliest[np.argsort(-row[likeliest], kind="stable")][:top]
    return TokenLogprobs(
        token, float(row[token] - total), tuple((int(other), float(row[other] - total)) for other in best)
    )


def exhausted(run: Generation) -> list[Completion]:
    """Run a generation to its end, without its pieces. Returns the completions."""
    while True:
        try:
            next(run)
        except StopIteration as end:
            return list(end.value)
