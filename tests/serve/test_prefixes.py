"""Requests that begin alike: what one has read, the next does not read again, and the text is the same."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.serve.served import PROMPT, SAMPLED, Served, plain, serving, truth

SYSTEM = "import os\nimport sys\n\n\ndef first(a, b):\n    return a + b\n\n\nclass Stack:\n    def __init__(self):\n"


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(draft="mxfp4,lookup") as its:
        yield its


def cached(answer: Any) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_a_beginning_is_read_once(served: Served) -> None:
    first = served.complete(prompt=SYSTEM + "        self.items = []\n")
    second = served.complete(prompt=SYSTEM + "        self.size = 0\n", **SAMPLED)
    assert cached(first) == 0
    shared = len(plain().tokens_of(SYSTEM)) - 3
    assert shared <= cached(second) < second["usage"]["prompt_tokens"]
    assert first["choices"][0]["text"] == truth(SYSTEM + "        self.items = []\n", max_new_tokens=24).text
    its = truth(SYSTEM + "        self.size = 0\n", max_new_tokens=24, **SAMPLED)
    assert second["choices"][0]["text"] == its.text
    assert second["timings"]["prompt_n"] == second["usage"]["prompt_tokens"] - cached(second)
    values = served.ask("/metrics").body.decode()
    assert f'prefix_cache_hits_total{{engine="0",model_name="stdlib-1m"}} {cached(second)}.0' in values


def test_a_conversation_goes_on_where_it_was(served: Served) -> None:
    text = SYSTEM
    for turn in range(4):
        answer = served.complete(prompt=text, max_tokens=20, ignore_eos=True, return_token_ids=True)
        its = answer["choices"][0]
        assert its["token_ids"] == list(truth(text, max_new_tokens=20, ignore_eos=True).tokens)
        if turn:
            assert cached(answer) > answer["usage"]["prompt_tokens"] - 30
        text += its["text"] + "\n\n\ndef following(x):"


def test_log_probabilities_of_a_prompt_are_of_all_of_it(served: Served) -> None:
    served.complete()
    one, other = (served.complete(prompt=PROMPT, echo=True, logprobs=0, max_tokens=1) for _ in range(2))
    assert one["choices"] == other["choices"]
    assert cached(other) == 0
    assert len(one["choices"][0]["logprobs"]["token_logprobs"]) == one["usage"]["prompt_tokens"] + 1


def test_what_is_kept_leaves_room_for_what_is_under_way() -> None:
    with serving(limits={"positions": 200}) as served, ThreadPoolExecutor(3) as pool:
        prompts = [f"{SYSTEM}        self.value = {number}\n" for number in range(6)]
        answers = list(pool.map(lambda prompt: served.complete(prompt=prompt, max_tokens=30), prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer["choices"][0]["text"] == truth(prompt, max_new_tokens=30).text
        worker = served.server.worker
        assert worker.prefixes is not None
        assert 0 < worker.prefixes.positions <= 200
        assert sum(map(cached, answers)) > 0


def test_nothing_is_kept_if_that_is_asked_for() -> None:
    with serving(limits={"prefixes": False}) as served:
        assert [cached(served.complete()) for _ in range(2)] == [0, 0]
