"""Makes prompts and settings of a request's fields. Whatever is wrong with them is told before anything is computed."""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretoken.api.model import Model
from foretoken.api.requests import new_seed
from foretoken.errors import PromptError, SettingError, cut, quoted
from foretoken.protocol.types import Request
from foretoken.serve.calls import Calls
from foretoken.serve.defaults import OPENAI, recommended
from foretoken.serve.errors import ServeError, refused
from foretoken.serve.fields import ChatBody, CompletionBody, Prediction, ResponseFormat, ResponsesBody, Sampled
from foretoken.serve.fields import StructuredOutputs as Structured
from foretoken.serve.limits import Limits
from foretoken.settings.generate import GenerateSettings
from foretoken.text.messages import from_openai
from foretoken.text.tokenizer import Tokenizer, expect_whole

_MOST_PROMPTS = 256  # of one request
_MOST_CHARACTERS = 16  # of a token, in usual texts: so many of each are read before the others are
_COMPLETION = 16  # OpenAI's default of max_tokens
_ANY_OBJECT = '{"type": "object"}'
# what a field and a setting call alike
SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True)
class Wanted:
    """What a request wants, checked. prompts: the requests of each prompt, one for each completion. texts: the prompts
    as text. settings: of all of them. calls: the functions that the model may call."""

    prompts: tuple[tuple[Request, ...], ...]
    texts: tuple[str, ...]
    settings: GenerateSettings
    calls: Calls | None = None


