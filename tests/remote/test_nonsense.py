"""Who says what makes no sense, by a fault or on purpose, is told so or hung up, and disturbs nobody."""

from __future__ import annotations

import random
import socket
import time
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

import foretoken
from foretoken.errors import InputError, RemoteError
from foretoken.remote.client import RemoteVerifier
from foretoken.remote.host import Host
from foretoken.remote.wire import (
    VERSION,
    Code,
    DraftBody,
    ErrorBody,
    Kind,
    Message,
    OpenBody,
    ReadyBody,
    VerdictBody,
    to_json,
)
from tests.remote.served import PROMPT, client, host, truth, verifier_of

__all__ = ["host"]

COUNT = 48


def answers(verifier: RemoteVerifier, count: int, *messages: Message) -> list[Message]:
    """The first answers to some messages, of which the client itself hears nothing."""
    heard: list[Message] = []
    verifier.link._heard = heard.append
    for message in messages:
        verifier.link.send(message)
    until = time.monotonic() + 10
    while len(heard) < count and time.monotonic() < until:
        time.sleep(0.01)
    return heard


def opening(asked: dict[str, Any], prompt: tuple[int, ...] = (5, 6, 7), session: int = 1, **more: Any) -> Message:
    return Message(Kind.OPEN, session, more.pop("round", 0), OpenBody(asked, prompt, **more).packed())


def test_a_text_that_the_model_would_not_write_is_refused(host: Host) -> None:
    wrong = opening({"max_new_tokens": 9}, output=(1, 2, 3), round=3)
    (told,) = answers(verifier_of(client(host, draft="none")), 1, wrong)
    assert ErrorBody.read(told.body).code == Code.OTHER


NONSENSE = [
    ({"temperature": -1.0}, "temperature is -1.0"),
    ({"max_new_tokens": "many"}, "max_new_tokens is 'many'"),
    ({"nonsense": 1}, "there is no setting 'nonsense'"),
    ({"n" * 99: 1}, "a setting has a name of 99 characters"),
    ({"end_tokens": [1 << 22]}, "a token is 4194304"),
    ({"end_tokens": "all"}, "end_tokens are a str"),
    ({"logprobs": 3}, "logits do not travel"),
    ({"conversation": -1}, "conversation is -1"),
    ({"completion": 1e9}, "completion is 1000000000.0"),
    ({"prompt_of": []}, "prompt_of is []"),
    ({"logit_bias": {"\u00b2": 1.0}}, "logit_bias names token"),
    ({"logit_bias": {"1" * 5000: 1.0}}, "logit_bias names token"),
    ({"features": "normed"}, "features are a str"),
    ({"features": ["hidden.1"] * 2}, "hidden states before layers [1, 1]"),
    ({"features": ["normed"], "have": -1}, "have is -1"),
    ({"stop": ["x"] * 65}, "stop has more than 64 texts"),
    ({"stop": ["x" * 1001]}, "one of more than 1000 characters"),
]


@pytest.mark.parametrize(("asked", "message"), NONSENSE, ids=[message for _, message in NONSENSE])
def test_a_client_that_asks_for_nonsense_is_told_so(host: Host, asked: dict[str, Any], message: str) -> None:
    wrong = (opening(asked), opening({}, (), 2), opening({}, (1 << 22,), 3))
    told = [ErrorBody.read(each.body) for each in answers(verifier_of(client(host, draft="none")), 3, *wrong)]
    assert [each.code for each in told] == [Code.REFUSED] * 3
    assert message in told[0].text
    assert "the prompt has 0 tokens" in told[1].text
    assert "a token is 4194304" in told[2].text


def test_a_draft_of_as_many_tokens_as_a_message_holds_is_checked(host: Host) -> None:
    its = truth(max_new_tokens=256, ignore_eos=True)
    verifier = verifier_of(client(host, draft="none"))
    prompt = tuple(foretoken.load("stdlib-1m", draft="none").tokens_of(PROMPT))
    (ready,) = answers(verifier, 1, opening({"max_new_tokens": 999}, prompt))
    assert ReadyBody.read_from(ready.body).tokens == its.tokens[:1]
    body = DraftBody(len(prompt) + 1, its.tokens[1:255], tuple(range(-1, 253)))
    (verdict,) = answers(verifier, 1, Message(Kind.DRAFT, 1, 1, body.packed(), 9))
    assert VerdictBody.read(verdict.body).tokens == its.tokens[1:256]


