"""Calls of functions in a model's text: how its chat template has it write them, and how they are read.

A model is given functions (OpenAI calls them tools) by its chat template, which also says in which form a call is
written. Two forms are known: that of Hermes and Qwen, and that of Llama 3.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from foretoken.errors import SettingError
from foretoken.text.stream import overlap

_SPACE = " \t\r\n"  # between the parts of JSON
_LETTERS = frozenset(f"{_SPACE},:+-.0123456789eEtrufalsn")  # of JSON outside its strings, without brackets
_IN_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_HEAD = re.compile(r'[ \t\r\n]*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_LLAMA = re.compile(r'\{\\?"name\\?": [^{}]{1,60}\\?"parameters\\?": ')


@dataclass(frozen=True)
class ToolFormat:
    """How a model writes a call: a JSON object with a name and `arguments`, between two marks.

    begin, after: what comes before a call and behind it. bare: whether a call may lack its mark, and then may come
    only once in a grammar. tokens: the marks that are tokens of their own. shown: of these, the ones that decoding
    leaves out, so that `Tokenizer.showing` must be asked for them.
    """

    name: str
    begin: str
    after: str
    arguments: str
    bare: bool = False
    tokens: frozenset[str] = frozenset()
    shown: frozenset[str] = frozenset()

    @classmethod
    def of(cls, template: str | None, added: Mapping[str, bool] | None = None) -> ToolFormat | None:
        """The form that a chat template asks for; None if it knows no tools, or has them written in another form.
        added: the tokenizer's `added`."""
        template, added = template or "", added or {}
        if "tools" not in template:
            return None
        if "<tool_call>" in template and "arguments" in template and not re.search("<function=|<arg_key>", template):
            marks = frozenset(("<tool_call>", "</tool_call>")) & added.keys()
            shown = frozenset(mark for mark in marks if added[mark])
            return cls("hermes", "<tool_call>", "</tool_call>", "arguments", tokens=marks, shown=shown)
        if _LLAMA.search(template):
            tokens = frozenset(("<|python_tag|>",)) & added.keys()
            return cls("llama3", "<|python_tag|>", ";", "parameters", bare=True, tokens=tokens)
        return None


def expect_format(template: str | None, added: Mapping[str, bool] | None = None) -> ToolFormat:
    """As `ToolFormat.of`. Raises SettingError where that finds none."""
    found = ToolFormat.of(template, added)
    if found is None:
        lacking = "knows no tools" if "tools" not in (template or "") else "has calls written in a form of its own"
        raise SettingError(f"the model's chat template {lacking}, so the model can call none; leave tools out")
    return found


@dataclass(frozen=True)
class ToolCall:
    """A call. arguments: JSON, as the model wrote it."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}", compare=False)

    def to_json(self) -> dict[str, Any]:
        """As a message of OpenAI's chat completions has it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def parse(
    text: str, format: ToolFormat, names: Collection[str] = (), *, eager: bool = False
) -> tuple[str | None, list[ToolCall]]:
    """A whole text's content (None if there is none) and its calls. The parameters are those of `ToolParser`."""
    parser = ToolParser(format, names, eager=eager)
    content, calls = "", list[dict[str, str]]()
    for delta in (*parser.feed(text), *parser.finish()):
        content += delta.get("content", "")
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                calls.append({"name": part["function"]["name"], "id": part["id"], "arguments": ""})
            calls[part["index"]]["arguments"] += part["function"]["arguments"]
    return content or None, [ToolCall(**call) for call in calls]


def finish_reason(reason: str, calls: int) -> str:
    """OpenAI's reason why a text has ended. calls: how many were found in it."""
    return "tool_calls" if calls and reason == "stop" else reason


