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
