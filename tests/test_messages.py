"""Prompts that are messages: the chat template writes them, wherever a prompt is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretoken
from foretoken.api.model import Model
from foretoken.errors import BatchError, InputError, PromptError, SettingError
from foretoken.results.completion import Completion
from foretoken.transcript.record import write
from tests.talks import talking, written

MESSAGES = [
    {"role": "system", "content": "Speak Python."},
    {"role": "user", "content": "def add(a, b):"},
    {"role": "assistant", "content": "    return a + b"},
    {"role": "user", "content": "class Stack:"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return foretoken.load(talking(tmp_path_factory.mktemp("talking") / "model"))


def streamed(model: Model, prompt: Any, **settings: Any) -> Completion:
    for _ in (stream := model.stream(prompt, **settings)):
        pass
    return stream.completion


@pytest.mark.parametrize(
    "call",
    [
        Model.generate,
        streamed,
        lambda model, prompt, **settings: model.completions(prompt, n=1, **settings)[0],
        lambda model, prompt, **settings: model.generate_many([prompt, "x"], **settings)[0],
    ],
)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_messages_are_a_prompt_wherever_one_is_taken(model: Model, call: Callable[..., Completion], count: int) -> None:
    got = call(model, MESSAGES[:count], max_new_tokens=9, hash_logits=True)
    expected = model.generate(written(MESSAGES[:count]), max_new_tokens=9, hash_logits=True)
    assert (got.tokens, got.text, got.logits_sha256) == (expected.tokens, expected.text, expected.logits_sha256)
    assert model.tokens_of(MESSAGES[:count]) == model.tokens_of(written(MESSAGES[:count]))


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ([{"role": "user"}], "message 0 is {'role': 'user'}, expected a role and a content, both text"),
        (
            [MESSAGES[1], {"role": "user", "text": "x"}],
            "message 1 is {'role': 'user', 'text': 'x'}, expected a role and",
        ),
        ([{**MESSAGES[1], "name": "x"}], "expected a role and a content, both text"),
        ([{"role": 7, "content": "x"}], "message 0 is {'role': 7, 'content': 'x'}, expected a role and a content"),
        ([{"role": "user", "content": ["x"]}], "the content of message 0 is ['x'], expected text"),
        ([{"role": "user", "content": "\ud800"}], "the content of message 0 is not text: character 0 is half a char"),
        ([MESSAGES[1], 3], "expected text, token ids, or messages with a role and a content"),
        (MESSAGES[1], "expected text, token ids, or messages with a role and a content"),
        ([MESSAGES[1], MESSAGES[0]], "the chat template refuses the conversation (system comes first)"),
        ([{"role": "user", "content": "x " * 3000}], "the model's context holds 2048 with what follows; shorten the"),
    ],
)
def test_what_is_no_conversation_is_refused(model: Model, prompt: Any, reason: str) -> None:
    with pytest.raises(PromptError) as error:
        model.generate(prompt)
    assert reason in str(error.value)
    with pytest.raises(BatchError) as several:
        model.generate_many(["x", prompt], max_new_tokens=1)
    assert reason in str(several.value.errors[1])


def test_a_model_without_a_template_says_what_to_do() -> None:
    model = foretoken.load("stdlib-1m")
    message = (
        "the model has no chat template, so it cannot read messages (--chat); give it text, or take a model that was "
        "tuned for conversations"
    )
    for call in (model.generate, model.stream, model.completions, model.tokens_of):
        with pytest.raises(PromptError) as error:
            call(MESSAGES)  # type: ignore[operator]
        assert str(error.value) == message
    with pytest.raises(PromptError, match=r"message 0 is .*, expected a role and a content, both text"):
        model.generate([{"role": "user"}])  # what is wrong in it comes first
    model.tokenizer = None
    with pytest.raises(PromptError) as error:
        model.generate(MESSAGES)
    assert str(error.value) == message


def test_many_prompts_are_not_the_messages_of_one(model: Model) -> None:
    with pytest.raises(SettingError, match=r"expected several prompts; give one prompt to `generate`"):
        model.generate_many(MESSAGES)  # type: ignore[call-overload]
    assert model.generate_many([]) == []


@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.8, "seed": 3}])
def test_what_answers_messages_can_be_proven(model: Model, tmp_path: Path, sampled: dict[str, Any]) -> None:
    path = tmp_path / "record.json"
    done = foretoken.record(path, model, MESSAGES, max_new_tokens=9, **sampled)
    found = foretoken.verify(path, draft="none")
    assert (found.verified, found.compared_tokens) == (True, len(done.tokens)), found.difference
    told = json.loads(path.read_text(encoding="utf-8"))["prompt"]
    assert told == {"text": None, "tokens": list(model.tokens_of(written(MESSAGES)))}


def test_a_stream_that_is_closed_after_its_last_piece_was_not_cancelled(model: Model) -> None:
    whole = model.generate("x = 1", max_new_tokens=5, audit=True)
    stream = model.stream("x = 1", max_new_tokens=5, audit=True)
    for _ in whole.tokens:
        next(stream)
    stream.close()
    done = stream.completion
    assert (done.tokens, done.finish_reason, done.audit) == (whole.tokens, whole.finish_reason, whole.audit)
    early = model.stream("x = 1", max_new_tokens=5)
    next(early)
    early.close()
    assert "1 token, cancelled, draft" in repr(early.completion)


def test_what_was_cancelled_is_not_recorded(model: Model, tmp_path: Path) -> None:
    settings = foretoken.GenerateSettings(hash_logits=True)
    stream = model.stream("x = 1", settings)
    next(stream)
    stream.close()
    with pytest.raises(InputError, match="the completion was cancelled, so nothing proves where it ends; generate it"):
        write(tmp_path / "record.json", model, "x = 1", settings, stream.completion)
    assert list(tmp_path.iterdir()) == []