class ToolParser:
    """Finds calls in text while it comes. What it gave once, it never takes back, and how the text is divided does not
    change what comes of it.

    names: the functions that were given to the model. A call without a mark must name one of them; if there are no
    names, it may have any. eager: arguments are given as they come. This is for text that a grammar keeps in form.
    Without it a call is given once it is whole, and what turns out to be no call is content.

    `calls` says how many calls were found. Whitespace around calls is left out; a line break stands for calls in the
    middle of content.
    """

    _at: int  # in a call: so far its JSON was gone through
    _depth: int  # brackets that are open there
    _quoted: bool  # whether that is within a string
    _open: bool  # whether its name was given, so that it can be no content any more
    _given: int  # its arguments were given up to there
    _end: int  # where its arguments end; 0: not yet

    def __init__(self, format: ToolFormat, names: Collection[str] = (), *, eager: bool = False) -> None:
        self.calls = 0
        self._format = format
        self._heads = [f'{{"name":"{name}"' for name in names] or ['{"name":"']
        self._eager = eager
        self._text = ""  # what was not given yet
        self._step: Callable[[], bool] = self._in_text
        self._deltas: list[dict[str, Any]] = []
        self._said = self._apart = False  # whether content was given, and whether a call came behind it
        self._held = ""  # in a call: what is content too, if it is none
        self._forget()

    def feed(self, text: str) -> list[dict[str, Any]]:
        """Takes in more text. Returns OpenAI's `delta`s: of content, or of a call."""
        self._text += text
        while self._step():
            pass
        deltas, self._deltas = self._deltas, []
        return deltas

    def finish(self) -> list[dict[str, Any]]:
        """The text has ended: what was held back."""
        if self._step == self._in_text or (self._step == self._in_call and not self._open):
            self._give_content(self._held + self._text)
        elif self._step == self._in_call:
            self._give_arguments()
        deltas, self._deltas = self._deltas, []
        return deltas

    # -- each step looks at the beginning of the text, and returns whether there is more to do

    def _in_text(self) -> bool:
        begin, end, whole = self._look_for_call()
        kept = len(self._text[:begin].rstrip())
        self._give_content(self._text[:kept])
        if not whole:
            self._text = self._text[kept:]
            return False
        self._held, self._text = self._text[kept:end], self._text[end:]
        self._step = self._in_call
        return True

    def _look_for_call(self) -> tuple[int, int, bool]:
        """Where a call begins, where its JSON does, and whether it is sure to begin there: else text may follow that
        makes it one."""
        mark = self._format.begin
        begin = self._text.find(mark)
        found = (begin, begin + len(mark), True)
        if begin < 0:
            begin = len(self._text) - overlap(self._text, mark)
            found = (begin, begin, False)
        at = self._text.find("{", 0, begin) if self._format.bare else -1
        while at >= 0:
            begins = [_begins(self._text, at, head) for head in self._heads]
            if True in begins or None in begins:
                return at, at, True in begins
            at = self._text.find("{", at + 1, begin)
        return found

    def _in_call(self) -> bool:
        """Goes through a JSON object: strings and brackets."""
        text = self._text
        if self._depth == 0:  # it has not begun
            self._at = len(text) - len(text.lstrip(_SPACE))
            if self._at < len(text) and text[self._at] != "{":
                return self._is_no_call()
        if self._eager and not self._open and (head := _HEAD.match(text)):
            self._open, self._given = True, head.end()
            self._begin_call(head[1])
        while self._at < len(text):
            if self._quoted:
                found = _IN_STRING.match(text, self._at)
                self._at = found.end() if found else self._at
                if text[self._at : self._at + 1] != '"':  # it goes on, or a character is half there
                    break
                self._quoted = False
            elif (letter := text[self._at]) == '"':
                self._quoted = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "]}":
                self._depth -= 1
                if self._depth == 1 and self._at >= self._given > 0 and not self._end:
                    self._end = self._at + 1
                if self._depth == 0:
                    self._at += 1
                    return self._is_whole()
            elif letter not in _LETTERS and not self._open:
                return self._is_no_call()
            self._at += 1
        if self._open:
            self._give_arguments()
        return False

    def _is_whole(self) -> bool:
        if self._open:
            self._give_arguments()
        else:
            call = _read(self._text[: self._at], expects_arguments=self._held.strip() == "")
            if call is None:
                return self._is_no_call()
            self._begin_call(call[0], call[1])
        self._text = self._text[self._at :]
        self._forget()
        self._step = self._after_call
        return True

    def _is_no_call(self) -> bool:
        """What was held is content. A call may still begin behind it."""
        first = "" if self._held.strip() else self._text[:1]  # a bare one began with the first character
        self._give_content(self._held + first)
        self._text = self._text[len(first) :]
        self._forget()
        self._step = self._in_text
        return True

    def _after_call(self) -> bool:
        mark = self._format.after
        self._text = self._text.lstrip()
        if self._text.startswith(mark):
            self._text = self._text[len(mark) :]
            return True
        if mark.startswith(self._text):  # nothing, or the beginning of it
            return False
        self._step = self._in_text
        return True

    # -- what is given

    def _give_content(self, text: str) -> None:
        if text:
            self._deltas.append({"content": "\n" + text if self._apart else text})
            self._said, self._apart = True, False

    def _begin_call(self, name: str, arguments: str = "") -> None:
        call = ToolCall(name, arguments).to_json()
        self._deltas.append({"tool_calls": [{"index": self.calls, **call}]})
        self.calls += 1
        self._apart = self._said

    def _give_arguments(self) -> None:
        upto = self._end or self._at
        if piece := self._text[self._given : upto]:
            self._given = upto
            self._deltas.append({"tool_calls": [{"index": self.calls - 1, "function": {"arguments": piece}}]})

    def _forget(self) -> None:
        self._held = ""
        self._at = self._depth = 0
        self._given = self._end = 0
        self._quoted = self._open = False


def _begins(text: str, at: int, head: str) -> bool | None:
    """Whether text begins, at a place, with a head, but for whitespace between the parts of JSON. None: text may follow
    with which it does."""
    done = 0
    for place in range(at, len(text)):
        if text[place] == head[done]:
            done += 1
            if done == len(head):
                return True
        elif text[place] not in _SPACE or done not in (1, 7, 8):
            return False
    return None


def _read(text: str, *, expects_arguments: bool) -> tuple[str, str] | None:
    """The name and the arguments of a call, as text; None if it is none."""
    try:
        parts = dict(_members(text))
        name = json.loads(parts["name"])
        found = parts.get("arguments", parts.get("parameters", "" if expects_arguments else "{}"))
        arguments = json.loads(found, parse_constant=_refuse)
        if isinstance(arguments, str):  # some models write JSON within JSON
            found, arguments = arguments, json.loads(arguments, parse_constant=_refuse)
    except (ValueError, KeyError, RecursionError):
        return None
    return (name, found) if isinstance(name, str) and name and isinstance(arguments, dict) else None


def _members(text: str) -> Iterator[tuple[str, str]]:
    """The names in a JSON object, with their values as they are written. Raises ValueError if it is none."""
    whole = json.loads(text)  # so all parts are where they belong
    decoder, at = json.JSONDecoder(), text.index("{") + 1
    for _ in whole if isinstance(whole, dict) else ():
        at = _past(text, at)
        name, at = decoder.raw_decode(text, at)
        begin = _past(text, _past(text, at) + 1)
        _, at = decoder.raw_decode(text, begin)
        yield name, text[begin:at]
        at = _past(text, at) + 1


def _past(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
