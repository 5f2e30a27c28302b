"""LangChain: whole answers and streams, of chats and of completions, with their counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI, OpenAI

import foretoken
from tests.prove.serving.process import Process

CLIENT = "langchain-openai"
SAID: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "def add(a, b):"}]
PROMPT = "import os\nimport "


@pytest.fixture(scope="module")
def model(folder: Path) -> foretoken.Model:
    return foretoken.load(folder, draft="none", dtype="float32")


def client(server: Process, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{server.url}/v1", api_key="none", model="talker", max_tokens=40, **settings)


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "sampled"])
def test_chats(server: Process, model: foretoken.Model, settings: dict[str, Any]) -> None:
    whole = model.generate(SAID, max_new_tokens=40, **settings)
    its = client(server, stream_usage=True, **settings)
    done = its.invoke(SAID)
    assert done.content == whole.text
    assert done.response_metadata["finish_reason"] == whole.finish_reason
    counts = {"input_tokens": whole.prompt_tokens, "output_tokens": len(whole.tokens)}
    assert {name: done.usage_metadata[name] for name in counts} == counts
    chunks = list(its.stream(SAID))
    assert len(chunks) > 3
    text = "".join(str(chunk.content) for chunk in chunks)
    assert text == whole.text
    total = sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata)
    assert total == len(whole.tokens)


def test_log_probabilities_and_stops(server: Process, model: foretoken.Model) -> None:
    whole = model.generate(SAID, max_new_tokens=40, logprobs=2, stop="\n\n")
    done = client(server, temperature=0, logprobs=True, top_logprobs=2).invoke(SAID, stop=["\n\n"])
    assert done.content == whole.text
    values = [each["logprob"] for each in done.response_metadata["logprobs"]["content"]]
    assert values == [each.logprob for each in whole.logprobs or ()]


def test_several_at_once(server: Process, model: foretoken.Model) -> None:
    talks = [[{"role": "user", "content": f"def f{number}("}] for number in range(6)]
    done = client(server, temperature=0).batch(talks)
    assert [each.content for each in done] == [model.generate(talk, max_new_tokens=40).text for talk in talks]


def test_completions(server: Process, model: foretoken.Model) -> None:
    its = OpenAI(base_url=f"{server.url}/v1", api_key="none", model="talker", max_tokens=40, temperature=0)
    whole = model.generate(PROMPT, max_new_tokens=40)
    assert its.invoke(PROMPT) == whole.text
    assert "".join(its.stream(PROMPT)) == whole.text
