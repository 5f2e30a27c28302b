"""The forms of answers: `/v1/completions` and `/v1/chat/completions`, whole and as streams.

A form is made for one request. It is told what happens, and says which events to send; or it writes the whole answer at
the end. Source: OpenAI's API reference; what clients check is noted where it is done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from foretoken.api.model import Model
from foretoken.results.completion import Completion, TokenLogprobs
from foretoken.serve import answers
from foretoken.serve.answers import Describe
from foretoken.serve.asked import Done, Gained
from foretoken.serve.asking import Wanted
from foretoken.serve.calls import ToolParser, finish_reason
from foretoken.serve.fields import ChatBody, CompletionBody, Sampled

Json = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """What every answer says. name: the request's id. model: which answers. called: the model's name here. describe:
    gives the text of one token."""

    name: str
    model: Model
    called: str
    describe: Describe
    created: int = field(default_factory=lambda: int(time.time()))


class Form(Protocol):
    """How a request is answered."""

    def begin(self) -> list[Json]:
        """The events before anything has happened."""
        ...

    def gained(self, prompt: int, event: Gained) -> list[Json]:
        """The events of a round of one text."""
        ...

    def ended(self, prompt: int, event: Done) -> list[Json]:
        """The events at the end of one text."""
        ...

    def end(self, prompts: Sequence[Sequence[Done]]) -> list[Json]:
        """The events at the end of all texts."""
        ...

    def whole(self, prompts: Sequence[Sequence[Done]]) -> Json:
        """The whole answer."""
        ...


class _Chunks:
    """What the two forms have in common. An event of a round is a chunk with one choice."""

    kind = ""
    kind_of_chunk = ""

    def __init__(self, context: Context, wanted: Wanted, body: Sampled) -> None:
        self._context, self._wanted, self._body = context, wanted, body
        self._written: dict[int, int] = {}  # tokens so far, by choice
        self._offsets: dict[int, int] = {}  # characters of these tokens, by choice
        options = body.stream_options
        self._usage = options is not None and options.include_usage
        self._always = options is not None and options.continuous_usage_stats
        self._trace = body.foretoken is not None and body.foretoken.trace
        self._ids = bool(body.return_token_ids)
        self._told: set[int] = set()  # prompts whose tokens were sent

    def begin(self) -> list[Json]:
        return []

    def end(self, prompts: Sequence[Sequence[Done]]) -> list[Json]:
        """With `include_usage`, the last chunk has no choice, but the counts."""
        if not self._usage:
            return []
        more = answers.own(self._context.model, self._wanted, prompts)
        return [{**self._chunk([]), "usage": answers.usage(prompts), **more}]

    def _number(self, prompt: int, index: int) -> int:
        return prompt * self._wanted.settings.n + index

    def _chunk(self, choices: list[Json]) -> Json:
        chunk: Json = {**self._head(self.kind_of_chunk), "choices": choices}
        if self._ids and choices and (prompt := choices[0]["index"] // self._wanted.settings.n) not in self._told:
            chunk["prompt_token_ids"] = list(self._wanted.prompts[prompt][0].prompt)
            self._told.add(prompt)
        if self._usage or self._always:
            chunk["usage"] = None
            if self._always and choices:
                read = sum(len(requests[0].prompt) for requests in self._wanted.prompts)
                written = sum(self._written.values())
                counts = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
                chunk["usage"] = counts
        return chunk

    def _head(self, kind: str) -> Json:
        context = self._context
        return {
            "id": context.name,
            "object": kind,
            "created": context.created,
            "model": context.called,
            "system_fingerprint": answers.fingerprint(context.model),
        }

    def _seen(self, number: int, event: Gained) -> Json:
        """What a round's choice says beside its text."""
        more: Json = {}
        before = self._written.get(number, 0)
        self._written[number] = before + len(event.pieces)
        if self._ids:
            more["token_ids"] = [piece.token for piece in event.pieces]
        if self._trace:
            more["foretoken"] = answers.trace(event, before, self._context.describe)
        return more

    def _nothing_new(self, event: Gained) -> bool:
        """Whether a round is not worth an event: it has only read a part of the prompt, and nobody traces."""
        return not event.pieces and not self._trace


