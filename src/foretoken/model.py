"""What a user holds: a loaded model that generates, streams and talks."""

from __future__ import annotations

import itertools
import operator
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from foretoken.audit import audit
from foretoken.chat import Chat
from foretoken.decoder.cost import Cost
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import joined
from foretoken.engine import Engine
from foretoken.errors import PromptError, SettingError
from foretoken.files import FilesAsRead
from foretoken.output import Generation, Output, Stream
from foretoken.settings import GenerateSettings, LoadSettings, expect_repeatable
from foretoken.stats import summarise
from foretoken.text import Tokenizer, expect_whole
from foretoken.types import TARGET, Completion, Drafter, Request, RoundRecord, SamplingParams, Verdict, Verifier


class Model:
    """A target and what drafts for it. Made by `foretoken.load`.

    `name` is what the caller called it, `folder` where it was found, `settings` what it was loaded with. `files` are
    those that decide what it says, as they were when they were read; None of a model that came from none. `levels` are
    the names of its draft's, nearest to the target first; `decoders` are those that stand behind them, by these names,
    and the `target`.
    """

    def __init__(
        self,
        target: Decoder,
        tokenizer: Tokenizer | None,
        verifier: Verifier,
        drafter: Drafter,
        *,
        num_speculative_tokens: int,
        levels: Sequence[str] = (),
        decoders: Mapping[str, Decoder] | None = None,
        end_tokens: frozenset[int],
        name: str,
        folder: Path,
        settings: LoadSettings,
        files: FilesAsRead | None = None,
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
        self.files = files
        self._verifier = verifier
        self.drafter = drafter
        self.levels = tuple(levels)
        self.decoders = {TARGET: target, **(decoders or {})}
        self._sequences = itertools.count()
        self._conversations = itertools.count()

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

    def completions(
        self, prompt: str | Sequence[int], chosen: GenerateSettings | None = None, /, **settings: Any
    ) -> list[Completion]:
        """`n` continuations of a prompt, which share the passes of the model. Each is what it would be alone."""
        chosen = GenerateSettings.chosen(chosen, settings)
        run = self._run(self._requests(prompt, chosen), chosen)
        return _exhausted(run)

    def stream(self, prompt: str | Sequence[int], chosen: GenerateSettings | None = None, /, **settings: Any) -> Stream:
        """The same as `generate`, piece by piece: iterate it; `completion` is there afterwards. Closing it cancels."""
        chosen = GenerateSettings.chosen(chosen, settings)
        if chosen.n != 1:
            raise SettingError(f"n is {chosen.n}, and here comes one completion; ask `completions` for several")
        return Stream(self._run(self._requests(prompt, chosen), chosen))

    def chat(self, system: str | None = None, *, plain: bool = False) -> Chat:
        """A talk, which keeps what the model has read from one turn to the next.

        system: what the model is told beforehand. plain: it goes on with the text, without a chat template.
        """
        conversation = next(self._conversations)
        return Chat(
            lambda prompt, settings: self._run(self._requests(prompt, settings, conversation), settings),
            partial(self._verifier.forget, conversation),
            self.tokenizer,
            name=self.name,
            system=system,
            plain=plain,
        )

    def _requests(
        self, prompt: str | Sequence[int], settings: GenerateSettings, conversation: int | None = None
    ) -> list[Request]:
        """One request a completion."""
        if settings.audit:
            expect_repeatable(self.settings.rule, settings, "an audit")
        tokens, sampling = self.tokens_of(prompt), self._sampling(settings)
        if settings.stops and self.tokenizer is None:
            raise SettingError("the checkpoint has no tokenizer, so there is no text that could stop; leave stop out")
        return [
            Request(
                sequence=next(self._sequences),
                prompt=tokens,
                max_new_tokens=settings.max_new_tokens,
                end_tokens=frozenset() if settings.ignore_eos else self.end_tokens,
                keep_logits=settings.keep_logits or settings.hash_logits or settings.logprobs is not None,
                sampling=sampling,
                completion=completion,
                conversation=conversation,
            )
            for completion in range(settings.n)
        ]

    def _sampling(self, settings: GenerateSettings) -> SamplingParams:
        size = self._verifier.vocab_size
        bias = tuple(sorted((settings.logit_bias or {}).items()))
        if bias and bias[-1][0] >= size:
            raise SettingError(f"logit_bias names token {bias[-1][0]}; the model has tokens 0 to {size - 1}")
        sampled = settings.temperature > 0
        return SamplingParams(
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            repetition_penalty=settings.repetition_penalty,
            presence_penalty=settings.presence_penalty,
            frequency_penalty=settings.frequency_penalty,
            logit_bias=bias,
            seed=(secrets.randbits(53) if settings.seed is None else settings.seed) if sampled else 0,
            constraint=settings.constraint,
        )

    def _run(self, requests: Sequence[Request], settings: GenerateSettings) -> Generation:
        """Pieces, with the index of the request that each belongs to, as they come; at last the completions."""
        outputs = {r.sequence: Output(r, self.tokenizer, settings) for r in requests}
        index = {r.sequence: i for i, r in enumerate(requests)}
        records: list[RoundRecord] = []
        rounds = Engine(
            self._verifier,
            self.drafter,
            num_speculative_tokens=self.num_speculative_tokens,
            recorder=records.append,
        ).run(requests, lambda sequence, token: outputs[sequence].text.feed(token))
        try:
            # counted while this generation runs: between its rounds, others may
            for verdicts in self._counted(rounds, records):
                for verdict in verdicts:
                    for piece in outputs[verdict.sequence].take(verdict):
                        yield index[verdict.sequence], piece
        finally:
            rounds.close()
        return [self._completion(r, outputs[r.sequence], records, settings) for r in requests]

    def _counted(self, rounds: Iterator[list[Verdict]], records: list[RoundRecord]) -> Iterator[list[Verdict]]:
        """The verdicts of rounds, with what each cost added to its record."""
        while True:
            before = self._costs()
            verdicts = next(rounds, None)
            if verdicts is None:
                return
            spent = {name: cost - before[name] for name, cost in self._costs().items()}
            records[-1] = replace(records[-1], cost=spent)
            yield verdicts

    def _costs(self) -> dict[str, Cost]:
        return {name: decoder.cost for name, decoder in self.decoders.items()}

    def _completion(
        self, request: Request, output: Output, records: list[RoundRecord], settings: GenerateSettings
    ) -> Completion:
        assert output.finish_reason is not None
        tokens = tuple(piece.token for piece in output.pieces)
        sampled = request.sampling.temperature > 0
        again = replace(request, sequence=next(self._sequences), conversation=None)  # it shares nothing with the first
        return Completion(
            tokens=tokens,
            text="".join(piece.text for piece in output.pieces),
            finish_reason=output.finish_reason,
            origins=tuple(piece.origin for piece in output.pieces),
            # the rejection rule keeps the distribution, which is no promise about tokens
            promise="algorithmic" if sampled and self.settings.rule == "rejection" else self.promise,
            draft=self.draft,
            stats=summarise(records, request.sequence, self.levels),
            arithmetic=self.target.arithmetic,
            threads=self.target.threads,
            seed=request.sampling.seed if sampled else None,
            stop_string=output.text.stopped_by,
            prompt_tokens=len(request.prompt),
            cached_tokens=output.cached_tokens,
            logprobs=None if settings.logprobs is None else tuple(output.logprobs),
            logits=joined(output.logits) if output.logits else None,
            logits_sha256=output.digest.hexdigest() if settings.hash_logits else None,
            audit=audit(self._verifier, again, tokens) if settings.audit else None,
            rounds=tuple(records) if settings.keep_rounds else None,
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
            expect_whole(prompt, "the prompt")
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


def _exhausted(run: Generation) -> list[Completion]:
    while True:
        try:
            next(run)
        except StopIteration as end:
            completions: list[Completion] = end.value
            return completions


def _token_ids(prompt: Any) -> tuple[int, ...] | None:
    """Token ids from a list, tensor or array; None for anything else, bytes, truth values and fractions among it."""
    if isinstance(prompt, bytes | bytearray):
        return None
    try:
        items = list(prompt)
        return None if any(isinstance(item, bool) for item in items) else tuple(map(operator.index, items))
    except TypeError:
        return None
