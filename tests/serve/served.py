"""A server on this machine, and what its tests have in common."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

import foretoken
from foretoken.api.model import Model

pytest.importorskip("fastapi")

from foretoken.serve.limits import Limits
from foretoken.serve.server import Server, ServerSettings

MODEL = "stdlib-1m"
PROMPT = "def test_one(self):\n    self.assertEqual(1, 1)\n\n\ndef test_two(self):"
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 5, "top_p": 0.9, "repetition_penalty": 1.1}


@cache
def plain(model: str | Path = MODEL) -> Model:
    return foretoken.load(model, draft="none")


def truth(prompt: Any = PROMPT, model: str | Path = MODEL, **settings: Any) -> foretoken.Completion:
    return plain(model).generate(prompt, **settings)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        found = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        assert found[-1] == "[DONE]"
        return [json.loads(each) for each in found[:-1]]

    @property
    def error(self) -> dict[str, Any]:
        assert list(self.json) == ["error"]
        error: dict[str, Any] = self.json["error"]
        assert list(error) == ["message", "type", "param", "code"]
        assert "\n" not in error["message"]
        return error


@dataclass(frozen=True)
class Served:
    """A server that runs in a thread of this process."""

    server: Server
    url: str

    def ask(self, path: str, body: Any = None, *, method: str | None = None, **headers: str) -> Answer:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json", **{name.replace("_", "-"): each for name, each in headers.items()}}
        request = urllib.request.Request(self.url + path, data, given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return Answer(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as answer:
            with answer:
                return Answer(answer.code, dict(answer.headers), answer.read())

    def complete(self, **body: Any) -> Any:
        answer = self.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, **body})
        assert answer.status == 200, answer.body
        return answer.json

    def stream(self, **body: Any) -> list[Any]:
        whole = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "stream": True, **body}
        return self.ask("/v1/completions", whole).events


@contextmanager
def serving(
    model: str | Path | Model = MODEL, *, limits: dict[str, Any] | None = None, draft: str = "lookup", **settings: Any
) -> Iterator[Served]:
    loaded = model if isinstance(model, Model) else foretoken.load(model, draft=draft, pace="fixed")
    its = replace(Limits.of(loaded, 16, 64, None), **(limits or {}))
    server = Server(loaded, ServerSettings(port=0, drain=1.0, **settings), its)
    addresses: Queue[str] = Queue()
    thread = threading.Thread(target=server.run, args=(addresses.put,))
    thread.start()
    try:
        yield Served(server, addresses.get(timeout=60))
    finally:
        server.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert server.worker.error is None
