"""Calls of functions: found in text however it comes, and written in form whatever drafts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foretoken
from foretoken.api.model import Model
from foretoken.errors import SettingError
from foretoken.protocol.types import Request, SamplingParams
from foretoken.sampling.grammar import Grammars
from foretoken.serve.tool_choice import checked, constraint
from foretoken.serve.tool_choice import given as given_to_template
from foretoken.serve.tools import ToolCall, ToolFormat, ToolParser, expect_format, finish_reason, parse
from foretoken.text.stream import TextStream
from tests.talks import talking

TALK = """\
{%- if tools %}{{ '# tools\n' }}{% for tool in tools %}{{ (tool | tojson) + '\n' }}{% endfor %}{% endif -%}
{%- for message in messages -%}{{- '# ' + message.role + '\n' + message.content + '\n' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '# assistant\n' -}}{%- endif -%}"""
HERMES = TALK + "{# <tool_call>{'name': , 'arguments': }</tool_call> #}"
LLAMA = TALK + '{# {"name": function name, "parameters": dictionary of argument name and its value}. #}'
FORMATS = {"hermes": ToolFormat.of(HERMES), "llama3": ToolFormat.of(LLAMA)}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Ulm", "Bonn"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 14}, "maxItems": 3},
    },
    "required": ["city"],
    "additionalProperties": False,
}


def function(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


TOOLS = [function("weather", WEATHER, description="The weather."), function("now")]
NAMES = ["weather", "now"]


def format_of(name: str) -> ToolFormat:
    found = FORMATS[name]
    assert found is not None
    return found


def fits(call: ToolCall) -> bool:
    arguments = json.loads(call.arguments)
    if call.name == "now":
        return bool(arguments == {})
    days = arguments.get("days", [])
    right = call.name == "weather" and arguments["city"] in ("Ulm", "Bonn") and arguments.keys() <= {"city", "days"}
    return right and len(days) <= 3 and all(isinstance(day, int) and 1 <= day <= 14 for day in days)


# -- the form of a template --------------------------------------------------------------------------------------------


def test_the_form_is_read_from_the_template() -> None:
    assert [each and each.name for each in FORMATS.values()] == ["hermes", "llama3"]
    marks = {"<tool_call>": True, "</tool_call>": False, "<|python_tag|>": True}
    hermes, llama = expect_format(HERMES, marks), expect_format(LLAMA, marks)
    assert (hermes.tokens, hermes.shown) == ({"<tool_call>", "</tool_call>"}, {"<tool_call>"})
    assert (llama.tokens, llama.shown) == ({"<|python_tag|>"}, set())
    for template, lacking in (
        (None, "knows no tools"),
        ("{{ messages }} <tool_call>", "knows no tools"),
        (TALK, "has calls written in a form of its own"),
        (HERMES + "<function=", "has calls written in a form of its own"),
    ):
        assert ToolFormat.of(template) is None
        with pytest.raises(SettingError) as error:
            expect_format(template)
        assert str(error.value) == (f"the model's chat template {lacking}, so the model can call none; leave tools out")


# -- finding calls -----------------------------------------------------------------------------------------------------

F = '{"name": "now", "arguments": {"a": [1, "}"]}}'
IN_HERMES = [
    ("no call", "no call", []),
    (f"<tool_call>\n{F}\n</tool_call>", None, [("now", '{"a": [1, "}"]}')]),
    (f"text\n\n<tool_call>{F}</tool_call>\n<tool_call>\n{F}", "text", [("now", '{"a": [1, "}"]}')] * 2),
    (f"a <tool_call>{F}</tool_call> b ", "a\nb ", [("now", '{"a": [1, "}"]}')]),
    ('<tool_call>{"name": "x", "arguments": {"t": "</tool_call> {"}}', None, [("x", '{"t": "</tool_call> {"}')]),
    ('<tool_call>{"name": "x", "arguments": {"t": "\\" }"}}', None, [("x", '{"t": "\\" }"}')]),
    ('<tool_call>{"arguments": "{\\"a\\": 1}", "name": "x"}</tool_call>', None, [("x", '{"a": 1}')]),
    ('<tool_call>{"name": "x"}</tool_call>', None, [("x", "{}")]),
    (f"<tool_call> {{'name'}} <tool_call>{F}", "<tool_call> {'name'}", [("now", '{"a": [1, "}"]}')]),
    ('<tool_call>{"name": "x", "arguments": [1]}</tool_call>', "…", []),
    ('<tool_call>{"name": "x", "arguments": {"a": NaN}}</tool_call>', "…", []),
    ('<tool_call>{"name": "x", "arguments": {"a": 1]}</tool_call>', "…", []),
    ('a <tool_call>\n{"name": "x", "argu', "…", []),
    (" 1 < 2 <tool", " 1 < 2 <tool", []),
    ("\n", "\n", []),
    ('{"name": "now", "arguments": {}}', "…", []),
]
P = '{"name": "now", "parameters": {"a": {}}}'
IN_LLAMA = [
    (P, None, [("now", '{"a": {}}')]),
    (f"<|python_tag|>{P}", None, [("now", '{"a": {}}')]),
    (f"Well:\n{P}; {P}", "Well:", [("now", '{"a": {}}')] * 2),
    ('<|python_tag|>{"name": "other", "parameters": {}}', None, [("other", "{}")]),
    ('{"name": "other", "parameters": {}}', "…", []),
    ('{"name": "now"}', "…", []),
    ('{"name" : "now", "arguments" : {}}', None, [("now", "{}")]),
    ('<|python_tag|>search.call("x")', '<|python_tag|>search.call("x")', []),
    ('{"a": {"name": "nowhere"}} {"na', "…", []),
]
CASES = [*(("hermes", *case) for case in IN_HERMES), *(("llama3", *case) for case in IN_LLAMA)]


@pytest.mark.parametrize(("form", "text", "content", "calls"), CASES)
def test_calls_are_found_and_the_rest_is_content(
    form: str, text: str, content: str | None, calls: list[tuple[str, str]]
) -> None:
    found, called = parse(text, format_of(form), NAMES)
    assert found == (text if content == "…" else content)
    assert [(call.name, call.arguments) for call in called] == calls


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_how_a_text_is_divided_changes_nothing(data: st.DataObject) -> None:
    form, text, *_ = data.draw(st.sampled_from(CASES))
    if data.draw(st.booleans()):
        text += data.draw(st.sampled_from(CASES))[1]
    eager = data.draw(st.booleans())
    parser, content, calls = ToolParser(format_of(form), NAMES, eager=eager), "", list[list[str]]()
    deltas: list[dict[str, Any]] = []
    left = text
    while left:
        size = data.draw(st.integers(1, 12))
        deltas += parser.feed(left[:size])
        left = left[size:]
    for delta in (*deltas, *parser.finish()):
        content += delta.get("content", "")
        for part in delta.get("tool_calls", []):
            if "id" in part:
                assert part["type"] == "function"
                calls.append([part["function"]["name"], ""])
            assert part["index"] == len(calls) - 1
            calls[-1][1] += part["function"]["arguments"]
    whole, called = parse(text, format_of(form), NAMES, eager=eager)
    assert content == (whole or "")
    assert calls == [[call.name, call.arguments] for call in called]
    assert parser.calls == len(calls)


def test_what_may_be_shown_is_shown_at_once() -> None:
    parser = ToolParser(format_of("hermes"))
    assert parser.feed("1 <") == [{"content": "1"}]
    assert parser.feed("t") == []
    assert parser.feed("ext> <tool_call>") == [{"content": " <text>"}]
    assert parser.feed('{"name": "f", "arguments": {"a": ') == []
    (delta,) = parser.feed("1}}</tool")
    assert delta["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert parser.finish() == []
    eager = ToolParser(format_of("hermes"), eager=True)
    first, second = eager.feed('<tool_call>{"name": "f", "arguments": {"a": ')
    assert first["tool_calls"][0]["function"] == {"name": "f", "arguments": ""}
    assert second == {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": '}}]}
    assert eager.feed('"x') == [{"tool_calls": [{"index": 0, "function": {"arguments": '"x'}}]}]
    assert eager.finish() == [], "cut off within a call"


def test_the_reason_of_an_end() -> None:
    assert [finish_reason(*each) for each in (("stop", 0), ("stop", 2), ("length", 1))] == [
        "stop",
        "tool_calls",
        "length",
    ]


# -- what a request asks for -------------------------------------------------------------------------------------------


A_NAME = "expected 1 to 64 letters of English, digits, '_', '-' or '.'"


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([], "tools are [], expected a list with one function or more"),
        ([*TOOLS, 3], "tool 2 is 3, expected type 'function' and a function"),
        ([function("a b")], f"the name of tool 0 is 'a b', {A_NAME}"),
        ([*TOOLS, TOOLS[1]], "tool 2 is named 'now', as another; give each a name of its own"),
        ([function("f", {"type": "array"})], "the parameters of tool 0 are no JSON schema of type 'object'"),
        ([function("f", [1])], "the parameters of tool 0 are no JSON schema of type 'object'"),
    ],
)
def test_what_are_no_tools_is_refused(tools: Any, message: str) -> None:
    with pytest.raises(SettingError) as error:
        checked(tools)
    assert str(error.value) == message


def test_what_is_no_choice_is_refused() -> None:
    for choice, message in (
        ("any", "tool_choice is 'any', expected 'none', 'auto', 'required' or a function's name, as OpenAI has it"),
        ({"type": "function", "function": {"name": "g"}}, "tool_choice names 'g', which is not among the tools"),
    ):
        with pytest.raises(SettingError) as error:
            constraint(TOOLS, choice, format_of("hermes"))
        assert str(error.value) == message


def test_what_the_template_is_given() -> None:
    strict = [function("now", None, strict=True)]
    assert checked(strict) == strict
    assert given_to_template(strict) == [TOOLS[1]]
    assert given_to_template(strict, "none") is None
    assert constraint(TOOLS, "auto", format_of("hermes")) is constraint(strict, "none", format_of("hermes")) is None


# -- calls that a model writes -----------------------------------------------------------------------------------------


@cache
def model(folder: Path, draft: str) -> Model:
    return foretoken.load(folder, draft=draft, pace="fixed", threads=1)


@pytest.fixture(scope="module", params=["text", "token", "special", "llama3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that talks; with some, the marks are tokens, which decoding may leave out."""
    pytest.importorskip("llguidance", reason="the extra 'grammar' is not installed")
    made = talking(tmp_path_factory.mktemp("tools") / "model", LLAMA if request.param == "llama3" else HERMES)
    if request.param in ("token", "special"):
        file = made / "tokenizer.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        vocabulary, merges = content["model"]["vocab"], content["model"]["merges"]
        for mark, text in zip(("<tool_call>", "</tool_call>"), list(vocabulary)[-2:], strict=True):
            merges[:] = [merge for merge in merges if "".join(merge) != text]
            token = {**content["added_tokens"][0], "id": vocabulary.pop(text), "content": mark}
            content["added_tokens"].append({**token, "special": request.param == "special"})
        file.write_text(json.dumps(content), encoding="utf-8")
    return made