class Asking:
    """Makes requests for one model. It reads texts with a tokenizer of its own, for one thread at a time."""

    def __init__(self, model: Model, limits: Limits, defaults: Mapping[str, Any] | None = None) -> None:
        """defaults: of sampling; None: those of the model's files."""
        self._model, self._limits = model, limits
        folder = Path(model.folder) if model.is_here else None
        usual = dict(OPENAI) if folder is None else recommended(folder)
        self.defaults = {**usual, **(defaults or {})}
        self._lock = threading.Lock()
        self.tokenizer: Tokenizer | None = copy.deepcopy(model.tokenizer)

    # -- the three kinds --------------------------------------------------------------------------------------------

    def completion(self, body: CompletionBody) -> Wanted:
        """A request for completions, of one prompt or several."""
        given = body.prompt
        several = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
        prompts: Sequence[Any] = given if several else [given]
        if len(prompts) > _MOST_PROMPTS:
            raise refused("prompt", f"prompt holds {len(prompts)} prompts, expected at most {_MOST_PROMPTS}")
        tokens = [
            self.tokens(prompt, body, f"prompt {at}" if several else "the prompt") for at, prompt in enumerate(prompts)
        ]
        longest = body.max_tokens
        settings = self._settings(
            body,
            _COMPLETION if longest is None else max(1, self._context if longest == -1 else longest),
            logprobs=self._logprobs(body, body.logprobs),
            prompt_logprobs=max(
                (each for each in (body.prompt_logprobs, body.logprobs if body.echo else None) if each is not None),
                default=None,
            ),
        )
        if longest is not None and longest < 1 and longest != -1 and not (longest == 0 and body.echo):
            raise refused(
                "max_tokens", f"max_tokens is {longest}, expected 1 or more, or -1: as many as there is room for"
            )
        texts = [""] * len(prompts)
        if body.echo:
            texts = [
                prompt if body.whole_prompt and isinstance(prompt, str) else self.text(its)
                for prompt, its in zip(prompts, tokens, strict=True)
            ]
        return self._wanted(tokens, texts, settings, body)

    def chat(self, body: ChatBody) -> Wanted:
        """A request for an answer to messages."""
        limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        calls = Calls.of(body.tools, body.tool_choice, body.parallel_tool_calls is not False, self.tokenizer)
        begins = not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt
        tokens = self.tokens_of_messages(
            body.messages,
            tools=None if calls is None else calls.told,
            add_generation_prompt=begins,
            continue_final_message=bool(body.continue_final_message),
            template_kwargs=body.chat_template_kwargs,
        )
        tokens = _truncated(tokens, body)
        if calls is not None and (stop := calls.mark_in(body.stop)) is not None:
            raise refused("stop", f"stop is {quoted(stop)}, which is a mark of function calls; leave it out")
        if body.top_logprobs is not None and not body.logprobs:
            raise refused("top_logprobs", "top_logprobs needs logprobs; give true for it")
        settings = self._settings(
            body,
            self._limits.max_tokens if limit is None else limit,
            logprobs=self._logprobs(body, (body.top_logprobs or 0) if body.logprobs else None),
            constraint=None if calls is None or calls.grammar is None else {"grammar": calls.grammar},
        )
        return self._wanted([tokens], [""], settings, body, calls)

    def response(self, body: ResponsesBody) -> Wanted:
        """A request for a response."""
        if (body.model_extra or {}).get("tools"):
            raise refused("tools", "tools are served by /v1/chat/completions; leave them out here")
        messages = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else _items(body.input)
        if body.instructions is not None:
            messages = [{"role": "system", "content": body.instructions}, *messages]
        tokens = _truncated(self.tokens_of_messages(messages), body)
        settings = self._settings(
            body,
            self._limits.max_tokens if body.max_output_tokens is None else body.max_output_tokens,
            constraint=_form_of_text(body.text),
        )
        if settings.n != 1:
            raise refused("n", "a response has one output; leave n out")
        return self._wanted([tokens], [""], settings, body)

    # -- tokens -----------------------------------------------------------------------------------------------------

    def tokens(self, prompt: str | list[int], body: Sampled, what: str) -> tuple[int, ...]:
        """The tokens of a prompt."""
        if isinstance(prompt, list):
            return _truncated(tuple(prompt), body)
        expect_whole(prompt, what)
        if body.whole_prompt:
            self._expect_room(prompt, what)
        return _truncated(self.encode(prompt, special=body.add_special_tokens is not False), body)

    def _expect_room(self, text: str, what: str) -> None:
        """Refuse a text that is far too long by its beginning. To read all of it would take a minute, and gigabytes."""
        size, most = _MOST_CHARACTERS * self._context, 2 * self._context
        while size < len(text):
            if len(self.encode(text[:size], special=False)) > most:
                raise PromptError(
                    f"{what} has more than {most} tokens, and a text here has at most {self._context} with what "
                    "follows; shorten the prompt"
                )
            size *= 4

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """The tokens of a text. special: with those that the model expects at its beginning."""
        expect_whole(text, "the text")
        with self._lock:
            tokenizer = self._expect_tokenizer()
            return tuple(tokenizer.encode(text) if special else tokenizer.encode_part(text)) if text else ()

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        size = self._model.target.config.vocab_size
        wrong = [token for token in tokens if not 0 <= token < size]
        if wrong:
            raise PromptError(f"token {wrong[0]} is none of the model's, which has tokens 0 to {size - 1}")
        with self._lock:
            return "" if self.tokenizer is None else self.tokenizer.decode(tokens)

    def tokens_of_messages(self, messages: Sequence[Mapping[str, Any]], **how: Any) -> tuple[int, ...]:
        """The tokens of a conversation, by the chat template. how: as `Tokenizer.encode_chat` takes it."""
        if self.tokenizer is None or not self.tokenizer.has_chat_template:
            raise ServeError(
                400,
                f"{self._model.name} has no chat template, so it cannot read messages; send a prompt to "
                "/v1/completions, or serve a model that was tuned for conversations",
                param="messages",
                code="no_chat_template",
            )
        found = from_openai(messages)
        with self._lock:
            return tuple(self.tokenizer.encode_chat(found, **how))

    def _expect_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise PromptError("the model has no tokenizer, so it cannot read text; send token ids")
        return self.tokenizer

    @property
    def _context(self) -> int:
        return self._limits.context

    # -- settings ---------------------------------------------------------------------------------------------------

    def _settings(
        self, body: Sampled, most: int, *, constraint: Mapping[str, str] | None = None, **more: Any
    ) -> GenerateSettings:
        given = {name: getattr(body, name) for name in SETTINGS if getattr(body, name) is not None}
        chosen = {**self.defaults, **given}
        forms = [
            form for form in (constraint, _form(body.response_format), _structure(body.structured_outputs)) if form
        ]
        if len(forms) > 1:
            raise refused("response_format", "the output was given several forms; give one of them")
        temperature = chosen["temperature"]
        if 0 < temperature < 0.001:  # greedy is what is meant
            chosen["temperature"] = 0.0
        try:
            return GenerateSettings.of(
                {
                    **chosen,
                    **(forms[0] if forms else {}),
                    **more,
                    "max_new_tokens": most,
                    "seed": _seed(body.seed, chosen["temperature"]),
                    "stop": () if body.stop is None else body.stop or (),
                    "stop_tokens": tuple(body.stop_token_ids or ()),
                    "keep_stop": bool(body.include_stop_str_in_output),
                    "ignore_eos": bool(body.ignore_eos),
                    "n": 1 if body.n is None else body.n,
                    "logit_bias": _bias(body.logit_bias),
                }
            )
        except SettingError as error:
            raise _named(error) from None

    def _logprobs(self, body: Sampled, asked: int | None) -> int | None:
        """A trace shows how probable each token was, if the logits are here."""
        traced = body.foretoken is not None and body.foretoken.trace and self._model.is_here
        return 0 if asked is None and traced else asked

    def _wanted(
        self,
        prompts: Sequence[tuple[int, ...]],
        texts: Sequence[str],
        settings: GenerateSettings,
        body: Sampled,
        calls: Calls | None = None,
    ) -> Wanted:
        predicted = self._predicted(body.prediction)
        first = self._first_level(body.draft)
        if (predicted or first) and self._model.settings.rule == "rejection" and settings.temperature > 0:
            raise refused(
                "prediction" if predicted else "draft",
                "under this server's rule 'rejection' a text depends on its drafts; leave prediction and draft out",
            )
        more: dict[str, Any] = {"first_level": first, "predicted": predicted, "fresh": body.cache_prompt is False}
        found = []
        for tokens in prompts:
            # a prompt without room is refused later, with its own message
            most = max(1, min(settings.max_new_tokens, self._context - len(tokens)))
            requests = self._model.requests(tokens, settings)
            found.append(tuple(replace(request, max_new_tokens=most, **more) for request in requests))
        self._model.expect_possible(found[0][0])
        return Wanted(tuple(found), tuple(texts), settings, calls)

    def _first_level(self, draft: str | None) -> int:
        """The number of the level at which drafts begin; beyond the last one if nothing is drafted."""
        levels, own = self._model.levels, self._model.draft
        if draft is None or draft == own or (levels and draft == levels[0]):
            return 0
        if draft == "none":
            return max(1, len(levels))
        if draft not in levels:
            known = ", ".join(("none", *levels))
            raise refused("draft", f"draft is {quoted(draft)}, expected none or a level of this server's ({known})")
        return levels.index(draft)

    def _predicted(self, prediction: Prediction | None) -> tuple[int, ...]:
        if prediction is None:
            return ()
        content = prediction.content
        if isinstance(content, list):
            content = "".join(_text_of(part, "prediction") for part in content)
        expect_whole(content, "the prediction")
        # an output cannot be longer than the context, nor can what it resembles help beyond
        return self.encode(content[: _MOST_CHARACTERS * self._context], special=False)[: self._context]


