"""litellm: chats and completions, whole and streamed, and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import litellm
import pytest

import foretoken
from tests.prove.serving.process import Process

CLIENT = "litellm"
SAID: list[Any] = [{"role": "user", "content": "class Stack:"}]
PROMPT = "import os\nimport "


@pytest.fixture(scope="module")
def model(folder: Path) -> foretoken.Model:
    return foretoken.load(folder, draft="none", dtype="float32")


def settings_of(server: Process, kind: str = "openai") -> dict[str, Any]:
    return {
        "model": f"{kind}/talker",
        "api_base": f"{server.url}/v1",
        "api_key": "none",
        "max_tokens": 40,
        "num_retries": 0,
    }


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["openai", "hosted_vllm"])
def test_chats(server: Process, model: foretoken.Model, kind: str, settings: dict[str, Any]) -> None:
    whole = model.generate(SAID, max_new_tokens=40, **settings)
    done = litellm.completion(messages=SAID, **settings_of(server, kind), **settings)
    assert done.choices[0].message.content == whole.text
    assert done.choices[0].finish_reason == whole.finish_reason
    assert done.usage.completion_tokens == len(whole.tokens)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(litellm.completion(messages=SAID, **settings_of(server, kind), **settings, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole.text
    counts = [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)]
    assert counts == [len(whole.tokens)]


def test_completions(server: Process, model: foretoken.Model) -> None:
    whole = model.generate(PROMPT, max_new_tokens=40)
    its = settings_of(server, "text-completion-openai")
    done = litellm.text_completion(prompt=PROMPT, temperature=0, **its)
    assert done.choices[0].text == whole.text
    chunks = litellm.text_completion(prompt=PROMPT, temperature=0, stream=True, **its)
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == whole.text


def test_errors_have_their_classes(server: Process) -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature is -1"):
        litellm.completion(messages=SAID, temperature=-1, **settings_of(server))
    with pytest.raises(litellm.NotFoundError, match="is not served here"):
        litellm.completion(messages=SAID, **{**settings_of(server), "model": "openai/other"})
