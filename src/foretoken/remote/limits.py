"""What a host takes on, and what a client may ask for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from foretoken.errors import InputError
from foretoken.protocol.types import NO_FEATURES, Needs, Request, SamplingParams
from foretoken.remote.features import names_of, needs_of
from foretoken.remote.wire import OpenBody
from foretoken.settings.generate import SETTING_OF, GenerateSettings
from foretoken.settings.values import whole

# asked for beside GenerateSettings
_OF_REQUEST = ("completion", "conversation", "prompt_of", "end_tokens", "features", "have")
_WRITTEN_OTHERWISE = ("logit_bias", "constraint")  # of SamplingParams: GenerateSettings have them in another form
_MOST = 64  # end tokens, and stop strings
_LONGEST_STOP, _LONGEST_NAME = 1000, 40  # characters
_LARGEST = (1 << 32) - 1


@dataclass(frozen=True)
class Limits:
    """What a host takes on.

    sessions: at once, of all clients. of_client: of one client. positions: of keys and values, of all sessions and of
    the conversations that are kept; None: no limit. scratch: of them, those that a session needs for drafts, beside its
    text. bytes_each: of a position. conversations: of which is kept what was read. rows: of drafts in one pass.
    prompt_rows: of prompts in one pass. together: of both; None: no limit. idle: seconds after which a session is given
    up of which nothing was heard. away: the same, if its client has no connection.
    """

    sessions: int = 64
    of_client: int = 16
    positions: int | None = None
    scratch: int = 0
    bytes_each: int = 1 << 12
    conversations: int = 32
    rows: int = 512
    prompt_rows: int = 256
    together: int | None = None
    idle: float = 300.0
    away: float = 60.0

    def beside(self, drafted: int) -> int:
        """How many rows of prompts a pass may have beside so many rows of drafts."""
        return self.prompt_rows if self.together is None else max(1, min(self.prompt_rows, self.together - drafted))


@dataclass(frozen=True)
class Wanted:
    """A request as a client asks for it, checked. conversation, prompt_of: the client's own numbers. needs: what its
    drafter sees of the model. have: so many positions, from the first on, whose features it has already."""

    body: OpenBody
    settings: GenerateSettings
    end_tokens: frozenset[int]
    completion: int
    conversation: int | None
    prompt_of: int | None
    needs: Needs = NO_FEATURES
    have: int = 0

    @classmethod
    def of(cls, body: OpenBody, vocab_size: int, context_length: int) -> Wanted:
        """Raises InputError for what makes no sense."""
        for name in body.asked:
            if len(name) > _LONGEST_NAME:
                raise InputError(f"a setting has a name of {len(name)} characters")
        settings = GenerateSettings.of(_settings(body.asked))
        if settings.keeps_logits:
            raise InputError("logits do not travel; leave logprobs, keep_logits and hash_logits out")
        if len(settings.stops) > _MOST or any(len(stop) > _LONGEST_STOP for stop in settings.stops):
            raise InputError(f"stop has more than {_MOST} texts, or one of more than {_LONGEST_STOP} characters")
        ends = body.asked.get("end_tokens") or []
        if not isinstance(ends, list) or len(ends) > _MOST:
            raise InputError(f"end_tokens are a {type(ends).__name__}, expected a list of at most {_MOST}")
        for token in (*body.prompt, *body.output, *ends, *(settings.logit_bias or {})):
            whole("a token", token, 0, vocab_size - 1)
        if not 0 < len(body.prompt) < context_length:
            raise InputError(f"the prompt has {len(body.prompt)} tokens; expected 1 to {context_length - 1}")
        numbers = {name: body.asked.get(name) for name in ("completion", "conversation", "prompt_of", "have")}
        for name, number in numbers.items():
            if number is not None:
                whole(name, number, 0, _LARGEST)
        return cls(
            body,
            settings,
            frozenset(ends),
            int(numbers["completion"] or 0),
            numbers["conversation"],
            numbers["prompt_of"],
            needs_of(body.asked.get("features") or []),
            int(numbers["have"] or 0),
        )

    def positions(self, context_length: int) -> int:
        """How many keys and values it may need."""
        return min(context_length, len(self.body.prompt) + self.settings.max_new_tokens)

    def request(self, sequence: int, conversation: int | None, prompt_of: int | None) -> Request:
        """As the verifier takes it. The numbers are the verifier's."""
        return Request(
            sequence,
            self.body.prompt,
            self.settings.max_new_tokens,
            end_tokens=self.end_tokens,
            sampling=SamplingParams.of(self.settings),
            completion=self.completion,
            conversation=conversation,
            stop=self.settings.stops,
            prompt_of=prompt_of,
            needs=self.needs,
            seen=self.have,
        )


def asked_of(request: Request, session_of: Callable[[int], int | None], have: int = 0) -> dict[str, Any]:
    """What a client asks for, as `OpenBody` has it. session_of: a session by its sequence. have: as `Wanted` has it."""
    features = {} if request.needs == NO_FEATURES else {"features": names_of(request.needs), "have": have}
    if request.private:  # how the text is to be written would tell something of it
        return {"max_new_tokens": 1, **features}
    sampling = request.sampling
    kind, text = sampling.constraint or ("regex", None)
    return {
        **{each.name: getattr(sampling, each.name) for each in fields(sampling) if each.name not in _WRITTEN_OTHERWISE},
        "logit_bias": dict(sampling.logit_bias) or None,
        SETTING_OF[kind]: text,
        "max_new_tokens": request.max_new_tokens,
        "stop": list(request.stop),
        "end_tokens": sorted(request.end_tokens),
        "completion": request.completion,
        "conversation": request.conversation,
        "prompt_of": None if request.prompt_of is None else session_of(request.prompt_of),
        **features,
    }


def _settings(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The settings among what was asked for. JSON has no numbers as keys, so the tokens of logit_bias are text."""
    found = {name: value for name, value in asked.items() if name not in _OF_REQUEST}
    bias = found.get("logit_bias")
    if isinstance(bias, dict):
        wrong = [token for token in bias if re.fullmatch("[0-9]{1,9}", token, re.ASCII) is None]
        if wrong:
            raise InputError(f"logit_bias names token {wrong[0]!r:.20}, expected a number")
        found["logit_bias"] = {int(token): each for token, each in bias.items()}
    return found
