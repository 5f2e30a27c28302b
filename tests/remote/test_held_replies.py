"""`chat --offline hold`: a reply that waits for its host, and can be left."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import foretoken
from foretoken.api.remote import stop_waiting
from foretoken.cli.holding import Shown, held_reply
from foretoken.errors import AwayError, InputError, SettingError
from foretoken.settings.generate import GenerateSettings
from tests.remote.coming_back import ASKED, AWAY, CAME, ComingBack, coming_back, soon, started, text_of
from tests.remote.served import MODEL, PROMPT, client, plain, truth

__all__ = ["coming_back", "soon"]


def turns(chat: foretoken.Chat, *texts: str) -> list[dict[str, str]]:
    for text in texts:
        for _ in chat.send(text, **ASKED):
            pass
    return chat.messages


@pytest.mark.parametrize("draft", ["lookup", MODEL])
@pytest.mark.parametrize("provisional", [True, False])
def test_a_reply_goes_on_when_its_host_is_there_again(draft: str, provisional: bool, coming_back: ComingBack) -> None:
    host = started()
    port = int(host.url.rpartition(":")[2])
    chat = client(host, draft=draft, offline="hold", patience=0.1).chat(plain=True)
    texts = (PROMPT, "\nclass B:\n", "\nclass C:\n")
    turns(chat, texts[0])
    its = held_reply(chat, texts[1], GenerateSettings.of(ASKED), provisional=provisional, left=lambda: False)
    shown: list[Shown] = []
    for each in its:
        shown.append(each)
        if len(shown) == CAME:
            assert [message["content"] for message in chat.messages[2:]] == []
            host.close()
            coming_back(port)
    expected = turns(plain().chat(plain=True), *texts)
    assert chat.messages == expected[:4]
    assert text_of(shown) == expected[3]["content"]
    assert (its.completion.finish_reason, its.completion.unverified) == ("length", 0)
    assert turns(chat, texts[2]) == expected, "the conversation goes on"


@pytest.mark.parametrize("draft", ["lookup", MODEL])
def test_a_reply_that_waits_can_be_left(draft: str) -> None:
    host = started()
    chat = client(host, draft=draft, offline="hold", patience=0.1).chat(plain=True)
    left = threading.Event()
    its = held_reply(chat, PROMPT, GenerateSettings.of(ASKED), provisional=True, left=left.is_set)
    shown: list[Shown] = []
    for each in its:
        shown.append(each)
        if len(shown) == CAME:
            host.close()
            threading.Timer(AWAY, left.set).start()
    assert its.completion.finish_reason == "disconnected"
    assert (its.completion.unverified > 0) == (draft != "lookup")
    assert chat.messages[-1]["content"] == its.completion.text == text_of(shown)


def test_a_reply_that_is_interrupted_stays_as_far_as_it_came() -> None:
    host = started()
    chat = client(host, draft="lookup", offline="hold", patience=0.1).chat(plain=True)
    shown: list[Shown] = []
    its = held_reply(chat, PROMPT, GenerateSettings.of(ASKED), provisional=True, left=lambda: len(shown) >= CAME)
    for each in its:
        shown.append(each)
    assert its.completion.finish_reason == "cancelled"
    assert chat.messages[-1]["content"] == text_of(shown)
    host.close()


def test_a_host_that_is_away_before_a_reply_can_be_left() -> None:
    host = started()
    chat = client(host, draft="lookup", offline="hold", patience=0.1).chat(plain=True)
    host.close()
    left = threading.Event()
    threading.Timer(AWAY, left.set).start()
    with pytest.raises(AwayError):
        list(held_reply(chat, PROMPT, GenerateSettings.of(ASKED), provisional=True, left=left.is_set))
    assert chat.messages == []


def test_a_reply_that_is_asked_for_once_more_takes_the_place_of_the_last() -> None:
    chat = plain().chat(plain=True)
    with pytest.raises(InputError, match="no reply to ask for once more"):
        chat.recheck(truth(**ASKED))
    stream = chat.send(PROMPT, **ASKED)
    assert [next(stream) for _ in range(3)]
    stream.close()
    cut = chat.messages
    with pytest.raises(SettingError, match="n and private_suffix"):
        chat.recheck(stream.completion, n=2, **ASKED)
    again = chat.recheck(stream.completion, **ASKED)
    assert [next(again) for _ in range(9)]
    again.close()
    assert chat.messages == cut, "one that is closed does not take its place"
    again = chat.recheck(stream.completion, **ASKED)
    assert "".join(piece.text for piece in again) == truth(**ASKED).text
    assert [message["content"] for message in chat.messages] == [PROMPT, truth(**ASKED).text]
    assert turns(chat, "\n\n") == turns(plain().chat(plain=True), PROMPT, "\n\n")


@pytest.mark.parametrize("moment", ["it waits", "its draft is refuted", "the host is gone again"])
def test_what_is_left_is_what_was_shown_and_what_the_conversation_holds(
    drafters: dict[str, Path], clients: dict[str, str], moment: str, coming_back: ComingBack
) -> None:
    """Whenever a reply is left, screen, completion and conversation agree. Here a drafter that is wrong goes
    on alone meanwhile."""
    host = started(0, drafters["moa"])
    port = int(host.url.rpartition(":")[2])
    chat = client(host, draft=f"{clients['moa']},lookup", offline="hold", patience=0.1).chat(plain=True)
    left = threading.Event()
    its = held_reply(chat, PROMPT, GenerateSettings.of(ASKED), provisional=True, left=left.is_set)
    shown: list[Shown] = []
    refuted = False
    for each in its:
        shown.append(each)
        refuted |= each.taken_back
        if len(shown) == 12:
            host.close()
            if moment == "it waits":
                threading.Timer(AWAY, left.set).start()
            else:
                coming_back(port, drafters["moa"])
        if each.taken_back and moment == "its draft is refuted":
            left.set()
        if each.taken_back and moment == "the host is gone again":
            coming_back.hosts[0].close()
            threading.Timer(AWAY, left.set).start()
    done = its.completion
    assert refuted == (moment != "it waits")
    assert done.finish_reason == ("cancelled" if moment == "its draft is refuted" else "disconnected")
    assert text_of(shown) == done.text == chat.messages[-1]["content"]
    sure = len(done.tokens) - done.unverified
    assert done.tokens[:sure] == truth(**ASKED).tokens[:sure]
    assert sure >= 12


def test_nobody_waits_for_a_host_whose_connection_is_broken_if_told_not_to() -> None:
    host = started()
    model = client(host, draft="lookup", patience=60.0)
    port = int(host.url.rpartition(":")[2])
    stop_waiting(model)  # nothing is broken
    stream = model.stream(PROMPT, **ASKED)
    next(stream)
    host.close()
    threading.Timer(AWAY, lambda: stop_waiting(model)).start()
    began = time.monotonic()
    for _ in stream:
        pass
    assert time.monotonic() - began < 10
    assert stream.completion.finish_reason == "disconnected"
    back = started(port)
    assert model.generate(PROMPT, **ASKED).tokens == truth(**ASKED).tokens, "the next text tries it again"
    back.close()