class CompletionForm(_Chunks):
    """`/v1/completions`."""

    kind = kind_of_chunk = "text_completion"
    _body: CompletionBody

    def begin(self) -> list[Json]:
        """With `echo`, the prompts come first."""
        if not self._body.echo:
            return []
        n, texts = self._wanted.settings.n, self._wanted.texts
        return [self._chunk([self._choice(number, texts[number // n], None)]) for number in range(n * len(texts))]

    def gained(self, prompt: int, event: Gained) -> list[Json]:
        """A chunk for each round."""
        if self._nothing_new(event):
            return []
        number = self._number(prompt, event.index)
        text = "".join(piece.text for piece in event.pieces)
        more = self._seen(number, event)
        logprobs = None
        if self._body.logprobs is not None:
            logprobs = self._logprobs(event.logprobs, self._offsets.get(number, 0))
            self._offsets[number] = self._offsets.get(number, 0) + sum(map(len, logprobs["tokens"]))
        return [self._chunk([{**self._choice(number, text, logprobs), **more}])]

    def ended(self, prompt: int, event: Done) -> list[Json]:
        """The chunk with the reason why a text has ended."""
        done = event.completion
        choice = self._choice(self._number(prompt, event.index), "", None)
        return [self._chunk([{**choice, **answers.finished(done, self._wanted.settings.stop_tokens)}])]

    def whole(self, prompts: Sequence[Sequence[Done]]) -> Json:
        """The whole answer."""
        choices = [
            self._whole(prompt, done[0].completion, each) for prompt, done in enumerate(prompts) for each in done
        ]
        own = answers.own(self._context.model, self._wanted, prompts)
        counts = answers.usage(prompts)
        if self._body.max_tokens == 0:  # of nothing but prompts: the token that came along is not asked for
            counts |= {"completion_tokens": 0, "total_tokens": counts["prompt_tokens"]}
        return {**self._head(self.kind), "choices": choices, "usage": counts, **own}

    def _whole(self, prompt: int, first: Completion, each: Done) -> Json:
        done, body = each.completion, self._body
        echoed = self._wanted.texts[prompt] if body.echo else ""
        text = echoed if body.max_tokens == 0 else echoed + done.text
        logprobs: Json | None = None
        if body.logprobs is not None:
            found = done.logprobs or ()
            logprobs = self._logprobs(() if body.max_tokens == 0 else found, len(echoed))
            if body.echo:
                logprobs = self._with_prompt(prompt, first, logprobs)
        choice = self._choice(self._number(prompt, each.index), text, logprobs)
        choice |= answers.finished(done, self._wanted.settings.stop_tokens)
        if body.max_tokens == 0:
            choice["finish_reason"] = "length"
        if body.prompt_logprobs is not None and first.prompt_logprobs is not None:
            choice["prompt_logprobs"] = [None, *map(self._by_id, first.prompt_logprobs)]
        if self._ids:
            choice["prompt_token_ids"] = list(self._wanted.prompts[prompt][0].prompt)
            choice["token_ids"] = [] if body.max_tokens == 0 else list(done.tokens)
        return choice

    def _by_id(self, each: TokenLogprobs) -> Json:
        """As vLLM has it: by token, with its rank where it is known."""
        ranks = {token: at for at, (token, _) in enumerate(each.top, 1)}
        found = dict((*each.top, answers.own_of(each)))
        return {
            str(token): {"logprob": value, "rank": ranks.get(token), "decoded_token": self._context.describe(token)}
            for token, value in found.items()
        }

    def _with_prompt(self, prompt: int, first: Completion, after: Json) -> Json:
        """The log probabilities of the prompt's tokens, before those of the output."""
        tokens = self._wanted.prompts[prompt][0].prompt
        texts = [self._name_of(token) for token in tokens]
        before = answers.legacy_logprobs([None, *(first.prompt_logprobs or ())], texts, 0, self._name_of)
        return {name: [*before[name], *after[name]] for name in before}

    def _logprobs(self, found: Sequence[TokenLogprobs], offset: int) -> Json:
        return answers.legacy_logprobs(found, [self._name_of(each.token) for each in found], offset, self._name_of)

    def _name_of(self, token: int) -> str:
        return f"token_id:{token}" if self._body.return_tokens_as_token_ids else self._context.describe(token)

    def _choice(self, number: int, text: str, logprobs: Json | None) -> Json:
        # finish_reason is there from the beginning: clients fail without the key
        return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": None}


class ChatForm(_Chunks):
    """`/v1/chat/completions`."""

    kind, kind_of_chunk = "chat.completion", "chat.completion.chunk"
    _body: ChatBody

    def __init__(self, context: Context, wanted: Wanted, body: ChatBody) -> None:
        super().__init__(context, wanted, body)
        n, calls = wanted.settings.n, wanted.calls
        self._parsers: list[ToolParser] = [] if calls is None else [calls.parser() for _ in range(n)]

    def begin(self) -> list[Json]:
        """The role of each answer comes first, and alone."""
        first = {"role": "assistant", "content": ""}
        return [self._chunk([self._choice(index, first)]) for index in range(self._wanted.settings.n)]

    def gained(self, prompt: int, event: Gained) -> list[Json]:
        """A chunk for each round; with tools, one for each part of a call that is complete."""
        if self._nothing_new(event):
            return []
        text, more = "".join(piece.text for piece in event.pieces), self._seen(event.index, event)
        if self._body.logprobs:
            more["logprobs"] = answers.chat_logprobs(event.logprobs, self._context.describe)
        deltas: list[Json] = self._parsers[event.index].feed(text) if self._parsers else [{"content": text}]
        if not deltas and more:
            deltas = [{}]
        return [
            self._chunk([{**self._choice(event.index, delta), **({} if at else more)}])
            for at, delta in enumerate(deltas)
        ]

    def ended(self, prompt: int, event: Done) -> list[Json]:
        """The chunk with the reason why an answer has ended."""
        deltas = self._parsers[event.index].finish() if self._parsers else []
        chunks = [self._chunk([self._choice(event.index, delta)]) for delta in deltas]
        reason = answers.finished(event.completion, self._wanted.settings.stop_tokens)
        if self._parsers:
            reason["finish_reason"] = finish_reason(reason["finish_reason"], self._parsers[event.index].calls)
        return [*chunks, self._chunk([{**self._choice(event.index, {}), **reason}])]

    def whole(self, prompts: Sequence[Sequence[Done]]) -> Json:
        """The whole answer."""
        choices = [self._whole(each) for each in prompts[0]]
        own = answers.own(self._context.model, self._wanted, prompts)
        return {**self._head(self.kind), "choices": choices, "usage": answers.usage(prompts), **own}

    def _whole(self, each: Done) -> Json:
        done, calls = each.completion, self._wanted.calls
        message: Json = {"role": "assistant", "content": done.text, "refusal": None}
        reason = answers.finished(done, self._wanted.settings.stop_tokens)
        if calls is not None:
            message |= calls.message(done.text)
            reason["finish_reason"] = finish_reason(reason["finish_reason"], len(message.get("tool_calls", ())))
        choice: Json = {"index": each.index, "message": message, "logprobs": None, **reason}
        if self._body.logprobs:
            choice["logprobs"] = answers.chat_logprobs(done.logprobs or (), self._context.describe)
        if self._ids:
            choice["token_ids"] = list(done.tokens)
            choice["prompt_token_ids"] = list(self._wanted.prompts[0][0].prompt)
        return choice

    def _choice(self, number: int, delta: Json) -> Json:
        return {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}
