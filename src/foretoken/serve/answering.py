"""How a request is answered: what belongs to its address, and how its answer begins."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from foretoken.api.model import Model
from foretoken.errors import quoted
from foretoken.serve.asking import Asking, Wanted
from foretoken.serve.errors import ServeError, invalid
from foretoken.serve.fields import ChatBody, CompletionBody, ResponsesBody, Sampled
from foretoken.serve.forms import ChatForm, CompletionForm, Context, Form
from foretoken.serve.responses import ResponseForm
from foretoken.serve.running import Running
from foretoken.serve.worker import Worker


@dataclass(frozen=True)
class Kind:
    """What belongs to an address. body: the fields of its requests. read: makes prompts and settings of them. form: of
    its answers. prefix: of its answers' names."""

    body: type[Sampled]
    read: Callable[[Asking, Any], Wanted]
    form: Callable[[Context, Wanted, Any], Form]
    prefix: str

    def fields(self, given: Mapping[str, Any]) -> Sampled:
        """The fields of a body. Raises ServeError for those that make no sense."""
        try:
            return self.body.model_validate(dict(given))
        except ValidationError as error:
            first = error.errors()[0]
            raise invalid(first, [str(part) for part in first["loc"]]) from None


KINDS: Mapping[str, Kind] = {
    "/v1/completions": Kind(CompletionBody, Asking.completion, CompletionForm, "cmpl"),
    "/v1/chat/completions": Kind(ChatBody, Asking.chat, ChatForm, "chatcmpl"),
    "/v1/responses": Kind(ResponsesBody, Asking.response, ResponseForm, "resp"),
}


@dataclass(frozen=True)
class Question:
    """A request that was read. name: of its answer. form: in which it is answered."""

    name: str
    wanted: Wanted
    form: Form


@dataclass(frozen=True)
class Answering:
    """Answers requests. names: of the model, the first of which answers say."""

    worker: Worker
    asking: Asking
    names: tuple[str, ...]
    _texts: dict[int, str] = field(default_factory=dict)  # of single tokens: answers with log probabilities hold many

    def read(self, kind: Kind, body: Sampled) -> Question:
        """Read a request. Raises ServeError, SettingError or PromptError for one that makes no sense."""
        self.expect_known(body.model)
        wanted = kind.read(self.asking, body)
        name = f"{kind.prefix}-{secrets.token_hex(12)}" if body.request_id is None else body.request_id
        context = Context(name, self.worker.model, self.names[0], self.describe)
        return Question(name, wanted, kind.form(context, wanted, body))

    def begin(self, question: Question, *, rounds: bool) -> Running:
        """Begin to answer, in a loop of asyncio. rounds: whether events tell of each round. Raises what
        `Worker.submit` raises."""
        return Running(self.worker, question.wanted, question.name, rounds=rounds)

    def expect_known(self, name: str | None) -> None:
        """Raise ServeError for a model that is not served here."""
        if name is not None and name not in self.names:
            raise ServeError(
                404,
                f"the model {quoted(name)} is not served here; this server has {', '.join(self.names)}",
                param="model",
                code="model_not_found",
            )

    def describe(self, token: int) -> str:
        """The text of one token."""
        if token not in self._texts:
            tokenizer = self.worker.model.tokenizer  # which no thread encodes with: that and decoding must not meet
            self._texts[token] = "" if tokenizer is None else tokenizer.decode([token])
        return self._texts[token]


def served_name(model: Model) -> str:
    """A model's name for its clients."""
    return name_for_clients(model.name)


def name_for_clients(model: str) -> str:
    """The same, of a model as it is named to be loaded: a hub id, or the last part of a folder's name."""
    return Path(model).name if Path(model).is_dir() else model