def _seed(seed: int | None, temperature: float) -> int | None:
    """The seed of a request, of all its prompts. The answer tells the one that was drawn."""
    if seed is None or seed == -1:
        return new_seed() if temperature > 0 else None
    return seed % 2**64


def _truncated(tokens: tuple[int, ...], body: Sampled) -> tuple[int, ...]:
    """The last tokens of a prompt, if the request wants no more of it."""
    most = body.truncate_prompt_tokens
    if most is None or body.whole_prompt:
        return tokens
    if most < 1:
        raise refused("truncate_prompt_tokens", f"truncate_prompt_tokens is {most}, expected 1 or more")
    return tokens[-most:]


def _form(given: ResponseFormat | None) -> dict[str, Any] | None:
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return {"json_schema": _ANY_OBJECT}
    if given.json_schema is None or given.json_schema.schema_ is None:
        raise refused("response_format", "response_format is json_schema without a schema; give json_schema.schema")
    return {"json_schema": given.json_schema.schema_}


def _structure(given: Structured | None) -> dict[str, Any] | None:
    """A constraint in one of vLLM's forms."""
    if given is None:
        return None
    forms: list[dict[str, Any]] = []
    if given.regex is not None:
        forms.append({"regex": given.regex})
    if given.choice is not None:
        if not given.choice or not all(given.choice):
            raise refused("structured_outputs", "structured_outputs.choice is empty; expected texts to choose from")
        forms.append({"regex": "|".join(map(_literally, given.choice))})
    if given.json_ is not None:
        forms.append({"json_schema": given.json_})
    if given.json_object:
        forms.append({"json_schema": _ANY_OBJECT})
    if given.grammar is not None:
        forms.append({"grammar": given.grammar})
    if len(forms) != 1:
        raise refused(
            "structured_outputs",
            f"structured_outputs has {len(forms)} forms, expected one of regex, choice, json, json_object, grammar",
        )
    return forms[0]


