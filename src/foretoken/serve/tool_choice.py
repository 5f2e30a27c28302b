"""What a request asks of functions: which ones the model may call, whether it must, and the grammar that follows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from foretoken.errors import SettingError, quoted
from foretoken.sampling.compiled import WHITESPACE
from foretoken.serve.tools import ToolFormat

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_SPACE = r"[ \t\r\n]*"  # between the parts of JSON


def checked(tools: Any) -> list[dict[str, Any]]:
    """OpenAI's list of tools. Raises SettingError, with the tool's number, unless each is a function with a name of its
    own, and its parameters a JSON schema of an object."""
    if not isinstance(tools, list | tuple) or not tools:
        raise SettingError(f"tools are {quoted(tools, 80)}, expected a list with one function or more")
    names: set[str] = set()
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        if not isinstance(function, Mapping):
            raise SettingError(f"tool {number} is {quoted(tool, 80)}, expected type 'function' and a function")
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            wanted = "1 to 64 letters of English, digits, '_', '-' or '.'"
            raise SettingError(f"the name of tool {number} is {quoted(name, 70)}, expected {wanted}")
        if name in names:
            raise SettingError(f"tool {number} is named {quoted(name, 70)}, as another; give each a name of its own")
        names.add(name)
        kind = parameters.get("type", "object") if isinstance(parameters, Mapping) else parameters and "none"
        if kind not in (None, "object"):
            raise SettingError(f"the parameters of tool {number} are no JSON schema of type 'object'")
    return [dict(tool) for tool in tools]


def given(tools: Sequence[Mapping[str, Any]], tool_choice: Any = "auto") -> list[dict[str, Any]] | None:
    """What the chat template is told of checked tools: not `strict`, which is for the server. None for the choice
    "none". Raises SettingError for a choice that makes no sense."""
    if _choice(tools, tool_choice)[0] == "none":
        return None
    kept = [{name: value for name, value in tool["function"].items() if name != "strict"} for tool in tools]
    return [{**tool, "function": function} for tool, function in zip(tools, kept, strict=True)]


def constraint(
    tools: Sequence[Mapping[str, Any]], tool_choice: Any, format: ToolFormat, *, parallel: bool = True
) -> tuple[str, str] | None:
    """The grammar for checked tools, as `SamplingParams.constraint`; None where the text is free.

    With the choice "required", or with a named function, the text is made of calls, whose arguments follow the
    functions' schemas. With "auto" this holds for calls of functions that are `strict`, and there may be text before
    them. parallel: whether several calls may come. Raises SettingError for a choice that makes no sense.

    Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
    """
    choice, functions = _choice(tools, tool_choice)
    strict = [function.get("strict") is True for function in functions]
    if choice == "none" or (choice == "auto" and not any(strict)):
        return None
    schemas = [_schema(each, follow or choice != "auto") for each, follow in zip(functions, strict, strict=True)]
    write = _bare if format.bare else _marked
    rules = write([str(each["name"]) for each in functions], format, choice == "auto", parallel and choice != "named")
    return "lark", "\n".join((*rules, *(f"a{number}: %json {schema}" for number, schema in enumerate(schemas)), ""))


def _choice(tools: Sequence[Mapping[str, Any]], choice: Any) -> tuple[str, list[Mapping[str, Any]]]:
    """none, auto, required or named, and the functions that may be called."""
    functions = [tool["function"] for tool in tools]
    if choice is None or choice in ("none", "auto", "required"):
        return choice or "auto", functions
    named = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    if not isinstance(named, Mapping):
        wanted = "'none', 'auto', 'required' or a function's name, as OpenAI has it"
        raise SettingError(f"tool_choice is {quoted(choice, 80)}, expected {wanted}")
    found = [function for function in functions if function["name"] == named.get("name")]
    if not found:
        raise SettingError(f"tool_choice names {quoted(named.get('name'), 70)}, which is not among the tools")
    return "named", found


def _schema(function: Mapping[str, Any], follow: bool) -> str:
    schema = dict(function.get("parameters") or _NO_PARAMETERS) if follow else {}
    guidance = schema.get("x-guidance") or {}
    if isinstance(guidance, Mapping) and not any(name.startswith("whitespace") for name in guidance):
        schema["x-guidance"] = {**guidance, "whitespace_pattern": WHITESPACE}
    try:
        return json.dumps({**schema, "type": "object"})
    except RecursionError:
        raise SettingError(f"the parameters of {function['name']} are nested too deeply; give fewer levels") from None


def _marked(names: Sequence[str], format: ToolFormat, free: bool, parallel: bool) -> Iterator[str]:
    """Rules for calls between marks; if the text is `free`, behind other text."""
    begin, end = (mark if mark in format.tokens else json.dumps(mark) for mark in (format.begin, format.after))
    more = f'("\\n" {begin} body)*' if parallel else ""
    if not free:
        yield f"start: {begin} body {more}"
    elif format.begin in format.tokens:  # spelled out it would not be this token, and yet be read as a mark
        yield f"start: TEXT ({begin} body {more})?"
        yield f"TEXT: /(.|\\n)*/ & ~/(.|\\n)*{format.begin}(.|\\n)*/"
    else:
        yield f"start: /(.|\\n)*/ | head body {more}"
        yield f"head[lazy]: /(.|\\n)*{format.begin}/"
    yield f'body: "\\n" ({" | ".join(f"f{number}" for number in range(len(names)))}) "\\n" {end}'
    for number, name in enumerate(names):
        yield f'f{number}: {json.dumps(_opening(name, format))} a{number} "}}"'


def _bare(names: Sequence[str], format: ToolFormat, free: bool, parallel: bool) -> Iterator[str]:
    """Rules for one call without a mark. Free text is a call from where it names a function in a call's form."""
    starts = " | ".join(f"f{number}" for number in range(len(names)))
    mark = f"({format.begin})? " if format.begin in format.tokens else ""
    yield f"start: {mark}(/(.|\\n)*/ | {starts})" if free else f"start: {starts}"
    for number, name in enumerate(names):
        opening = json.dumps(_opening(name, format))
        if free:
            opening = json.dumps(f', "{format.arguments}": ')
            named = rf'\{{{_SPACE}"name"{_SPACE}:{_SPACE}"{re.escape(name)}"'
            yield f"h{number}[lazy]: /(.|\\n)*{named}/"
            opening = f"h{number} {opening}"
        yield f'f{number}: {opening} a{number} "}}"'


def _opening(name: str, format: ToolFormat) -> str:
    return f'{{"name": "{name}", "{format.arguments}": '
