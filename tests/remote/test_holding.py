"""`--offline hold`: a text that waits for its host, and is the model's to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import foretoken
from foretoken.api.hosting import host as hosted
from foretoken.cli import holding
from foretoken.cli.holding import Shown, held_text
from foretoken.errors import RemoteError, SettingError
from foretoken.remote.host import Host, Listening
from foretoken.remote.limits import Limits
from foretoken.remote.link import OtherModelError
from foretoken.settings.generate import GenerateSettings
from tests.remote.coming_back import ASKED, AWAY, CAME, COUNT, soon, started, text_of
from tests.remote.served import MODEL, PROMPT, SAMPLED, client, plain, truth

__all__ = ["soon"]


def held(
    draft: str, *drafters: Path, provisional: bool, times: int = 1, **settings: Any
) -> tuple[list[Shown], foretoken.Completion]:
    """What is shown of a text whose host goes away, some times, and comes back."""
    host = started(0, *drafters)
    port = int(host.url.rpartition(":")[2])
    model = client(host, draft=draft, offline="hold", patience=0.1)
    its = held_text(model, PROMPT, GenerateSettings.of({**ASKED, **settings}), provisional=provisional)
    found: list[Shown] = []
    hosts, left = [host], times

    def come_back() -> None:
        time.sleep(AWAY)
        hosts.append(started(port, *drafters))

    coming = None
    try:
        for shown in its:
            found.append(shown)
            if left and len(found) % CAME == 0 and (coming is None or not coming.is_alive()):
                left -= 1
                hosts[-1].close()
                coming = threading.Thread(target=come_back)
                coming.start()
    finally:
        if coming is not None:
            coming.join()
        for each in hosts:
            each.close()
    assert len(hosts) == 1 + times, "it went away"
    return found, its.completion


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", ["lookup", MODEL, f"{MODEL},lookup"])
@pytest.mark.parametrize("provisional", [True, False])
def test_a_text_goes_on_when_its_host_is_there_again(draft: str, provisional: bool, sampling: dict[str, Any]) -> None:
    shown, done = held(draft, provisional=provisional, **sampling)
    its = truth(**ASKED, **sampling)
    assert (done.tokens, done.text, done.finish_reason, done.unverified) == (its.tokens, its.text, "length", 0)
    assert text_of(shown) == its.text
    assert done.promise == "exact"
    assert not any(each.taken_back for each in shown), "the draft is the model, or says nothing by itself"
    assert any(each.unverified for each in shown) == (provisional and draft != "lookup")


@pytest.mark.parametrize("provisional", [True, False])
def test_what_is_not_the_models_is_taken_back(
    drafters: dict[str, Path], clients: dict[str, str], provisional: bool
) -> None:
    shown, done = held(f"{clients['moa']},lookup", drafters["moa"], provisional=provisional)
    its = truth(**ASKED)
    assert (done.tokens, text_of(shown)) == (its.tokens, its.text)
    assert any(each.taken_back for each in shown) == provisional
    assert any(each.unverified for each in shown) == provisional


def test_a_host_may_go_away_twice() -> None:
    shown, done = held(MODEL, provisional=False, times=2, max_new_tokens=3 * COUNT)
    its = truth(max_new_tokens=3 * COUNT, ignore_eos=True)
    assert (done.tokens, text_of(shown)) == (its.tokens, its.text)


def test_what_was_written_is_the_draft_of_what_is_checked() -> None:
    host = started()
    model = client(host, draft="lookup")
    done = model.generate("import ", **ASKED, temperature=0.9)
    again = model.recheck("import ", done, **ASKED, temperature=0.9)
    assert tuple(piece.token for piece in again) == done.tokens
    assert again.completion.stats.passes < done.stats.passes / 2
    assert "prediction" in again.completion.origins
    with pytest.raises(SettingError, match="n and private_suffix are for other texts"):
        model.recheck("import ", done, n=2)
    host.close()


def test_a_stop_string_that_had_begun_is_not_shown_in_a_pipe() -> None:
    whole = truth(**ASKED).text
    stop = whole[20:28]
    shown, done = held("lookup", provisional=False, stop=[stop])
    assert text_of(shown) == done.text == truth(**ASKED, stop=[stop]).text


def test_a_host_that_is_away_before_the_first_token_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    host = started()
    port = int(host.url.rpartition(":")[2])
    model = client(host, draft="lookup", offline="hold", patience=0.1)
    host.close()
    said: list[str] = []
    monkeypatch.setattr(holding, "say", said.append)
    back: list[Host] = []
    timer = threading.Timer(AWAY, lambda: back.append(started(port)))
    timer.start()
    its = held_text(model, PROMPT, GenerateSettings.of(ASKED), provisional=False)
    assert text_of(list(its)) == truth(**ASKED).text
    timer.join()
    back[0].close()
    assert [line.endswith("waiting, Ctrl-C ends") for line in said] == [*[True] * (len(said) - 1), False]
    assert said[-1].startswith("the host is there again after ")


def test_a_host_that_refuses_ends_the_waiting(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("correct horse\n", encoding="utf-8")
    host = hosted(plain(), Listening(port=0, token="correct horse"), Limits())
    port = int(host.url.rpartition(":")[2])
    model = client(host, draft="lookup", offline="hold", patience=0.1, token_file=token)
    host.close()
    other = hosted(plain(), Listening(port=port, token="battery staple"), Limits())
    with pytest.raises(RemoteError, match="the token is wrong"):
        list(held_text(model, PROMPT, GenerateSettings.of(ASKED), provisional=False))
    other.close()


def test_another_model_ends_the_waiting() -> None:
    host = started()
    port = int(host.url.rpartition(":")[2])
    model = client(host, draft="lookup", offline="hold", patience=0.1)
    host.close()
    other = hosted(foretoken.load("stdlib-7m", draft="none"), Listening(port=port), Limits())
    with pytest.raises(OtherModelError, match="has another model now"):
        list(held_text(model, PROMPT, GenerateSettings.of(ASKED), provisional=False))
    other.close()


def test_a_host_that_writes_another_text_is_an_error_where_nothing_can_be_taken_back() -> None:
    its = held_text(plain(), PROMPT, GenerateSettings.of(ASKED), provisional=False)
    its._shown = "something else"
    with pytest.raises(RemoteError, match="the host writes another text than it did"):
        list(its)


def test_the_most_that_is_known_of_a_text_is_kept() -> None:
    def tried(tokens: tuple[int, ...], unverified: int = 0) -> foretoken.Completion:
        return replace(truth(**ASKED), tokens=tokens, unverified=unverified)

    def merged(before: foretoken.Completion, done: foretoken.Completion) -> tuple[tuple[int, ...], int]:
        its = holding._merged(before, done)
        return its.tokens, its.unverified

    before = tried((1, 2, 3, 4, 5), unverified=2)
    assert merged(before, tried((1, 2))) == ((1, 2, 3, 4, 5), 2)
    assert merged(before, tried((1, 2, 7, 7, 7, 7), unverified=4)) == ((1, 2, 3, 4, 5), 2), "three were checked"
    assert merged(before, tried((1, 2, 3, 4))) == ((1, 2, 3, 4, 5), 1)
    assert merged(before, tried((1, 2, 3, 9))) == ((1, 2, 3, 9), 0)
    assert merged(before, tried((1, 9))) == ((1, 9), 0), "the host writes another text"
    assert merged(before, tried((1, 2, 3, 4, 8, 8), unverified=2)) == ((1, 2, 3, 4, 8, 8), 2)


@pytest.mark.prove
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_the_command_waits_and_ends_well(command: str, tmp_path: Path) -> None:
    """Of a host that is gone for longer than a lost connection is tried again: 30 seconds."""
    first = started()
    port = int(first.url.rpartition(":")[2])
    prompt = "def f("  # a line is a message
    (tmp_path / "lines").write_text(f"{prompt}\n", encoding="utf-8")
    asked = [prompt] if command == "generate" else ["--plain", "--prompt-file", str(tmp_path / "lines")]
    given = [sys.executable, "-m", "foretoken", command, *asked, "-n", "300", "--ignore-eos"]
    given += ["--remote", first.url, "--offline", "hold", "--draft", "lookup"]
    with subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        came = os.read(process.stdout.fileno(), 8)  # past its buffer, which `communicate` does not know
        first.close()
        time.sleep(36)
        second = started(port)
        try:
            rest, said = process.communicate(timeout=120)
        finally:
            second.close()
    assert process.returncode == 0, said
    assert b"waiting, Ctrl-C ends" in said
    expected = plain().generate(prompt, max_new_tokens=300, ignore_eos=True).text
    assert (came + rest).decode() == expected.rstrip("\n") + "\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n", "2"], "--n and --offline hold were both given"),
        (["--json", "--stream"], "--stream and --offline hold were both given"),
        (["--show-origins"], "--show-origins and --offline hold were both given"),
        (["--private-suffix", "x"], "--private-suffix and --offline hold were both given"),
    ],
)
def test_what_cannot_be_held_is_refused(options: list[str], message: str) -> None:
    command = [sys.executable, "-m", "foretoken", "generate", "x", "--remote", "ws://127.0.0.1:9", "--offline", "hold"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
