"""A slice of the soak of a server, and of its rough use; and that both would see what they are there to see."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("llguidance", reason="the extra 'grammar' is not installed")

import foretoken
from foretoken.kernels import native
from tests.prove.serving import soak
from tests.prove.serving.__main__ import faults, run
from tests.prove.serving.answers import Difference, Streamed, whole
from tests.prove.serving.asks import Ask
from tests.prove.serving.rough import Size

RARE = {"aborted while it was sent", "biased tokens", "echo", "grammars", "predictions", "reset", "talks that go on"}


@pytest.mark.skipif(native.module() is None, reason="the native module is not built, or is switched off")
def test_a_slice_of_the_soak() -> None:
    size = Size(connections=0, deaf=0, huge=0, pipelined=5, garbage=0)
    record = run(requests=90, seed=1, model="stdlib-1m", distinct=20, clients=8, rough_too=size, longest=200)
    its = record["soak"]
    assert set(its["never_happened"]) <= RARE, "the soak is vacuous"
    its["never_happened"] = []
    assert faults(record, short=True) == [], record
    assert its["requests"] == 90
    assert its["compared_tokens"] > 500


@pytest.fixture(scope="module")
def ask() -> Ask:
    done = foretoken.load("stdlib-1m", draft="none").generate("x = 1\n", max_new_tokens=4, logprobs=0)
    return Ask("/v1/completions", {}, (), (done,))


def choice_of(ask: Ask) -> dict[str, Any]:
    (done,) = ask.expected
    values = [each.logprob for each in done.logprobs or ()]
    return {
        "index": 0,
        "text": done.text,
        "token_ids": list(done.tokens),
        "logprobs": {"token_logprobs": values},
        "finish_reason": "length",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (None, None),
        ("text", "other"),
        ("token_ids", [1, 2, 3, 4]),
        ("logprobs", {"token_logprobs": [0.0] * 4}),
        ("logprobs", None),
        ("finish_reason", "stop"),
        ("index", 1),
    ],
)
def test_a_difference_is_seen(ask: Ask, name: str | None, value: Any) -> None:
    choice = {**choice_of(ask), **({} if name is None else {name: value})}
    content = json.dumps({"choices": [choice], "usage": {"completion_tokens": 4}}).encode()
    if name is None:
        assert whole(ask, content) == 4
        return
    with pytest.raises(Difference):
        whole(ask, content)


def test_a_difference_in_a_part_of_a_stream_is_seen(ask: Ask) -> None:
    (done,) = ask.expected
    for tokens, right in ((list(done.tokens[:2]), True), ([done.tokens[0], done.tokens[1] + 1], False)):
        streamed = Streamed(ask)
        event = {"choices": [{**choice_of(ask), "text": "", "token_ids": tokens, "finish_reason": None}]}
        streamed.line(b"data: " + json.dumps(event).encode())
        if right:
            assert streamed.part() == 2
            with pytest.raises(RuntimeError, match="broke off"):
                streamed.whole()
        else:
            with pytest.raises(Difference):
                streamed.part()


def test_memory_that_grows_is_seen() -> None:
    flat = soak.memory([(done, 1_000_000 + done) for done in range(100)], 100)
    assert soak.grew_too_much(flat) is None
    grown = soak.memory([(done, 1_000_000 + 1000 * done) for done in range(100)], 100)
    assert str(soak.grew_too_much(grown)).startswith("memory grew by 7.8 %")
