"""Calls beside each other, on one model: threads, streams that pause, batches that are not read on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import foretoken
from foretoken.pace.auto import AutoPace
from foretoken.results.completion import Completion
from tests.many import PROMPTS, SETTINGS, expect_all_the_same, expect_nothing_left, expect_same, model, truth


@pytest.mark.parametrize("draft", ["lookup", "mxfp4,lookup", "stdlib-1m:k=2:depth=3", "fractal"])
def test_two_threads_may_ask_at_once(draft: str) -> None:
    ours = model(draft)
    found: dict[str, list[Completion]] = {}
    failed: list[BaseException] = []
    barrier = threading.Barrier(len(SETTINGS))

    def ask(settings: str) -> None:
        try:
            barrier.wait()
            found[settings] = ours.generate_many(PROMPTS, at_once=3, hash_logits=True, logprobs=1, **SETTINGS[settings])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(settings,)) for settings in SETTINGS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for settings in SETTINGS:
        expect_all_the_same(found[settings], settings)
    expect_nothing_left(ours)


@pytest.mark.parametrize("draft", ["lookup", "mxfp4,lookup", "stdlib-1m:k=2:depth=3", "fractal"])
def test_who_pauses_blocks_nobody(draft: str) -> None:
    """A stream and a batch that are not read on, and a conversation: others generate meanwhile."""
    ours = model(draft)
    asked: dict[str, Any] = {"hash_logits": True, "logprobs": 1, **SETTINGS["greedy"]}
    stream = ours.stream(PROMPTS[1], **asked)
    next(stream)
    paused: Any = ours.generate_many(PROMPTS, as_completed=True, at_once=3, **asked)
    index, done = next(paused)
    expect_same(done, truth("greedy")[index])

    def others() -> list[Completion]:
        return ours.generate_many(PROMPTS, at_once=8, hash_logits=True, logprobs=1, **SETTINGS["sampled"])

    expect_all_the_same(others(), "sampled")
    expect_all_the_same(in_a_thread(others), "sampled")
    chat = ours.chat(plain=True)
    assert "".join(piece.text for piece in chat.send("x = 1\n", max_new_tokens=5))
    rest = dict(paused)
    assert {index, *rest} == set(range(len(PROMPTS)))
    for other, its in rest.items():
        expect_same(its, truth("greedy")[other])
    for _ in stream:
        pass
    expect_same(stream.completion, truth("greedy")[1])
    expect_nothing_left(ours)


def in_a_thread(call: Callable[[], list[Completion]]) -> list[Completion]:
    found: list[Completion] = []
    thread = threading.Thread(target=lambda: found.extend(call()))
    thread.start()
    thread.join(timeout=120)
    assert not thread.is_alive(), "it waits for somebody who is not asked"
    return found


@pytest.mark.parametrize("draft", ["mxfp4,lookup", "mxfp4:k=2,lookup", "lookup"])
def test_a_pace_that_adapts_serves_several_threads(draft: str) -> None:
    ours = foretoken.load("stdlib-1m", draft=draft)
    assert isinstance(ours.pace, AutoPace)
    prompts = [f"def number_{at}(" for at in range(6)]
    expected = foretoken.load("stdlib-1m", draft="none").generate_many(prompts, max_new_tokens=40)

    def ask(prompt: str) -> tuple[int, ...]:
        return tuple(ours.generate(prompt, max_new_tokens=40).tokens)

    with ThreadPoolExecutor(len(prompts)) as threads:
        found = list(threads.map(ask, prompts))
    assert found == [tuple(its.tokens) for its in expected]
