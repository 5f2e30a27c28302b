"""Whether an answer is that of plain decoding: its text, its tokens, its log probabilities and its end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from foretoken.results.completion import Completion
from tests.prove.serving.asks import Ask


class Difference(AssertionError):  # noqa: N818 (it is what is looked for, not a failure of the search)
    """An answer is another one than plain decoding gives."""


@dataclass
class Found:
    """A text, as a client has it."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None
    stopped_by: Any = None

    def add(self, choice: dict[str, Any]) -> None:
        """A choice, of a whole answer or of an event."""
        message = choice.get("message") or choice.get("delta") or {}
        self.text += choice.get("text") or message.get("content") or ""
        self.tokens += choice.get("token_ids") or []
        its = choice.get("logprobs") or {}
        if its.get("content") is not None:
            self.logprobs += [each["logprob"] for each in its["content"]]
        elif its:
            self.logprobs += its["token_logprobs"]
        if choice["finish_reason"] is not None:
            if self.finish is not None:
                raise Difference("a text has ended twice")
            self.finish, self.stopped_by = choice["finish_reason"], choice.get("stop_reason")


def whole(ask: Ask, content: bytes) -> int:
    """Compare a whole answer. Returns how many tokens were compared."""
    answer = json.loads(content)
    choices = answer["choices"]
    if [choice["index"] for choice in choices] != list(range(len(ask.expected))):
        raise Difference(f"the choices are {[choice['index'] for choice in choices]}")
    found = [Found() for _ in choices]
    for its, choice in zip(found, choices, strict=True):
        its.add(choice)
    tokens = _all(ask, found)
    if answer["usage"]["completion_tokens"] != tokens:
        raise Difference(f"usage has {answer['usage']['completion_tokens']} tokens, and there are {tokens}")
    return tokens


class Streamed:
    """A stream, as it comes."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.found = [Found() for _ in ask.expected]
        self.ended = False
        self.shared = 0  # rounds that it was told of in which other texts went on, too

    def line(self, line: bytes) -> None:
        """A line of it."""
        if not line.startswith(b"data: "):
            return
        if self.ended:
            raise Difference("a stream goes on behind its end")
        if line.strip() == b"data: [DONE]":
            self.ended = True
            return
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(f"an event is an error: {event['error']}")
        for choice in event["choices"]:
            self.found[choice["index"]].add(choice)
            self.shared += choice.get("foretoken", {}).get("sequences", 0) > 1

    def whole(self) -> int:
        """Compare all of it. Returns how many tokens were compared."""
        if not self.ended:
            raise RuntimeError("a stream broke off")
        return _all(self._ask, self.found)

    def part(self) -> int:
        """Compare what had come until it was broken off. Returns how many tokens were compared."""
        for at, (its, done) in enumerate(zip(self.found, self._ask.expected, strict=True)):
            before = self._ask.echoed[at] if self._ask.echoed else ""
            if not (before + done.text).startswith(its.text) or list(done.tokens[: len(its.tokens)]) != its.tokens:
                raise Difference(f"a part of a stream differs: {its.text!r}, expected {done.text!r}")
        return sum(len(its.tokens) for its in self.found)


def _all(ask: Ask, found: list[Found]) -> int:
    for at, (its, done) in enumerate(zip(found, ask.expected, strict=True)):
        before, read = (ask.echoed[at], ask.read[at]) if ask.echoed else ("", ())
        _expect_same(its, done, before)
        values = [*read, *(each.logprob for each in done.logprobs or ())]
        if its.logprobs != values:
            raise Difference(f"log probabilities: {its.logprobs}, expected {values}")
    return sum(len(done.tokens) for done in ask.expected)


def _expect_same(its: Found, done: Completion, before: str) -> None:
    for what, has, expected in (
        ("tokens", its.tokens, list(done.tokens)),
        ("text", its.text, before + done.text),
        ("finish_reason", its.finish, done.finish_reason),
    ):
        if has != expected:
            raise Difference(f"{what}: {has!r}, expected {expected!r}")
    if done.stop_string is not None and its.stopped_by != done.stop_string:
        raise Difference(f"stop_reason: {its.stopped_by!r}, expected {done.stop_string!r}")
