"""Spoiled messages, in both directions: nobody crashes, nobody hangs, and the texts of others are what they were."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from foretoken.errors import InputError, RemoteError
from foretoken.remote.host import Host
from foretoken.remote.wire import (
    Code,
    DraftBody,
    ErrorBody,
    FeaturesBody,
    Kind,
    Message,
    OpenBody,
    ReadyBody,
    VerdictBody,
)
from tests.remote.served import PROMPT, SAMPLED, client, host, truth, verifier_of

__all__ = ["host"]

COUNTS = [2_000, pytest.param(500_000, marks=pytest.mark.prove)]
ASKED = [
    {},
    SAMPLED,
    {"stop": ["x"], "conversation": 3},
    {"regex": "[a-z]+", "prompt_of": 1},
    {"end_tokens": [3]},
    {"features": ["hidden.1", "normed"], "have": 1},
]
TO_HOST = [
    *(Message(Kind.OPEN, at, 0, OpenBody(asked, (5, 6, 7)).packed()) for at, asked in enumerate(ASKED)),
    Message(Kind.OPEN, 1, 2, OpenBody({}, (5, 6, 7), (8, 9)).packed()),
    *(Message(Kind.DRAFT, at, 1, DraftBody(4, (5, 6), (-1, 0)).packed(), at) for at in range(3)),
    Message(Kind.CLOSE, 1),
    Message(Kind.FORGET, 3),
]
TO_CLIENT = [
    Message(Kind.READY, 1, 0, ReadyBody(3, 0, 4, (5,), None).packed()),
    Message(Kind.VERDICT, 1, 1, VerdictBody(4, (5, 6), None).packed()),
    Message(Kind.VERDICT, 1, 1, VerdictBody(4, (5, 6), None, b"\x00\x3c" + b"\x05" * 18).packed()),
    Message(Kind.FEATURES, 1, 0, FeaturesBody(0, b"\x00\x3c" + b"\x05" * 18).packed()),
    Message(Kind.PASSED, 1, 1),
    Message(Kind.FILES, 0, 0, b"files"),
    *(Message(Kind.ERROR, 1, 0, ErrorBody(code, "why").packed()) for code in Code),
]


def spoiled(messages: list[Message], count: int, seed: int) -> Iterator[bytes]:
    """Messages with some bytes changed, cut off, put in or taken out. The header mostly stays that of a message."""
    chance = random.Random(seed)
    for _ in range(count):
        data = bytearray(chance.choice(messages).packed())
        for _ in range(chance.choice((0, 1, 1, 2, 4))):
            at = (
                chance.randrange(len(data))
                if chance.random() < 0.3
                else chance.randrange(min(16, len(data)), len(data) + 1)
            )
            kind = chance.random()
            if kind < 0.6 and at < len(data):
                data[at] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
            elif kind < 0.75:
                del data[at:]
            else:
                data[at:at] = chance.randbytes(chance.randrange(4))
            if not data:
                break
        if len(data) >= 16 and chance.random() < 0.8:  # the size is right, so that the body is looked at
            data[12:16] = (len(data) - 16).to_bytes(4, "little")
        yield bytes(data)


@pytest.mark.parametrize("count", COUNTS)
def test_a_host_that_is_sent_spoiled_messages_serves_the_others(host: Host, count: int) -> None:
    model, answers, refused = client(host, draft="lookup"), [0], 0

    def send(message: Message) -> None:
        answers[0] += 1

    for number, data in enumerate(spoiled(TO_HOST, count, 1)):
        try:
            host.room.take("a hostile client", 1, Message.read(data), send)
        except (RemoteError, InputError):
            refused += 1
        if number % (count // 4) == 0:
            done = model.generate(PROMPT, max_new_tokens=24, ignore_eos=True, **SAMPLED)
            assert done.tokens == truth(max_new_tokens=24, ignore_eos=True, **SAMPLED).tokens
    assert not host.room.over.is_set()
    assert host.room.sessions <= host.room.limits.of_client
    assert min(answers[0], refused) > count // 20
    for session in range(256):
        host.room.take("a hostile client", 1, Message(Kind.CLOSE, session), send)


@pytest.mark.parametrize("count", COUNTS)
def test_a_client_that_is_sent_spoiled_messages_ends_or_goes_on(host: Host, count: int) -> None:
    refused, ended = 0, 0
    stream = client(host, draft="none").stream(PROMPT, max_new_tokens=99, ignore_eos=True)
    for number, data in enumerate(spoiled(TO_CLIENT, count, 2)):
        if number % (count // 8) == 0:
            stream.close()
            model = client(host, draft="none")
            stream = model.stream(PROMPT, max_new_tokens=99, ignore_eos=True)
            next(stream)
            verifier = verifier_of(model)
        try:
            verifier._heard(Message.read(data))
        except RemoteError:
            refused += 1
        if number % (count // 8) == count // 16:
            over = threading.Timer(30, verifier.give_up, (RemoteError("it hangs"),))
            over.start()
            try:
                for _ in stream:
                    pass
            except (RemoteError, InputError) as error:
                ended += "it hangs" not in str(error)
            else:
                ended += 1
            over.cancel()
    stream.close()
    assert ended == 8
    assert refused > count // 20
