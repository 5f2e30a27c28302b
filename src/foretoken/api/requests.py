"""Makes requests of prompts and settings, and checks each before anything is computed."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

from foretoken.common.progress import many
from foretoken.errors import PromptError, SettingError, quoted
from foretoken.protocol.roles import Verifier
from foretoken.protocol.types import Request, SamplingParams
from foretoken.remote.client import RemoteVerifier
from foretoken.settings.generate import GenerateSettings, expect_repeatable
from foretoken.text.messages import Prompt, are_messages, checked
from foretoken.text.tokenizer import Tokenizer, expect_whole, token_ids


class HasTokens(Protocol):
    """A model's tokenizer and end tokens. A caller may replace either, so both are read for each request."""

    tokenizer: Tokenizer | None
    end_tokens: frozenset[int]


class Requests:
    """Makes the requests for one model. rule: the rule that judges its drafts."""

    def __init__(self, model: HasTokens, verifier: Verifier, rule: str) -> None:
        self._model = model
        self._verifier = verifier
        self._rule = rule
        self._numbers = itertools.count()

    def new_sequence(self) -> int:
        """A number that no sequence of this model has had."""
        return next(self._numbers)

    def of(
        self,
        prompt: Prompt,
        settings: GenerateSettings,
        conversation: int | None = None,
        predicted: tuple[int, ...] = (),
    ) -> list[Request]:
        """One request for each completion. predicted: as `Request` has it. Raises PromptError or SettingError."""
        self.expect_usable(settings)
        tokens, sampling = self.tokens_of(prompt), self._sampling(settings)
        if settings.private_suffix is not None:
            if conversation is not None:
                raise SettingError("private_suffix is for one text, and a conversation has several; leave it out")
            return [self._private(tokens, sampling, settings)]
        first = self.new_sequence()
        return [
            Request(
                sequence=self.new_sequence() if completion else first,
                prompt=tokens,
                max_new_tokens=settings.max_new_tokens,
                end_tokens=self._ends(settings),
                keep_logits=settings.keeps_logits,
                sampling=sampling,
                completion=completion,
                conversation=conversation,
                stop=settings.stops,
                prompt_of=first if completion else None,
                predicted=predicted,
                prompt_logits=settings.prompt_logprobs is not None and not completion,
            )
            for completion in range(settings.n)
        ]

    def _ends(self, settings: GenerateSettings) -> frozenset[int]:
        return (frozenset() if settings.ignore_eos else self._model.end_tokens).union(settings.stop_tokens)

    def _private(self, tokens: tuple[int, ...], sampling: SamplingParams, settings: GenerateSettings) -> Request:
        """The request for a text that goes on behind what the host sees."""
        tokenizer, suffix = self._model.tokenizer, settings.private_suffix or ""
        if tokenizer is None:
            raise PromptError("the checkpoint has no tokenizer, so it cannot read private_suffix; leave it out")
        expect_whole(suffix, "private_suffix")
        private = tuple(tokenizer.encode_part(suffix))
        context = self._verifier.context_length
        if not private or len(tokens) + len(private) >= context:
            raise PromptError(
                f"prompt and private_suffix have {len(tokens) + len(private)} tokens, {len(private)} of them private; "
                f"expected 1 or more, and in all fewer than the model's context of {context}"
            )
        return Request(
            self.new_sequence(),
            (*tokens, *private[:-1]),
            settings.max_new_tokens + 2,  # the last private token, and the bonus of the last draft, which is left out
            end_tokens=self._ends(settings),
            sampling=sampling,
            stop=settings.stops,
            private=private,
        )

    def expect_usable(self, settings: GenerateSettings) -> None:
        """Raise SettingError for settings that this model cannot follow, whatever the prompt is."""
        if settings.audit:
            expect_repeatable(self._rule, settings, "an audit")
        far = self._verifier if isinstance(self._verifier, RemoteVerifier) else None
        if settings.private_suffix is not None and (far is None or far.without_host is None):
            raise SettingError(
                "private_suffix is for a model on a host (--remote), with a draft that is a model: a small one, or a "
                "trained drafter"
            )
        if far is not None and (settings.audit or settings.keeps_logits):
            raise SettingError(
                "the model is on a host, and logits do not travel; leave audit, logprobs, prompt_logprobs, keep_logits "
                "and hash_logits out"
            )
        if settings.stops and self._model.tokenizer is None:
            raise SettingError("the checkpoint has no tokenizer, so there is no text that could stop; leave stop out")

    def _sampling(self, settings: GenerateSettings) -> SamplingParams:
        size = self._verifier.vocab_size
        for name, tokens in (("logit_bias", settings.logit_bias), ("stop_tokens", settings.stop_tokens)):
            last = max(tokens or (), default=0)
            if last >= size:
                raise SettingError(f"{name} names token {last}; the model has tokens 0 to {size - 1}")
        seed = new_seed() if settings.seed is None and settings.temperature > 0 else settings.seed
        return SamplingParams.of(replace(settings, seed=seed))

    def tokens_of(self, prompt: Prompt) -> tuple[int, ...]:
        """The tokens of a prompt. The chat template writes messages, up to where the reply begins.

        Raises PromptError if there are no tokens, if the model does not know one, or if the context has no room for one
        more.
        """
        tokenizer = self._model.tokenizer
        if isinstance(prompt, str):
            if tokenizer is None:
                raise PromptError("the checkpoint has no tokenizer, so it cannot read text; give token ids")
            expect_whole(prompt, "the prompt")
            tokens = tuple(tokenizer.encode(prompt)) if prompt else ()  # some tokenizers give a token for empty text
        elif are_messages(prompt):
            messages = checked(cast("Sequence[Mapping[str, Any]]", prompt))
            if tokenizer is None or not tokenizer.has_chat_template:
                raise PromptError(
                    "the model has no chat template, so it cannot read messages (--chat); give it text, or take a "
                    "model that was tuned for conversations"
                )
            tokens = tuple(tokenizer.encode_chat(messages))
        else:
            ids = token_ids(prompt)
            if ids is None:
                if isinstance(prompt, list | tuple) and all(isinstance(each, str) for each in prompt):
                    raise PromptError(
                        f"the prompt is a list of {many(len(prompt), 'text')}, expected one text; for several, use "
                        "`generate_many`"
                    )
                raise PromptError(
                    f"the prompt is {prompt!r:.60}, expected text, token ids, or messages with a role and a content"
                )
            tokens = ids
        if not tokens:
            raise PromptError("the prompt is empty; expected at least one token")
        size, context = self._verifier.vocab_size, self._verifier.context_length
        for token in tokens:
            if not 0 <= token < size:
                raise PromptError(f"the prompt holds token {quoted(token)}; the model has tokens 0 to {size - 1}")
        if len(tokens) >= context:
            raise PromptError(
                f"the prompt has {len(tokens)} tokens, and the model's context holds {context} with what follows; "
                "shorten the prompt"
            )
        return tokens


def new_seed() -> int:
    """A seed for who gives none: a number that JSON holds everywhere."""
    return secrets.randbits(53)


def several(prompts: Iterable[Prompt], settings: GenerateSettings, as_completed: object, at_once: object) -> list[Any]:
    """The prompts of `generate_many` as a list. Raises SettingError for a single prompt, or for other wrong
    arguments."""
    if settings.n != 1:
        raise SettingError(f"n is {settings.n}, and here each prompt has one completion; repeat the prompt instead")
    each: list[Any] = list(prompts) if isinstance(prompts, Iterable) and not isinstance(prompts, str | bytes) else [0]
    if each and (all(isinstance(item, int) for item in each) or are_messages(each)):  # the parts of a single prompt
        raise SettingError(f"prompts is {quoted(prompts)}, expected several prompts; give one prompt to `generate`")
    if not isinstance(as_completed, bool):
        raise SettingError(f"as_completed is {quoted(as_completed)}, expected True or False")
    if isinstance(at_once, bool) or not isinstance(at_once, int) or at_once < 1:
        raise SettingError(f"at_once is {quoted(at_once)}, expected a whole number, 1 or more")
    return each
