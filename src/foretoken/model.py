"""What a user holds: a loaded model that generates and streams."""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from foretoken.audit import audit
from foretoken.decoder.decoder import Decoder
from foretoken.engine import Engine
from foretoken.errors import InputError, PromptError, SettingError
from foretoken.settings import GenerateSettings, LoadSettings
from foretoken.stats import summarise
from foretoken.text import StreamDecoder, Tokenizer
from foretoken.types import Completion, Drafter, Request, RoundRecord, Verifier


@dataclass(frozen=True, slots=True)
class Piece:
    """One streamed token: the text that it completes (empty within a character) and who proposed it."""

    token: int
    text: str
    origin: str


class Model:
    """A target and what drafts for it. Made by `foretoken.load`.

    `name` is what the caller called it, `folder` where it was found, `settings` what it was loaded with.
    """

    def __init__(
        self,
        target: Decoder,
        tokenizer: Tokenizer | None,
        verifier: Verifier,
        drafter: Drafter,
        *,
        num_speculative_tokens: int,
        end_tokens: frozenset[int],
        name: str,
        folder: Path,
        settings: LoadSettings,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.num_speculative_tokens = num_speculative_tokens
        self.end_tokens = end_tokens
        self.promise = target.promise
        self.draft = settings.draft
        self.name = name
        self.folder = folder
        self.settings = settings
        self._verifier = verifier
        self._drafter = drafter
        self._sequences = itertools.count()

    @property
    def context_length(self) -> int:
        """How many tokens prompt and output may have together."""
        return self._verifier.context_length

    def __repr__(self) -> str:
        return f"<foretoken.Model {self.target.config.model_type}, draft {self.draft!r}, promise {self.promise!r}>"

    def generate(
        self, prompt: str | Sequence[int], chosen: GenerateSettings | None = None, /, **settings: Any
    ) -> Completion:
        """Continue a prompt (text, or token ids). Settings: a `GenerateSettings`, or its fields by name."""
        stream = self.stream(prompt, chosen, **settings)
        for _ in stream:
            pass
        return stream.completion

    def stream(self, prompt: str | Sequence[int], chosen: GenerateSettings | None = None, /, **settings: Any) -> Stream:
        """The same, piece by piece: iterate it; `completion` is there afterwards. Closing it cancels."""
        if chosen is None:
            chosen = GenerateSettings.of(settings)
        elif settings:
            raise SettingError(f"settings came both ready-made and by name ({', '.join(settings)}); give one of them")
        request = Request(
            sequence=next(self._sequences),
            prompt=self.tokens_of(prompt),
            max_new_tokens=chosen.max_new_tokens,
            end_tokens=frozenset() if chosen.ignore_eos else self.end_tokens,
            keep_logits=chosen.keep_logits or chosen.hash_logits,
        )
        return Stream(self._run(request, chosen))

    def _run(self, request: Request, settings: GenerateSettings) -> Generator[Piece, None, Completion]:
        records: list[RoundRecord] = []
        rounds = Engine(
            self._verifier,
            self._drafter,
            num_speculative_tokens=self.num_speculative_tokens,
            recorder=records.append,
        ).run([request])
        decoder = StreamDecoder(self.tokenizer, request.prompt) if self.tokenizer else None
        pieces: list[Piece] = []
        kept: list[torch.Tensor] = []
        digest = hashlib.sha256()
        try:
            for (verdict,) in rounds:
                if settings.keep_logits and verdict.logits is not None:
                    kept.append(verdict.logits)
                if settings.hash_logits and verdict.logits is not None:
                    digest.update(verdict.logits.cpu().contiguous().numpy().astype("<f4", copy=False).tobytes())
                for i, (token, origin) in enumerate(zip(verdict.tokens, verdict.origins, strict=True), 1):
                    text = decoder.feed(token) if decoder else ""
                    if decoder and verdict.finish_reason is not None and i == len(verdict.tokens):
                        text += decoder.flush()
                    pieces.append(Piece(token, text, origin))
                    yield pieces[-1]
        finally:
            rounds.close()
        assert verdict.finish_reason is not None
        tokens = tuple(piece.token for piece in pieces)
        again = replace(request, sequence=next(self._sequences))
        return Completion(
            tokens=tokens,
            text="".join(piece.text for piece in pieces),
            finish_reason=verdict.finish_reason,
            origins=tuple(piece.origin for piece in pieces),
            promise=self.promise,
            draft=self.draft,
            stats=summarise(records, request.sequence),
            arithmetic=self.target.arithmetic,
            threads=self.target.threads,
            logits=torch.cat(kept) if kept else None,
            logits_sha256=digest.hexdigest() if settings.hash_logits else None,
            audit=audit(self._verifier, again, tokens) if settings.audit else None,
        )

    def describe(self, token: int) -> str:
        """A token as people read it: its text in quotes, or its number where it has no text of its own."""
        known = self.tokenizer is not None and 0 <= token < self.target.config.vocab_size
        text = self.tokenizer.decode([token]) if self.tokenizer is not None and known else ""
        return f"token {token}" if not text or "\ufffd" in text else repr(text)

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

    def __init__(self, pieces: Generator[Piece, None, Completion]) -> None:
        self._completion: Completion | None = None
        self._pieces = self._remember(pieces)

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

    def _remember(self, pieces: Generator[Piece, None, Completion]) -> Generator[Piece]:
        self._completion = yield from pieces