def written(model: Model, form: ToolFormat, **chosen: Any) -> tuple[str, foretoken.Completion]:
    """What the model writes, with the marks that decoding leaves out."""
    assert model.tokenizer is not None
    prompt = model.tokenizer.encode_chat([{"role": "user", "content": "Weather?"}], tools=given_to_template(TOOLS))
    done = model.generate(prompt, max_new_tokens=60, **chosen)
    stream = TextStream(model.tokenizer.showing(form.shown), prompt)
    for token in done.tokens:
        stream.feed(token)
    stream.finish()
    return "".join(stream.take()), done


def choices() -> Iterator[tuple[Any, bool]]:
    yield "required", True
    yield "required", False
    yield {"type": "function", "function": {"name": "weather"}}, True


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_call_that_must_come_is_in_form_whatever_drafts(folder: Path, temperature: float) -> None:
    plain = model(folder, "none")
    tokenizer = plain.tokenizer
    assert tokenizer is not None
    form = expect_format(tokenizer.chat_template, tokenizer.added)
    for choice, parallel in choices():
        grammar = constraint(TOOLS, choice, form, parallel=parallel)
        assert grammar is not None
        chosen = {"grammar": grammar[1], "temperature": temperature, "seed": 3}
        text, done = written(plain, form, **chosen)
        content, calls = parse(text, form, NAMES)
        assert all(map(fits, calls)), text
        assert parse(text, form, NAMES, eager=True)[1] == calls or done.finish_reason == "length", text
        if done.finish_reason == "stop":
            assert content is None, text
            assert calls, text
        if choice != "required" or not parallel:  # with several, the model may never end
            assert (done.finish_reason, len(calls)) == ("stop", 1), text
            assert choice == "required" or calls[0].name == "weather"
        assert written(model(folder, "int4:k=2,lookup"), form, **chosen)[1].tokens == done.tokens


