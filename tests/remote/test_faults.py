"""Whatever a network does, the text is the model's: lost, late and repeated messages, broken connections, a host that
is started again. If the host is gone for good, what it had checked is kept."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import foretoken
from foretoken.api.hosting import host as hosted
from foretoken.errors import RemoteError
from foretoken.remote import client as client_module
from foretoken.remote.host import Host, Listening
from foretoken.remote.limits import Limits
from foretoken.remote.room import Room
from foretoken.remote.wire import Message
from tests.remote.served import PROMPT, SAMPLED, client, host, serving, truth, verifier_of

__all__ = ["host"]

COUNT = 48


class Unreliable:
    """Stands between a client and its connection: messages are lost, repeated, and overtake one another."""

    def __init__(self, model: foretoken.Model, seed: int) -> None:
        self.chance, self.lost, self.repeated, self.late = random.Random(seed), 0, 0, 0
        self.watch(verifier_of(model).link)

    def watch(self, link: Any) -> None:
        send, heard = link.send, link._heard
        link.send = lambda message: self.pass_on(send, message)
        link._heard = lambda message: self.pass_on(heard, message)

    def pass_on(self, to: Callable[[Message], None], message: Message) -> None:
        fate = self.chance.random()
        if fate < 0.15:
            self.lost += 1
            return
        self.repeated += fate < 0.3
        for _ in range(1 + (fate < 0.3)):
            if self.chance.random() < 0.3:
                self.late += 1
                threading.Timer(self.chance.uniform(0, 0.03), to, (message,)).start()
            else:
                to(message)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("draft", ["lookup", "stdlib-1m:k=3:depth=4"])
def test_lost_late_and_repeated_messages_change_nothing(
    host: Host, draft: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_SOONEST", 0.02)
    sampling = SAMPLED if seed % 2 else {}
    model = client(host, draft=draft)
    model.far = replace(model.far, ahead=seed % 3)  # also with several drafts on their way
    verifier_of(model).link.round_trip = 0.0
    network = Unreliable(model, seed)
    stream = model.stream(PROMPT, max_new_tokens=COUNT, ignore_eos=True, **sampling)
    for at, _ in enumerate(stream):
        if at in (10, 30):  # and the connection breaks, too
            verifier_of(model).link._connection.socket.shutdown(socket.SHUT_RDWR)
    assert stream.completion.tokens == truth(max_new_tokens=COUNT, ignore_eos=True, **sampling).tokens
    assert min(network.lost, network.repeated, network.late) > 0


def test_a_connection_that_breaks_again_and_again_is_made_again(host: Host) -> None:
    model = client(host, draft="none")
    link = verifier_of(model).link
    stream = model.stream(PROMPT, max_new_tokens=COUNT, ignore_eos=True, **SAMPLED)
    for at, _ in enumerate(stream):
        if at % 12 == 5:
            link._connection.socket.shutdown(socket.SHUT_RDWR)
    assert stream.completion.tokens == truth(max_new_tokens=COUNT, ignore_eos=True, **SAMPLED).tokens
    assert link._connections > 2


@pytest.mark.parametrize("came", [1, 2, 20])
def test_a_host_that_is_started_again_goes_on_with_what_the_client_has(came: int) -> None:
    with serving() as first:
        port = int(first.url.rpartition(":")[2])
        model = client(first, draft="lookup")
        stream = model.stream(PROMPT, max_new_tokens=COUNT, ignore_eos=True, **SAMPLED)
        for _ in range(came):
            next(stream)
    with serving(port=port) as second:
        for _ in stream:
            pass
        assert second.room.passes > 0
    assert stream.completion.tokens == truth(max_new_tokens=COUNT, ignore_eos=True, **SAMPLED).tokens


def test_a_session_that_was_idle_for_long_is_opened_again() -> None:
    with serving(Limits(idle=0.1)) as host:
        stream = client(host, draft="none").stream(PROMPT, max_new_tokens=8, ignore_eos=True)
        for _ in range(3):
            next(stream)
        until = time.monotonic() + 10
        while host.room.sessions and time.monotonic() < until:
            time.sleep(0.05)
        assert not host.room.sessions
        for _ in stream:
            pass
    assert stream.completion.tokens == truth(max_new_tokens=8, ignore_eos=True).tokens


def test_what_was_checked_is_kept_if_the_host_is_gone_for_good() -> None:
    with serving() as host:
        model = client(host, draft="none", patience=0.2)
        stream = model.stream(PROMPT, max_new_tokens=COUNT, ignore_eos=True)
        for _ in range(5):
            next(stream)
    left = list(stream)
    done = stream.completion
    assert done.finish_reason == "disconnected"
    assert done.tokens == truth(max_new_tokens=COUNT, ignore_eos=True).tokens[: 5 + len(left)]
    assert len(left) <= 1, "what was under way may still have come"
    with pytest.raises(RemoteError, match="cannot be reached"):
        model.generate(PROMPT)
    with serving(port=int(host.url.rpartition(":")[2])):  # it is there again
        assert model.generate(PROMPT, max_new_tokens=4).tokens == truth(max_new_tokens=4).tokens


def test_another_model_behind_the_same_name_is_noticed() -> None:
    with serving() as host:
        port = int(host.url.rpartition(":")[2])
        model = client(host, draft="none")
        stream = model.stream(PROMPT, max_new_tokens=COUNT, ignore_eos=True)
        next(stream)
    other = hosted(foretoken.load("stdlib-7m", draft="none"), Listening(port=port), Limits())
    try:
        assert len(list(stream)) < COUNT - 1
        assert stream.completion.finish_reason == "disconnected"
        with pytest.raises(RemoteError, match="has another model now, or other settings"):
            model.generate(PROMPT)
    finally:
        other.close()


def test_what_is_kept_of_conversations_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Limits(conversations=2)) as host:
        kept: Any = host.room._verifier
        model = client(host, draft="none")
        talks = [model.chat(plain=True) for _ in range(5)]
        for talk in talks:
            list(talk.send("import os", max_new_tokens=2))
        until = time.monotonic() + 10
        while (host.room.sessions or not kept._kept._kept) and time.monotonic() < until:
            time.sleep(0.01)
        assert 1 <= len(kept._kept._kept) <= 2


def test_a_text_waits_for_room_when_its_host_was_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_SOONEST", 0.05)
    with serving() as first:
        port = int(first.url.rpartition(":")[2])
        stream = client(first, draft="lookup").stream(PROMPT, max_new_tokens=COUNT, ignore_eos=True)
        for _ in range(5):
            next(stream)
    room, refused = Room._no_room, 0

    def full(self: Room, *its: Any) -> str | None:
        nonlocal refused
        refused += 1
        return "there is no room" if refused < 4 else room(self, *its)

    monkeypatch.setattr(Room, "_no_room", full)
    with serving(port=port):
        for _ in stream:
            pass
    assert refused == 4
    assert stream.completion.tokens == truth(max_new_tokens=COUNT, ignore_eos=True).tokens


def test_a_prompt_that_takes_longer_than_a_client_is_patient_is_waited_for(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = Room._checked

    def slow(self: Room, *its: Any) -> Any:
        time.sleep(0.3)
        return checked(self, *its)

    monkeypatch.setattr(Room, "_checked", slow)
    monkeypatch.setattr(client_module, "_SOONEST", 0.02)
    model = client(host, draft="none", patience=0.1)
    assert model.generate(PROMPT, max_new_tokens=3).tokens == truth(max_new_tokens=3).tokens


def test_a_text_whose_verdict_the_host_has_lost_is_opened_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    room, lost = host.room, 0
    checked = type(room)._checked

    def loses(self: Any, drafts: Any, chunks: Any) -> Any:
        nonlocal lost
        found = checked(self, drafts, chunks)
        if drafts and lost < 3:
            lost += 1
            return found[1:]
        return found

    monkeypatch.setattr(type(room), "_checked", loses)
    monkeypatch.setattr(client_module, "_SOONEST", 0.02)
    done = client(host, draft="lookup").generate(PROMPT, max_new_tokens=COUNT, ignore_eos=True)
    assert lost == 3
    assert done.tokens == truth(max_new_tokens=COUNT, ignore_eos=True).tokens


def test_seconds_of_drafts_that_were_passed_over_count(host: Host) -> None:
    model = client(host, draft="lookup")
    model.far = replace(model.far, ahead=1)
    stream = model.stream(PROMPT, max_new_tokens=COUNT, ignore_eos=True, keep_rounds=True, **SAMPLED)
    next(stream)
    began = time.perf_counter()
    for _ in stream:
        pass
    took, done = time.perf_counter() - began, stream.completion
    assert done.rounds is not None
    late = [record for record in done.rounds if record.late]
    assert late, "guesses were wrong"
    assert done.stats.decode_seconds >= 0.5 * took


def test_a_host_goes_on_when_accepting_fails(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    listening: Any = host._server.socket
    accept, failed = listening._socket.accept, []

    class Failing:
        def accept(self) -> Any:
            if len(failed) < 3:
                failed.append(accept()[0])
                failed[-1].close()
                raise ConnectionResetError("it has gone already")
            return accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    real = listening._socket
    monkeypatch.setattr(listening, "_socket", Failing())
    for _ in range(3):
        with pytest.raises(RemoteError):
            client(host, draft="none")
    assert len(failed) == 3
    assert client(host, draft="none").generate(PROMPT, max_new_tokens=4).tokens == truth(max_new_tokens=4).tokens


def test_a_forked_process_is_told_to_connect_itself(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    model = client(host, draft="none")
    monkeypatch.setattr("foretoken.remote.client.os.getpid", lambda: -1)
    with pytest.raises(RemoteError, match="this process was forked"):
        model.generate(PROMPT)
