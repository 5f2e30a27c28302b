"""What comes out: pieces, streams of them, and what one sequence has put out so far."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch

from foretoken.errors import InputError
from foretoken.protocol.types import FinishReason, Request, Verdict
from foretoken.results.completion import Completion, TokenLogprobs
from foretoken.settings.generate import GenerateSettings
from foretoken.text.stream import TextStream
from foretoken.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """One streamed token: the text that it completes (empty within a character) and who proposed it."""

    token: int
    text: str
    origin: str


# pieces, with the index of the completion that each belongs to, as they come; at last the completions
Generation = Generator[tuple[int, Piece], None, list[Completion]]


class Stream:
    """A generation under way. Iterate it for its pieces; `completion` once it has ended."""

    def __init__(self, run: Generation) -> None:
        self._completion: Completion | None = None
        self._pieces = self._remember(run)

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        return next(self._pieces)

    def close(self) -> None:
        """Cancel: nothing more comes, and what the generation held is freed."""
        self._pieces.close()

    @property
    def completion(self) -> Completion:
        """The finished generation."""
        if self._completion is None:
            raise InputError("the stream has not ended; iterate it to its end before asking for its completion")
        return self._completion

    def _remember(self, run: Generation) -> Generator[Piece]:
        with closing(run):
            while True:
                try:
                    _, piece = next(run)
                except StopIteration as end:
                    (self._completion,) = end.value
                    return
                yield piece


class Output:
    """What one request has put out so far. `take` is given each of its verdicts."""

    def __init__(self, request: Request, tokenizer: Tokenizer | None, settings: GenerateSettings) -> None:
        self.text = TextStream(tokenizer, request.prompt, settings.stops)
        self.pieces: list[Piece] = []
        self.logits: list[torch.Tensor] = []
        self.logprobs: list[TokenLogprobs] = []
        self.digest = hashlib.sha256()
        self.finish_reason: FinishReason | None = None
        self.cached_tokens = 0
        self._settings = settings

    def take(self, verdict: Verdict) -> Iterator[Piece]:
        """The pieces of a verdict."""
        for token in verdict.tokens:
            self.text.feed(token)
        self.finish_reason = verdict.finish_reason
        self.cached_tokens += verdict.cached_tokens
        if verdict.logits is not None:
            self._keep(verdict, verdict.logits)
        if verdict.finish_reason is not None:
            self.text.finish()
            if self.text.stopped_by is not None:
                self.finish_reason = "stop"  # even at what could only be told from half a character at the end
        for token, text, origin in zip(verdict.tokens, self.text.take(), verdict.origins, strict=True):
            self.pieces.append(Piece(token, text, origin))
            yield self.pieces[-1]

    def _keep(self, verdict: Verdict, logits: torch.Tensor) -> None:
        if self._settings.keep_logits:
            self.logits.append(logits)
        if self._settings.hash_logits:
            self.digest.update(logits.cpu().contiguous().numpy().astype("<f4", copy=False).tobytes())
        if self._settings.logprobs is not None:
            for token, row in zip(verdict.tokens, logits, strict=True):
                self.logprobs.append(log_probabilities(row, token, self._settings.logprobs))


def log_probabilities(logits: torch.Tensor, token: int, top: int) -> TokenLogprobs:
    """A token's log probability, from its row of logits, float32 [V], and those of the `top` likeliest tokens."""
    row = logits.cpu().numpy().astype(np.float64)
    most = row.max()
    total = most + np.log(np.exp(row - most).sum())
    best = np.argsort(-row, kind="stable")[:top]
    return TokenLogprobs(
        token, float(row[token] - total), tuple((int(other), float(row[other] - total)) for other in best)
    )


def exhausted(run: Generation) -> list[Completion]:
    """The completions at the end of a generation whose pieces nobody wants."""
    while True:
        try:
            next(run)
        except StopIteration as end:
            return list(end.value)
