"""The functions that the model may call in a request: what the template is told, and how calls are found in text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foretoken.serve.tool_choice import checked, constraint, given
from foretoken.serve.tools import ToolFormat, ToolParser, expect_format, finish_reason, parse
from foretoken.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Calls:
    """told: the functions as the chat template is told of them. names: of the functions. grammar: which the text
    follows; None if it is free. eager: whether all text is in form, so that arguments can be given as they come."""

    format: ToolFormat
    told: Sequence[dict[str, Any]]
    names: tuple[str, ...]
    grammar: str | None
    eager: bool

    @classmethod
    def of(cls, tools: Any, choice: Any, parallel: bool, tokenizer: Tokenizer | None) -> Calls | None:
        """For the fields of a request; None if the model may call nothing. Raises SettingError for what makes no sense,
        and for a model whose template knows no functions."""
        if tools is None or tools == []:
            return None
        found = checked(tools)
        told = given(found, choice)
        if told is None or tokenizer is None:
            return None
        format = expect_format(tokenizer.chat_template, tokenizer.added)
        form = constraint(found, choice, format, parallel=parallel)
        names = tuple(tool["function"]["name"] for tool in found)
        eager = form is not None and choice not in (None, "auto")
        return cls(format, told, names, None if form is None else form[1], eager)

    def parser(self) -> ToolParser:
        """Finds calls in a text while it comes."""
        return ToolParser(self.format, self.names, eager=self.eager)

    def message(self, text: str) -> dict[str, Any]:
        """The content and the calls of a whole text, as a message has them."""
        content, calls = parse(text, self.format, self.names, eager=self.eager)
        return {"content": content, **({"tool_calls": [call.to_json() for call in calls]} if calls else {})}

    def mark_in(self, stop: str | Sequence[str] | None) -> str | None:
        """A stop string that holds a mark of calls which decoding leaves out elsewhere; None if there is none."""
        given = (stop,) if isinstance(stop, str) else stop or ()
        return next((each for each in given for mark in self.format.shown if mark in each), None)

    def showing(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer whose decoded text has the marks of calls."""
        return tokenizer.showing(self.format.shown)


__all__ = ["Calls", "ToolParser", "finish_reason"]
