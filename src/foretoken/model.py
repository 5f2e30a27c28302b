"""What a user holds: a loaded model that generates and streams."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foretoken.decoder.decoder import Decoder
from foretoken.engine import Engine
from foretoken.errors import InputError, PromptError
from foretoken.settings import GenerateSettings
from foretoken.stats import summarise
from foretoken.text import StreamDecoder, Tokenizer
from foretoken.types import Completion, Drafter, Request, RoundRecord, Verdict, Verifier


@dataclass(frozen=True, slots=True)
class Piece:
    """One streamed token: the text that it completes (empty within a character) and who proposed it."""

    token: int
    text: str
    origin: str


class Model:
    """A target and what drafts for it. Made by `foretoken.load`."""

    def __init__(
        self,
        target: Decoder,
        tokenizer: Tokenizer | None,
        verifier: Verifier,
        drafter: Drafter,
        *,
        num_speculative_tokens: int,
        end_tokens: frozenset[int],
        promise: str,
        draft: str,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.num_speculative_tokens = num_speculative_tokens
        self.end_tokens = end_tokens
        self.promise = promise
        self.draft = draft
        self._verifier = verifier
        self._drafter = drafter
        self._sequences = itertools.count()

    def __repr__(self) -> str:
        return f"<foretoken.Model {self.target.config.model_type}, draft {self.draft!r}, promise {self.promise!r}>"

    def generate(self, prompt: str | Sequence[int], **settings: Any) -> Completion:
        """Continue a prompt (text, or token ids). Settings: the fields of `GenerateSettings`, e.g. max_new_tokens."""
        stream = self.stream(prompt, **settings)
        for _ in stream:
            pass
        return stream.completion

    def stream(self, prompt: str | Sequence[int], **settings: Any) -> Stream:
        """The same, piece by piece: iterate it; `completion` is there afterwards. Closing it cancels."""
        chosen = GenerateSettings.of(settings)
        request = Request(
            sequence=next(self._sequences),
            prompt=self.tokens_of(prompt),
            max_new_tokens=chosen.max_new_tokens,
            end_tokens=frozenset() if chosen.ignore_eos else self.end_tokens,
            keep_logits=chosen.keep_logits,
        )
        records: list[RoundRecord] = []
        engine = Engine(
            self._verifier,
            self._drafter,
            num_speculative_tokens=self.num_speculative_tokens,
            recorder=records.append,
        )
        decoder = StreamDecoder(self.tokenizer, request.prompt) if self.tokenizer else None
        return Stream(request, engine.run([request]), records, decoder, promise=self.promise, draft=self.draft)

    def tokens_of(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        """A prompt's tokens, checked: some, known to the model, and room for at least one more in the context."""
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise PromptError("the checkpoint has no tokenizer, so it cannot read text; give token ids")
            try:
                prompt.encode("utf-8")
            except UnicodeEncodeError as error:
                raise PromptError(f"the prompt is not text: character {error.start} is half a character") from None
            tokens = tuple(self.tokenizer.encode(prompt)) if prompt else ()  # some begin even nothing with a token
        else:
            ids = _token_ids(prompt)
            if ids is None:
                raise PromptError(f"the prompt is {prompt!r:.60}, expected text or token ids")
            tokens = ids
        if not tokens:
            raise PromptError("the prompt is empty; expected at least one token")
        size, context = self._verifier.vocab_size, self._verifier.context_length
        for token in tokens:
            if not 0 <= token < size:
                raise PromptError(f"the prompt holds token {token}; the model has tokens 0 to {size - 1}")
        if len(tokens) >= context:
            raise PromptError(
                f"the prompt has {len(tokens)} tokens, and the model's context holds {context} with what follows; "
                "shorten the prompt"
            )
        return tokens


def _token_ids(prompt: Any) -> tuple[int, ...] | None:
    """Token ids from a list, tensor or array; None for anything else, bytes, truth values and fractions among it."""
    if isinstance(prompt, bytes | bytearray):
        return None
    try:
        items = list(prompt)
        return None if any(isinstance(item, bool) for item in items) else tuple(map(operator.index, items))
    except TypeError:
        return None


class Stream:
    """A generation under way. Iterate it for its pieces; `completion` once it has ended."""

    def __init__(
        self,
        request: Request,
        rounds: Generator[list[Verdict]],
        records: list[RoundRecord],
        decoder: StreamDecoder | None,
        *,
        promise: str,
        draft: str,
    ) -> None:
        self._request = request
        self._records = records
        self._promise = promise
        self._draft = draft
        self._completion: Completion | None = None
        self._pieces = self._run(rounds, decoder)

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

    def _run(self, rounds: Generator[list[Verdict]], decoder: StreamDecoder | None) -> Generator[Piece]:
        verdicts: list[Verdict] = []
        texts: list[str] = []
        try:
            for (verdict,) in rounds:
                verdicts.append(verdict)
                for i, (token, origin) in enumerate(zip(verdict.tokens, verdict.origins, strict=True), 1):
                    text = decoder.feed(token) if decoder else ""
                    if decoder and verdict.finish_reason is not None and i == len(verdict.tokens):
                        text += decoder.flush()
                    texts.append(text)
                    yield Piece(token, text, origin)
        finally:
            rounds.close()
        assert verdict.finish_reason is not None
        logits = [v.logits for v in verdicts if v.logits is not None]
        self._completion = Completion(
            tokens=tuple(token for v in verdicts for token in v.tokens),
            text="".join(texts),
            finish_reason=verdict.finish_reason,
            origins=tuple(origin for v in verdicts for origin in v.origins),
            promise=self._promise,
            draft=self._draft,
            stats=summarise(self._records, self._request.sequence),
            logits=torch.cat(logits) if logits else None,
        )
