"""Messages as OpenAI's clients send them, and what a chat template is given of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretoken.errors import PromptError
from foretoken.text.messages import from_openai
from foretoken.text.tokenizer import Tokenizer
from tests.talks import talking

TEMPLATE = """\
{%- for tool in tools or [] %}{{ 'tool ' + tool.function.name + '\n' }}{% endfor -%}
{%- for message in messages -%}
{{- '# ' + message.role + '\n' + message.content + '\n' -}}
{%- for call in message.tool_calls or [] %}{{ call.function.name + ' ' + (call.function.arguments | tojson) + '\n' }}
{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '# assistant\n' + ('(quick)' if enable_thinking is false else '') }}{% endif -%}"""
CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "Ulm"}'}}
USER = {"role": "user", "content": "When?"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    loaded = Tokenizer.load(talking(tmp_path_factory.mktemp("talking") / "model", TEMPLATE))
    assert loaded is not None
    return loaded


def test_a_conversation_with_calls_becomes_what_templates_expect() -> None:
    call = {**CALL, "function": {"name": "now", "arguments": {"zone": "Ulm"}}}
    given: list[dict[str, Any]] = [
        {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
        {**USER, "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "assistant", "content": "At noon.", "tool_calls": [], "reasoning_content": "hm"},
    ]
    assert from_openai(given) == [
        {"role": "system", "content": "Be\nbrief."},
        {**USER, "name": "Ann"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "assistant", "content": "At noon.", "reasoning_content": "hm"},
    ]
    nothing = {"type": "function", "function": {"name": "now", "arguments": ""}}
    (message,) = from_openai([{"role": "assistant", "tool_calls": [nothing]}])
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "now", "arguments": {}}}]


def assistant(call: Any) -> list[dict[str, Any]]:
    return [USER, {"role": "assistant", "tool_calls": [call]}]


def arguments(value: Any) -> list[dict[str, Any]]:
    return assistant({"function": {"name": "f", "arguments": value}})


def part(value: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "x"}, value]}]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("Hello", "messages are 'Hello', expected a list with one message or more"),
        ([], "messages are [], expected a list with one message or more"),
        ([USER, "x"], "message 1 is 'x', expected an object with a role and a content"),
        (
            [{"role": "function"}],
            "the role of message 0 is 'function', expected one of system, developer, user, assistant, tool",
        ),
        ([{"role": "user"}], "message 0 has no content; expected text"),
        ([{"role": "assistant", "tool_calls": []}], "message 0 has no content; expected text"),
        ([{**USER, "content": 3}], "the content of message 0 is 3, expected text or a list of parts of text"),
        ([{**USER, "content": "\ud800"}], "the content of message 0 is not text: character 0 is half a character"),
        ([{**USER, "name": 3}], "the name of message 0 is 3, expected text"),
        ([{**USER, "text": "x"}], "message 0, of role user, has 'text', which is not read; leave it out"),
        (
            [{**USER, "tool_calls": [CALL]}],
            "message 0, of role user, has 'tool_calls', which is not read; leave it out",
        ),
        (
            [{"role": "tool", "content": "x"}],
            "message 0, of role tool, has no tool_call_id; expected the id of the call that it answers",
        ),
        (
            part({"type": "image_url", "image_url": {"url": "x"}}),
            "part 1 of the content of message 0 has type 'image_url', expected type 'text': this model reads text only",
        ),
        (part("x"), "part 1 of the content of message 0 is 'x', expected type 'text': this model reads text only"),
        (part({"type": "text"}), "the text of part 1 of the content of message 0 is None, expected text"),
        (assistant(3), "tool call 0 of message 1 is 3, expected an id, type 'function' and a function"),
        (arguments("{"), "the arguments of tool call 0 of message 1 are not JSON (Expecting property name enclosed in"),
        (arguments("[1]"), "the arguments of tool call 0 of message 1 are [1], expected a JSON object, as text"),
        (arguments(None), "the arguments of tool call 0 of message 1 are None, expected a JSON object, as text"),
        (assistant({"function": {"arguments": "{}"}}), "the name of tool call 0 of message 1 is None, expected text"),
    ],
)
def test_what_is_wrong_is_said_with_the_number_of_its_message(messages: Any, message: str) -> None:
    with pytest.raises(PromptError) as error:
        from_openai(messages)
    assert str(error.value).startswith(message)


def test_the_template_is_given_tools_calls_and_variables(tokenizer: Tokenizer) -> None:
    messages = from_openai([USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}])
    tools = [{"type": "function", "function": {"name": "now"}}]
    text = '# user\nWhen?\n# assistant\n\nnow {"zone": "Ulm"}\n'
    said = [
        tokenizer.encode_chat(messages),
        tokenizer.encode_chat(messages, tools=tools),
        tokenizer.encode_chat(messages, template_kwargs={"enable_thinking": False}),
        tokenizer.encode_chat(messages, add_generation_prompt=False),
    ]
    expected = [f"{text}# assistant\n", f"tool now\n{text}# assistant\n", f"{text}# assistant\n(quick)", text]
    assert [tokenizer.decode(tokens) for tokens in said] == expected
    assert tokenizer.chat_template == TEMPLATE


def test_the_last_message_may_be_continued(tokenizer: Tokenizer) -> None:
    messages = [USER, {"role": "assistant", "content": "At no"}]
    tokens = tokenizer.encode_chat(messages, add_generation_prompt=False, continue_final_message=True)
    assert tokenizer.decode(tokens) == "# user\nWhen?\n# assistant\nAt no"
    for more, message in (
        ({"continue_final_message": True}, "the model cannot go on with the last message and begin a reply; leave"),
        ({"template_kwargs": {"chat_template": "x"}}, "the chat template's variable 'chat_template' is not free"),
        ({"template_kwargs": {"messages": []}}, "the chat template's variable 'messages' is not free; leave it out"),
    ):
        with pytest.raises(PromptError) as error:
            tokenizer.encode_chat(messages, **more)  # type: ignore[arg-type]
        assert str(error.value).startswith(message)


def test_special_tokens_may_be_shown(tokenizer: Tokenizer) -> None:
    end = tokenizer.end_token
    assert end is not None
    tokens = [*tokenizer.encode_part("a b"), end, *tokenizer.encode_part(" c"), 1]
    shown = tokenizer.showing(["<|pad|>", "nothing"])
    assert tokenizer.added == {"<|endoftext|>": True, "<|pad|>": True}
    assert (tokenizer.decode(tokens), shown.decode(tokens)) == ("a b c", "a b c<|pad|>")
    assert [each.leaves_out(token) for each in (tokenizer, shown) for token in (end, 1)] == [True, True, True, False]
    assert tokenizer.showing([]) is tokenizer


def test_the_folder_of_a_tokenizer_without_a_template(tmp_path: Path) -> None:
    plain = Tokenizer.load(talking(tmp_path / "model", None))
    assert plain is not None
    assert plain.chat_template is None
