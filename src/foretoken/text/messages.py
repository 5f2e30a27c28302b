"""Prompts, and the messages of conversations, which a chat template writes as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from foretoken.errors import PromptError, quoted
from foretoken.text.tokenizer import expect_whole

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
