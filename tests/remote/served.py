"""A host on this machine, and what clients of it have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

import foretoken
from foretoken.api.hosting import host as hosted
from foretoken.api.remote import connect
from foretoken.remote.client import RemoteVerifier
from foretoken.remote.host import Host, Listening
from foretoken.remote.limits import Limits

pytest.importorskip("websockets")

MODEL = "stdlib-1m"
PROMPT = "def test_one(self):\n    self.assertEqual(1, 1)\n\n\ndef test_two(self):"
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 5, "top_p": 0.9, "repetition_penalty": 1.1}


@cache
def plain() -> foretoken.Model:
    return foretoken.load(MODEL, draft="none")


def truth(prompt: Any = PROMPT, **settings: Any) -> foretoken.Completion:
    return plain().generate(prompt, **settings)


@contextmanager
def serving(limits: Limits | None = None, **listening: Any) -> Iterator[Host]:
    host = hosted(plain(), Listening(**{"port": 0, **listening}), limits or Limits())
    try:
        yield host
    finally:
        host.close()


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with serving() as its:
        yield its


Connect = Callable[..., foretoken.Model]


def client(host: Host, **settings: Any) -> foretoken.Model:
    return connect(host.url, **{"pace": "fixed", **settings})


def verifier_of(model: foretoken.Model) -> RemoteVerifier:
    verifier = model._verifier
    assert isinstance(verifier, RemoteVerifier)
    return verifier


def conversed(model: foretoken.Model, its: foretoken.Model) -> list[foretoken.Completion]:
    """The answers of a model in a conversation, each of which has to be that of `its`."""
    answers = []
    talks = [each.chat(plain=True) for each in (model, its)]
    for said in ("def f(x):", "class A:", "import os"):
        both = []
        for talk in talks:
            stream = talk.send(said, max_new_tokens=16, ignore_eos=True)
            both.append(([piece.token for piece in stream], stream.completion))
        assert both[0][0] == both[1][0]
        answers.append(both[0][1])
    return answers