def _literally(text: str) -> str:
    """A regular expression that matches a text and nothing else."""
    return re.sub(r"([\\.+*?()|\[\]{}^$#&~-])", r"\\\1", text)


def _form_of_text(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The constraint of a response's `text.format`."""
    form = (given or {}).get("format") or {}
    kind = form.get("type", "text") if isinstance(form, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_schema": _ANY_OBJECT}
    if kind == "json_schema" and isinstance(form.get("schema"), Mapping):
        return {"json_schema": dict(form["schema"])}
    raise refused("text", f"text.format is {quoted(form)}, expected text, json_object, or json_schema with a schema")


def _items(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a response's input."""
    messages = []
    for number, item in enumerate(items):
        kind = item.get("type", "message")
        if kind != "message":
            raise refused("input", f"item {number} of input is of type {quoted(kind)}, expected a message")
        content = item.get("content")
        if isinstance(content, list):
            content = "".join(_text_of(part, "input") for part in content)
        messages.append({"role": item.get("role"), "content": content})
    return messages


def _text_of(part: Any, param: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else part
    text = part.get("text") if isinstance(part, Mapping) and kind in ("text", "input_text", "output_text") else None
    if not isinstance(text, str):
        raise refused(param, f"a part of {param} is of type {quoted(kind)}; this model reads text only")
    return text


def _bias(given: Mapping[str, float] | None) -> dict[int, float] | None:
    wrong = [token for token in given or () if re.fullmatch("[0-9]{1,9}", token, re.ASCII) is None]
    if wrong:
        raise refused("logit_bias", f"logit_bias names token {cut(wrong[0], 20)!r}, expected a number")
    return None if not given else {int(token): bias for token, bias in given.items()}


def _named(error: SettingError) -> ServeError:
    """The error for a setting, with the field's name: it is the first word of the message."""
    name = str(error).partition(" ")[0]
    public = {
        "max_new_tokens": "max_tokens",
        "keep_stop": "include_stop_str_in_output",
        "stop_tokens": "stop_token_ids",
    }
    message = str(error)
    if name in public:
        message = public[name] + message.removeprefix(name)
    known = name in GenerateSettings.__dataclass_fields__
    return refused(public.get(name, name), message) if known else ServeError(400, message)