def test_a_late_opening_takes_nothing_back(host: Host) -> None:
    verifier = verifier_of(client(host, draft="none"))
    first, empty = opening({"max_new_tokens": 9}), DraftBody(4, (), ()).packed()
    answers(verifier, 1, first)
    (one,) = answers(verifier, 1, Message(Kind.DRAFT, 1, 1, empty, 1))
    again, other = answers(verifier, 2, first, Message(Kind.DRAFT, 1, 1, empty, 2))
    assert (again.kind, other.kind, other.body) == (Kind.READY, Kind.VERDICT, one.body)
    base = VerdictBody.read(one.body).base + 1
    (last,) = answers(verifier, 1, Message(Kind.DRAFT, 1, 2, DraftBody(base, (), ()).packed(), 3))
    assert last.kind == Kind.VERDICT


def test_a_draft_for_a_round_that_the_host_never_reaches_is_told_so(host: Host) -> None:
    verifier, far = verifier_of(client(host, draft="none")), DraftBody(9, (), ()).packed()
    answers(verifier, 1, opening({"max_new_tokens": 9}))
    (told,) = answers(verifier, 1, *[Message(Kind.DRAFT, 1, 7, far, 1)] * 2)
    assert ErrorBody.read(told.body).code == Code.GONE


def test_a_client_that_does_not_read_is_hung_up_and_disturbs_nobody(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    from websockets.sync.client import connect

    monkeypatch.setattr("foretoken.remote.host._WAITING", 8)
    model = client(host, draft="lookup")
    with connect(host.url, max_queue=1) as rude:
        hello = to_json(versions=[VERSION], client="0123456789abcdef", connection=1, token=None)
        rude.send(Message(Kind.HELLO, body=hello).packed())
        until, hung_up = time.monotonic() + 60.0, False
        try:
            while time.monotonic() < until:  # each answer is a tokenizer, and nobody reads them
                for _ in range(100):
                    rude.send(Message(Kind.FILES).packed())
                time.sleep(0.01)  # on a busy machine the host may be slow to notice
        except (OSError, ConnectionClosed):
            hung_up = True
        assert hung_up
        done = model.generate(PROMPT, max_new_tokens=COUNT, ignore_eos=True)
    assert done.tokens == truth(max_new_tokens=COUNT, ignore_eos=True).tokens


def test_settings_that_are_too_large_for_the_network_are_refused(host: Host) -> None:
    with pytest.raises(InputError, match="the settings have more than 262,144 bytes"):
        client(host, draft="none").generate(PROMPT, regex="a" * 300_000)


def test_a_page_in_a_browser_may_not_use_a_host(host: Host) -> None:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect
    from websockets.typing import Origin

    with pytest.raises(InvalidStatus, match="403"), connect(host.url, origin=Origin("http://evil.example")):
        pass


def test_a_host_that_is_at_fault_ends_its_text_with_an_error(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    model = client(host, draft="none")
    verifier = verifier_of(model)
    heard = verifier._heard

    def spoiled(message: Message) -> None:
        if message.kind == Kind.VERDICT:
            body = VerdictBody.read(message.body)
            message = Message(
                Kind.VERDICT, message.session, message.round, body._replace(base=1).packed(), message.mark
            )
        heard(message)

    verifier.link._heard = spoiled
    with pytest.raises(RemoteError, match="a verdict for position 1 came from the host, which makes no sense here"):
        model.generate(PROMPT, max_new_tokens=8)


def test_who_speaks_nonsense_does_not_disturb_the_others(host: Host) -> None:
    from websockets.sync.client import connect

    chance, model = random.Random(0), client(host, draft="lookup")
    stream = model.stream(PROMPT, max_new_tokens=COUNT, ignore_eos=True)
    next(stream)
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", int(host.url.rpartition(":")[2]))) as raw:
            raw.sendall(chance.randbytes(100))
        with connect(host.url) as other:
            other.send(chance.choice([b"", chance.randbytes(40), "text"]))
        with connect(host.url) as other:
            hello = to_json(versions=[VERSION], client="0123456789abcdef", connection=1, token=None)
            other.send(Message(Kind.HELLO, body=hello).packed())
            other.recv()
            kind = chance.choice([Kind.DRAFT, Kind.OPEN, Kind.VERDICT, Kind.CLOSE, Kind.FORGET])
            other.send(Message(kind, 3, 1, chance.randbytes(30)).packed())
            other.send(b"\x01" + chance.randbytes(20))
    for _ in stream:
        pass
    assert stream.completion.tokens == truth(max_new_tokens=COUNT, ignore_eos=True).tokens


def test_an_error_of_the_host_ends_the_text_and_not_the_connection(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    model = client(host, draft="lookup")
    monkeypatch.setattr("foretoken.remote.client.asked_of", lambda *_: {"max_new_tokens": 0})
    with pytest.raises(InputError, match="the host: max_new_tokens is 0"):
        model.generate(PROMPT)
    monkeypatch.undo()
    assert model.generate(PROMPT, max_new_tokens=4).tokens == truth(max_new_tokens=4).tokens
