"""The official client: completions, chats, responses and functions, whole and streamed, and its errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.served import PROMPT, SAMPLED, Served, plain, serving, truth
from tests.serve.test_tools import HERMES, TOOLS, fits
from tests.talks import talking

openai = pytest.importorskip("openai")

SAID: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "def add(a, b):"}]
SETTINGS: dict[str, Any] = {"temperature": 0.8, "seed": 5, "top_p": 0.9}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talking(tmp_path_factory.mktemp("talking") / "talker", HERMES)


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serving(folder, keys=("secret",)) as its:
        yield its


@pytest.fixture
def client(served: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="secret", max_retries=0) as its:
        yield its


def test_completions(client: Any) -> None:
    whole = truth(max_new_tokens=30)
    settings = {"model": "talker", "prompt": PROMPT, "max_tokens": 30, "temperature": 0}
    done = client.completions.create(**settings, logprobs=2)
    assert done.choices[0].text == whole.text
    assert done.choices[0].logprobs.token_logprobs == [
        each.logprob for each in truth(max_new_tokens=30, logprobs=2).logprobs or ()
    ]
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**settings, stream=True)) == whole.text
    assert [model.id for model in client.models.list()] == ["talker"]


def test_chats(client: Any, folder: Path) -> None:
    whole = truth(SAID, folder, max_new_tokens=30, **SETTINGS)
    settings = {"model": "talker", "messages": SAID, "max_completion_tokens": 30, **SETTINGS}
    done = client.chat.completions.create(**settings, logprobs=True, top_logprobs=2, n=2)
    first, second = done.choices
    assert first.message.content == whole.text
    assert (first.message.role, first.finish_reason) == ("assistant", "length")
    assert second.message.content == plain(folder).completions(SAID, n=2, max_new_tokens=30, **SETTINGS)[1].text
    assert len(first.logprobs.content) == 30
    assert len(first.logprobs.content[0].top_logprobs) == 2
    assert done.usage.prompt_tokens == whole.prompt_tokens
    chunks = list(client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.text
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 30
    assert chunks[-1].foretoken["promise"] == "exact"


def test_the_client_that_waits_for_many(served: Served, folder: Path) -> None:
    whole = truth(SAID, folder, max_new_tokens=20)

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="secret", max_retries=0) as client:
            settings = {"model": "talker", "messages": SAID, "max_tokens": 20, "temperature": 0}

            async def streamed() -> str:
                chunks = await client.chat.completions.create(**settings, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

            async def at_once() -> str:
                done = await client.chat.completions.create(**settings)
                return str(done.choices[0].message.content)

            return list(await asyncio.gather(*(each() for each in (streamed, at_once) * 3)))

    assert asyncio.run(ask()) == [whole.text] * 6


def test_responses(client: Any, folder: Path) -> None:
    whole = truth(SAID, folder, max_new_tokens=30)
    settings = {"model": "talker", "input": "def add(a, b):", "instructions": "Be brief."}
    settings |= {"max_output_tokens": 30, "temperature": 0}
    done = client.responses.create(**settings)
    assert done.output_text == whole.text
    assert (done.status, done.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (done.usage.input_tokens, done.usage.output_tokens) == (whole.prompt_tokens, 30)
    with client.responses.stream(**settings) as stream:
        events = list(stream)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == whole.text
    with client.responses.stream(**settings, extra_body={"stop": whole.text[9:14]}) as stream:
        assert whole.text.startswith(stream.get_final_response().output_text)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    items = client.responses.create(**{**settings, "input": [SAID[1]]})
    assert items.output_text == whole.text
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    assert json.loads(client.responses.create(**settings, text=form).output_text)["n"] in (1, 2)


@pytest.mark.parametrize("more", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_functions_are_called_in_form(client: Any, more: dict[str, Any]) -> None:
    sampled = {name: value for name, value in more.items() if name != "repetition_penalty"}
    settings = {"model": "talker", "messages": SAID, "max_tokens": 120, "temperature": 0, **sampled}
    settings |= {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}}
    done = client.chat.completions.create(**settings)
    (choice,) = done.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert fits(call.function)
    parts = [
        part
        for chunk in client.chat.completions.create(**settings, stream=True)
        for part in chunk.choices[0].delta.tool_calls or ()
    ]
    assert parts[0].function.name == "weather"
    assert parts[0].id
    assert "".join(part.function.arguments or "" for part in parts) == call.function.arguments
    # what came goes back, with an answer
    back = [*SAID, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "It rains."}]
    none = client.chat.completions.create(**{**settings, "messages": back, "tool_choice": "none", "max_tokens": 5})
    assert none.choices[0].message.tool_calls is None


def test_errors_are_the_clients_own(served: Served, client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="the model 'gpt-4' is not served here"):
        client.completions.create(model="gpt-4", prompt="x")
    with pytest.raises(openai.BadRequestError, match="n is 0, expected a whole number, 1 or more") as bad:
        client.completions.create(model="talker", prompt="x", n=0)
    assert bad.value.param == "n"
    with pytest.raises(openai.BadRequestError, match="the role of message 0 is 'robot'"):
        client.chat.completions.create(model="talker", messages=[{"role": "robot", "content": "x"}])
    with (
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError, match="the API key is missing or wrong"),
    ):
        stranger.models.list()


def test_a_prediction_is_counted(client: Any) -> None:
    whole = truth(max_new_tokens=60)
    settings = {"model": "talker", "prompt": PROMPT, "max_tokens": 60, "temperature": 0}
    content = {"type": "content", "content": whole.text}
    done = client.completions.create(**settings, extra_body={"prediction": content})
    assert done.choices[0].text == whole.text
    assert done.usage.completion_tokens_details.accepted_prediction_tokens > 0
