"""Hosts that go away and come back, and what is shown of a text meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from foretoken.api.hosting import host as hosted
from foretoken.cli import holding
from foretoken.cli.holding import Shown
from foretoken.remote.host import Host, Listening
from foretoken.remote.limits import Limits
from tests.remote.served import plain

COUNT, CAME, AWAY = 64, 5, 0.6
ASKED: dict[str, Any] = {"max_new_tokens": COUNT, "ignore_eos": True}


def started(port: int = 0, *drafters: Path) -> Host:
    return hosted(plain(), Listening(port=port), Limits(), list(map(str, drafters)))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "_PAUSE", 0.05)


def text_of(shown: list[Shown]) -> str:
    text = ""
    for each in shown:
        if each.taken_back:
            assert text.endswith(each.text), "only the end is taken back"
            text = text[: len(text) - len(each.text)]
        else:
            text += each.text
    return text


class ComingBack:
    """Starts hosts on a port after a while; `hosts` are those that have come."""

    def __init__(self) -> None:
        self.hosts: list[Host] = []
        self._timers: list[threading.Timer] = []

    def __call__(self, port: int, *drafters: Path) -> None:
        self._timers.append(threading.Timer(AWAY, lambda: self.hosts.append(started(port, *drafters))))
        self._timers[-1].start()

    def close(self) -> None:
        for timer in self._timers:
            timer.join()
        for host in self.hosts:
            host.close()


@pytest.fixture
def coming_back() -> Iterator[ComingBack]:
    with closing(ComingBack()) as its:
        yield its