def test_strict_functions_keep_their_form_behind_free_text(folder: Path) -> None:
    plain = model(folder, "none")
    tokenizer = plain.tokenizer
    assert tokenizer is not None
    form = expect_format(tokenizer.chat_template, tokenizer.added)
    strict = [function("weather", WEATHER, strict=True), function("now")]
    grammar = constraint(strict, "auto", form)
    assert grammar is not None
    done = plain.generate("x = ", grammar=grammar[1], max_new_tokens=12)
    assert done.tokens == plain.generate("x = ", max_new_tokens=12).tokens, "text is free"

    def allows(text: str) -> bool:
        request = Request(0, (1,), 9, sampling=SamplingParams(constraint=grammar))
        state = Grammars(tokenizer).constraint(request)
        assert state is not None
        for token in tokenizer.encode_part(text):
            if not state.allowed(tokenizer.size)[token]:
                return False
            state.advance(token)
        return True

    begin, end = ("", "") if form.bare else ("<tool_call>\n", "\n</tool_call>")
    for name, arguments, right in (
        ("weather", '{"city": "Ulm"}', True),
        ("weather", '{"city": "Ulm", "days": [15]}', False),
        ("now", '{"anything": [15]}', True),
        ("now", "[]", False),
    ):
        call = f'{begin}{{"name": "{name}", "{form.arguments}": {arguments}}}{end}'
        assert allows(f"Let me see.\n{call}") is right, call
        assert allows(call) is right, call
