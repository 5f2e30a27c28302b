"""A text over a network is the text that the model writes where it is, token for token, with every draft."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

import foretoken
from foretoken.api.remote import connect
from foretoken.errors import DraftSpecError, InputError, PromptError, RemoteError, SettingError
from foretoken.pace.auto import AutoPace
from foretoken.remote.host import Host
from foretoken.remote.limits import Limits
from tests.remote.served import PROMPT, SAMPLED, client, conversed, host, plain, serving, truth

__all__ = ["host"]


@pytest.mark.parametrize("draft", ["none", "lookup", "stdlib-1m", "stdlib-1m:k=3:depth=4", "stdlib-1m,lookup"])
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_every_draft_gives_the_text_of_the_model(host: Host, draft: str, ahead: int, sampling: dict[str, Any]) -> None:
    model = client(host, draft=draft)
    model.far = replace(model.far, ahead=ahead)
    done = model.generate(PROMPT, max_new_tokens=40, **sampling)
    its = truth(max_new_tokens=40, **sampling)
    assert (done.tokens, done.text, done.finish_reason) == (its.tokens, its.text, its.finish_reason)
    assert (done.stats.accepted_tokens > 0) == (draft != "none")
    assert done.promise == "exact"
    assert done.arithmetic.endswith(" on the host")
    assert {*done.origins} <= {"target", *model.levels}


def test_load_takes_the_place_of_a_host_too(host: Host) -> None:
    model = foretoken.load(remote=host.url)
    assert model.generate(PROMPT, max_new_tokens=40).tokens == truth(max_new_tokens=40).tokens
    assert isinstance(model.pace, AutoPace)
    with pytest.raises(SettingError, match="the host has the model: leave one out"):
        foretoken.load("stdlib-1m", remote=host.url)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_new_tokens": 1},
        {"max_new_tokens": 60, "stop": ["assertEqual"]},
        {"max_new_tokens": 60, "stop": ["\n\n", "def"], "ignore_eos": True},
        {"max_new_tokens": 30, "logit_bias": {198: -5.0}, **SAMPLED},
        {"max_new_tokens": 20, "regex": "[a-z ]+"},
        {"max_new_tokens": 20, "grammar": "start: /[a-z ]+/"},
    ],
    ids=str,
)
def test_what_ends_or_shapes_a_text_does_so_over_a_network(host: Host, settings: dict[str, Any]) -> None:
    if "regex" in settings:
        pytest.importorskip("llguidance")
    done, its = client(host, draft="lookup").generate(PROMPT, **settings), truth(**settings)
    assert (done.tokens, done.text, done.finish_reason) == (its.tokens, its.text, its.finish_reason)
    assert done.stop_string == its.stop_string


def test_a_text_ends_where_the_context_is_full(host: Host) -> None:
    model = client(host, draft="lookup")
    prompt = [7] * (model.context_length - 20)
    done, its = (each.generate(prompt, max_new_tokens=99, ignore_eos=True) for each in (model, plain()))
    assert done.tokens == its.tokens
    assert len(done.tokens) == 20


def test_several_completions_and_conversations(host: Host) -> None:
    model, its = client(host, draft="lookup"), foretoken.load("stdlib-1m", draft="none")
    several = [each.completions(PROMPT, n=3, max_new_tokens=16, **SAMPLED) for each in (model, its)]
    assert [done.tokens for done in several[0]] == [done.tokens for done in several[1]]
    assert several[0][1].cached_tokens > 0
    assert conversed(model, its)[-1].cached_tokens > 0, "the host has not read all again"


def test_clients_share_the_passes_of_the_host() -> None:
    prompts = [PROMPT, "import os\n", "def add(", "class Stack:"]
    with serving() as host:
        models = [client(host, draft="lookup") for _ in prompts]
        found: dict[int, foretoken.Completion] = {}

        def work(at: int) -> None:
            found[at] = models[at].generate(prompts[at], max_new_tokens=48, ignore_eos=True)

        threads = [threading.Thread(target=work, args=(at,)) for at in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        checks = sum(done.stats.passes for done in found.values())
        assert host.room.passes < checks + len(prompts)
        assert host.room.checked > 0
    for at, prompt in enumerate(prompts):
        assert found[at].tokens == truth(prompt, max_new_tokens=48, ignore_eos=True).tokens


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"draft": "mxfp4"}, DraftSpecError, "needs the model's own weights, and these are on"),
        ({"draft": "fractal"}, DraftSpecError, "needs the model's own weights"),
        ({"memory": "1GiB"}, SettingError, "memory is for a model that is loaded here"),
        ({"cache": False}, SettingError, "cache is for a model that is loaded here"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anybody_is_called(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        connect("ws://127.0.0.1:9", **settings)


def test_what_cannot_be_had_is_refused_with_the_reason(host: Host) -> None:
    model = client(host, draft="lookup")
    for settings in ({"audit": True}, {"logprobs": 2}, {"keep_logits": True}, {"hash_logits": True}):
        with pytest.raises(SettingError, match="the model is on a host, and logits do not travel"):
            model.generate(PROMPT, **settings)
    with pytest.raises(PromptError, match="the model's context holds"):
        model.generate([1] * 5000)
    with pytest.raises(InputError, match="the host: "):  # a wrong grammar, or one that it cannot read
        model.generate(PROMPT, regex="(")
    assert model.generate(PROMPT, max_new_tokens=4).tokens == truth(max_new_tokens=4).tokens, "it goes on"


def test_who_does_not_know_the_token_stays_outside(tmp_path: Any) -> None:
    file = tmp_path / "token"
    file.write_text("correct horse\n", encoding="utf-8")
    with serving(token="correct horse") as host:
        with pytest.raises(RemoteError, match="refuses: the token is wrong"):
            client(host, draft="lookup")
        model = client(host, draft="lookup", token_file=file)
        assert model.generate(PROMPT, max_new_tokens=4).tokens == truth(max_new_tokens=4).tokens


def test_a_host_takes_on_no_more_than_it_may() -> None:
    with serving(Limits(sessions=2)) as host:
        model, other = client(host, draft="lookup"), client(host, draft="none", patience=0.3)
        several = model.completions(PROMPT, n=5, max_new_tokens=8, **SAMPLED)  # two at once
        assert len({done.tokens for done in several}) > 1
        streams = [model.stream(PROMPT, max_new_tokens=8) for _ in range(2)]
        for stream in streams:
            next(stream)
        with pytest.raises(RemoteError, match="the host has 2 sessions"):
            other.generate(PROMPT, max_new_tokens=8)
        streams[0].close()
        patient = client(host, draft="none")  # until the host has heard of it
        assert patient.generate(PROMPT, max_new_tokens=8).tokens == truth(max_new_tokens=8).tokens


def test_a_host_takes_on_no_more_than_its_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretoken.api.hosting.memory_left", lambda: 0)  # the room of one whole context
    with serving() as host:
        model = client(host, draft="none", patience=0.3)
        talk = model.chat(plain=True)
        list(talk.send("import os", max_new_tokens=4))
        stream = model.stream(PROMPT, max_new_tokens=100)  # what was kept of the conversation gives way
        next(stream)
        with pytest.raises(RemoteError, match="the host has no memory left for a text of"):
            model.generate([1] * 1000, max_new_tokens=1000)
        for _ in stream:
            pass
    assert stream.completion.tokens == truth(max_new_tokens=100).tokens


def test_nobody_there_is_said_in_one_line() -> None:
    with pytest.raises(RemoteError, match=r"the host ws://127\.0\.0\.1:9 cannot be reached"):
        connect("ws://127.0.0.1:9")
    with pytest.raises(SettingError, match="expected ws://HOST:PORT or wss://HOST:PORT"):
        connect("http://127.0.0.1:9")
