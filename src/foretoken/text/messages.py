"""Prompts, and the messages of conversations, which a chat template writes as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from foretoken.errors import PromptError, quoted
from foretoken.text.tokenizer import expect_whole

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_OF_ASSISTANT = ("tool_calls", "reasoning_content")
# of answers that clients send back as they came; OpenAI's server has them, and a template knows nothing of them
_UNREAD = ("refusal", "annotations", "audio", "function_call", "reasoning")

# text, token ids, or messages with a `role` and a `content` each
Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, str]]


def message(role: str, content: str, what: str) -> dict[str, str]:
    """A message. Raises PromptError if the content is not text. what: the content's name in that error."""
    if not isinstance(content, str):
        raise PromptError(f"{what} is {content!r:.60}, expected text")
    expect_whole(content, what)
    return {"role": role, "content": content}


def conversation(system: str | None, text: str) -> list[dict[str, str]]:
    """A text as the user's first message, after the system message, if there is one."""
    before = [] if system is None else [message("system", system, "the system message")]
    return [*before, message("user", text, "the prompt")]


def are_messages(prompt: Any) -> bool:
    """Whether a prompt is a list of messages. Their contents are not looked at."""
    return isinstance(prompt, list | tuple) and bool(prompt) and all(isinstance(each, Mapping) for each in prompt)


def checked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The messages as plain dicts. Raises PromptError unless each has a role and a content, both text, and nothing
    else: a template ignores names that it does not know, so a wrong name would go unnoticed."""
    whole = []
    for number, each in enumerate(messages):
        if set(each) != {"role", "content"} or not isinstance(each["role"], str):
            raise PromptError(f"message {number} is {quoted(dict(each), 80)}, expected a role and a content, both text")
        expect_whole(each["role"], f"the role of message {number}")
        whole.append(message(each["role"], each["content"], f"the content of message {number}"))
    return whole


def from_openai(messages: Any) -> list[dict[str, Any]]:
    """Messages of OpenAI's chat completions, as chat templates expect them.

    A content may be a list of parts of text; they are joined by line breaks. An assistant's message with `tool_calls`
    may have no content, which is then empty; the arguments of its calls become dicts. Role `developer` becomes
    `system`. `name`, `tool_call_id` and `reasoning_content` stay. Raises PromptError for anything else, with the
    message's number, counted from 0.

    Source: https://platform.openai.com/docs/api-reference/chat/create
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise PromptError(f"messages are {quoted(messages, 80)}, expected a list with one message or more")
    return [_message(each, number) for number, each in enumerate(messages)]


def _message(given: Any, number: int) -> dict[str, Any]:
    called = f"message {number}"
    if not isinstance(given, Mapping):
        raise PromptError(f"{called} is {quoted(given, 80)}, expected an object with a role and a content")
    role = given.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise PromptError(f"the role of {called} is {quoted(role, 40)}, expected one of {', '.join(_ROLES)}")
    whole: dict[str, Any] = {"role": _ROLES[role]}
    own = {"assistant": _OF_ASSISTANT, "tool": ("tool_call_id",)}.get(role, ())
    for key, value in given.items():
        if key in ("role", "content", "tool_calls") or (value in (None, [], "") and key in _UNREAD):
            continue
        if key not in ("name", *own):
            if value is None:
                continue
            raise PromptError(f"{called}, of role {role}, has {quoted(key, 40)}, which is not read; leave it out")
        if value is not None:
            whole[key] = _text(value, f"the {key} of {called}")
    calls = given.get("tool_calls") or []
    if calls and role != "assistant":
        raise PromptError(f"{called}, of role {role}, has 'tool_calls', which is not read; leave it out")
    if role == "tool" and "tool_call_id" not in whole:
        raise PromptError(f"{called}, of role tool, has no tool_call_id; expected the id of the call that it answers")
    content = given.get("content")
    if content is None and not calls:
        raise PromptError(f"{called} has no content; expected text")
    whole["content"] = "" if content is None else _content(content, called)
    if calls:
        if not isinstance(calls, list | tuple):
            raise PromptError(f"the tool_calls of {called} are {quoted(calls, 80)}, expected a list")
        whole["tool_calls"] = [_call(call, f"tool call {place} of {called}") for place, call in enumerate(calls)]
    return whole


def _content(content: Any, called: str) -> str:
    what = f"the content of {called}"
    if not isinstance(content, list | tuple):
        return _text(content, what, "text or a list of parts of text")
    texts = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            shown = f"is {quoted(part, 60)}" if kind is None else f"has type {quoted(kind, 40)}"
            raise PromptError(f"part {place} of {what} {shown}, expected type 'text': this model reads text only")
        texts.append(_text(part.get("text"), f"the text of part {place} of {what}"))
    return "\n".join(texts)


def _call(call: Any, called: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or call.get("type", "function") != "function":
        raise PromptError(f"{called} is {quoted(call, 80)}, expected an id, type 'function' and a function")
    name, arguments = _text(function.get("name"), f"the name of {called}"), function.get("arguments")
    if isinstance(arguments, str):
        expect_whole(arguments, f"the arguments of {called}")
        try:
            arguments = json.loads(arguments or "{}")  # of a function without parameters, some clients send nothing
        except (ValueError, RecursionError) as error:
            raise PromptError(f"the arguments of {called} are not JSON ({error}); expected an object") from None
    if not isinstance(arguments, Mapping):
        raise PromptError(f"the arguments of {called} are {quoted(arguments, 80)}, expected a JSON object, as text")
    whole = {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}
    return whole if call.get("id") is None else {"id": _text(call["id"], f"the id of {called}"), **whole}


def _text(value: Any, what: str, expected: str = "text") -> str:
    if not isinstance(value, str):
        raise PromptError(f"{what} is {quoted(value, 60)}, expected {expected}")
    expect_whole(value, what)
    return value
