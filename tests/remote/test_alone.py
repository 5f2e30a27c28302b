"""A host is gone for good, and the client may go on: what the host has checked stays, the rest is marked."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretoken
from foretoken.api.hosting import host as hosted
from foretoken.api.remote import connect
from foretoken.bench.private import listened
from foretoken.cli import show
from foretoken.decoder.rows import chain
from foretoken.drafters.eagle import EagleTreeDrafter
from foretoken.errors import SettingError
from foretoken.loop.output import Piece
from foretoken.protocol.telemetry import Work
from foretoken.remote.alone import likeliest
from foretoken.remote.host import Host, Listening
from foretoken.remote.limits import Limits
from foretoken.remote.wire import Kind, Message, OpenBody, ReadyBody
from foretoken.trained.following import Before
from tests.remote.served import MODEL, PROMPT, SAMPLED, client, plain, serving, truth, verifier_of
from tests.remote.test_features import KINDS

COUNT, CAME = 48, 6


def cut_off(host: Host, draft: str, *, ahead: int = 0, pace: str = "fixed", **settings: Any) -> foretoken.Completion:
    """A text whose host goes away when some tokens have come."""
    model = client(host, draft=draft, offline="keep", patience=0.2, pace=pace)
    model.far = replace(model.far, ahead=ahead)
    stream = model.stream(PROMPT, **{"max_new_tokens": COUNT, "ignore_eos": True, **settings})
    pieces = [next(stream) for _ in range(CAME)]
    host.close()
    pieces += stream
    done = stream.completion
    assert [piece.token for piece in pieces] == list(done.tokens)
    checked = len(done.tokens) - done.unverified
    assert done.stats.passes + done.stats.accepted_tokens + 1 == checked, "what nobody has checked does not count"
    marked = [piece.unverified for piece in pieces]
    assert marked == [False] * (len(pieces) - done.unverified) + [True] * done.unverified
    return done


@contextlib.contextmanager
def started(*drafters: Path) -> Iterator[Host]:
    its = hosted(plain(), Listening(port=0), Limits(), list(map(str, drafters)))
    try:
        yield its
    finally:
        its.close()


@pytest.mark.parametrize("draft", [MODEL, f"{MODEL}:k=3:depth=4", f"{MODEL},lookup"])
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_a_draft_that_is_the_model_itself_writes_the_models_text_alone(draft: str, sampling: dict[str, Any]) -> None:
    with serving() as host:
        done = cut_off(host, draft, **sampling)
    assert done.finish_reason == "disconnected"
    assert done.promise == "none"
    its = truth(max_new_tokens=COUNT, ignore_eos=True, **sampling)
    assert done.tokens == its.tokens[: len(done.tokens)]
    assert COUNT - 1 <= len(done.tokens) <= COUNT, "the last token is a bonus, which alone there is not"
    assert COUNT - len(done.tokens) < done.unverified < COUNT


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_drafter_goes_on_with_what_it_has_seen(
    drafters: dict[str, Path], clients: dict[str, str], kind: str
) -> None:
    with started(drafters["moa"], drafters["block"], drafters["moa-1"]) as host:
        done = cut_off(host, clients[kind])
    checked = len(done.tokens) - done.unverified
    assert checked >= CAME
    assert done.tokens[:checked] == truth(max_new_tokens=COUNT, ignore_eos=True).tokens[:checked]
    assert len(done.tokens) >= COUNT - 1
    assert {*done.origins[checked:]} == {Path(clients[kind]).name}


def test_behind_a_tree_eagle_goes_on_with_the_states_of_the_text(
    clients: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, looked = EagleTreeDrafter._go_on, 0

    def looked_at(self: EagleTreeDrafter, sequence: int) -> list[Work]:
        nonlocal looked
        work = go_on(self, sequence)
        text, known, decoder = self._readings[sequence].text, self._before[sequence].known, self._decoder
        assert len(known) == len(text) - 1
        cache = decoder.new_cache()
        decoder.follow(cache, Before(list(known)))
        hidden = decoder.forward(chain(cache, text[:-1]))  # with all states known, in one pass
        states = decoder.norm(hidden).numpy()
        gone = sum(each.passes for each in work)
        looked += gone
        for at in range(len(known) - gone, len(known)):
            assert np.allclose(states[at], known[at], atol=1e-3)
        return work

    monkeypatch.setattr(EagleTreeDrafter, "_go_on", looked_at)
    with started() as host:
        done = cut_off(host, f"{clients['eagle2']}:k=3:depth=4")
    assert looked > COUNT // 2
    assert done.unverified > COUNT // 2


@pytest.mark.parametrize("pace", ["auto", "fixed"])
@pytest.mark.parametrize("ahead", [0, 1])
def test_whatever_the_pace_is_a_client_that_is_alone_drafts(pace: str, ahead: int) -> None:
    with serving() as host:
        done = cut_off(host, MODEL, pace=pace, ahead=ahead)
    assert done.unverified > COUNT // 2
    assert done.tokens == truth(max_new_tokens=COUNT, ignore_eos=True).tokens[: len(done.tokens)]


def test_what_ends_a_text_ends_it_without_a_host_too() -> None:
    stop = truth(max_new_tokens=COUNT, ignore_eos=True).text[-12:-4]
    its = truth(max_new_tokens=COUNT, ignore_eos=True, stop=[stop])
    with serving() as host:
        done = cut_off(host, MODEL, stop=[stop])
    assert (done.text, done.stop_string) == (its.text, stop)
    assert done.tokens == its.tokens
    assert done.finish_reason == "disconnected"
    assert done.unverified
    with serving() as host:
        done = cut_off(host, MODEL, max_new_tokens=CAME + 6)
    assert CAME + 5 <= len(done.tokens) <= CAME + 6


def test_a_text_with_a_grammar_ends_where_its_host_is_gone() -> None:
    pytest.importorskip("llguidance")
    with serving() as host:
        done = cut_off(host, MODEL, regex="[a-z ]{40,60}")
    assert done.finish_reason == "disconnected"
    assert not done.unverified
    assert done.promise == "exact"


def test_the_next_text_is_checked_again_when_the_host_is_there_again() -> None:
    with serving() as host:
        model = client(host, draft=MODEL, offline="keep", patience=0.2)
        stream = model.stream(PROMPT, max_new_tokens=COUNT, ignore_eos=True)
        next(stream)
        host.close()
        for _ in range(10):
            next(stream)
        with serving(port=int(host.url.rpartition(":")[2])):
            done = model.generate(PROMPT, max_new_tokens=8, ignore_eos=True)
            assert (done.unverified, done.promise, done.finish_reason) == (0, "exact", "length")
            for _ in stream:  # a text that has gone on alone is never shown to a host again
                pass
    assert stream.completion.unverified > COUNT // 2


def test_what_is_no_model_does_not_go_on() -> None:
    with pytest.raises(SettingError, match="draft 'lookup' is no model that could go on by itself"):
        connect("ws://127.0.0.1:9", draft="lookup", offline="keep")
    with pytest.raises(SettingError, match="offline is 'never'"):
        connect("ws://127.0.0.1:9", draft=MODEL, offline="never")


def test_the_likeliest_path_is_that_of_first_children() -> None:
    assert likeliest(()) == []
    assert likeliest((-1, 0, 1)) == [0, 1, 2]
    assert likeliest((-1, -1, 0, 1, 2, 2)) == [0, 2, 4]


def test_people_and_programs_see_what_was_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as host:
        done = cut_off(host, MODEL)
    assert f"nobody has checked the last {done.unverified} tokens; promise: none" in show.summary(done)
    assert show.as_json(done)["unverified"] == done.unverified
    pieces = [Piece(1, "a", "target"), Piece(2, "b", MODEL, unverified=True)]
    assert [each.get("unverified") for each in map(show.piece_as_json, pieces)] == [None, True]
    assert list(show.marked(pieces)) == ["a", "b"]
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert list(show.marked(pieces)) == ["a", "\x1b[2;4mb\x1b[0m"]


# -- a part of the prompt that the host does not see ------------------------------------------------------------------

SAFE, PRIVATE = PROMPT[:40], PROMPT[40:]


@pytest.mark.parametrize("draft", [MODEL, f"{MODEL}:k=3:depth=4"])
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_of_a_private_suffix_nothing_is_sent(draft: str, sampling: dict[str, Any]) -> None:
    with serving() as host:
        model = client(host, draft=draft)
        sent = listened(model)
        done = model.generate(SAFE, private_suffix=PRIVATE, max_new_tokens=20, ignore_eos=True, **sampling)
        again = model.generate(PROMPT, max_new_tokens=8)
    opening = OpenBody.read(sent[0].body, 9999)
    tokenizer = plain().tokenizer
    assert tokenizer is not None
    assert list(opening.prompt) == tokenizer.encode(SAFE)
    assert not opening.output
    assert opening.asked == {"max_new_tokens": 1}, "neither how it is to be written, nor how long it is"
    others = [message for message in sent if message.session == sent[0].session]
    assert [message.kind for message in others] == [Kind.OPEN, Kind.CLOSE]
    assert not others[1].body
    assert sent.index(others[1]) == 1, "before the first draft, so that it tells nothing"
    whole = [*tokenizer.encode(SAFE), *tokenizer.encode_part(PRIVATE)]
    its = plain().generate(whole, max_new_tokens=20, ignore_eos=True, **sampling)
    if (
        sampling
    ):  # its numbers are drawn for each token of the output, of which the last private one counts as the first
        assert len(done.tokens) == 20
    else:
        assert (done.tokens, done.text) == (its.tokens, its.text), "the draft is the model itself"
    assert (done.finish_reason, done.unverified, done.promise) == ("length", 20, "none")
    assert done.prompt_tokens == its.prompt_tokens
    assert again.promise == "exact"


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_drafter_sees_the_safe_part_of_a_prompt(
    drafters: dict[str, Path], clients: dict[str, str], kind: str
) -> None:
    with started(drafters["moa"], drafters["block"], drafters["moa-1"]) as host:
        model = client(host, draft=clients[kind])
        sent = listened(model)
        done = model.generate(SAFE, private_suffix=PRIVATE, max_new_tokens=20, ignore_eos=True)
    assert (len(done.tokens), done.unverified) == (20, 20)
    assert [message.kind for message in sent] == [Kind.OPEN, Kind.CLOSE]


def test_whatever_the_host_says_later_a_private_text_is_not_spoken_of() -> None:
    with serving() as host:
        model = client(host, draft=MODEL)
        stream = model.stream(SAFE, private_suffix=PRIVATE, max_new_tokens=20, ignore_eos=True)
        next(stream)
        sent, verifier = listened(model), verifier_of(model)
        ready = Message(Kind.READY, 1, 0, ReadyBody(1, 0, 2, (5,), None).packed())
        verifier._heard(ready)  # while the text is written
        list(stream)
        verifier._heard(ready)  # and when it has ended
        assert not sent
        for _ in range(18):  # more than the host takes on at once from one client
            assert model.generate(SAFE, private_suffix=PRIVATE, max_new_tokens=1).tokens


def test_a_stop_string_ends_a_private_text() -> None:
    with serving() as host:
        model = client(host, draft=MODEL)
        whole = model.generate(SAFE, private_suffix=PRIVATE, max_new_tokens=20, ignore_eos=True).text
        done = model.generate(SAFE, private_suffix=PRIVATE, max_new_tokens=20, ignore_eos=True, stop=whole[30:34])
    assert done.finish_reason == "stop"
    assert done.text == whole[: whole.index(whole[30:34])]
    with serving() as host:  # the end of the prompt is no part of a stop string
        model = client(host, draft=MODEL)
        stop = PRIVATE[-1] + whole[:2]
        assert stop not in whole
        assert model.generate(SAFE, private_suffix=PRIVATE, max_new_tokens=20, ignore_eos=True, stop=stop).text == whole
    assert "nobody has checked it: part of the prompt is private" in show.summary(done)


def test_what_makes_no_sense_with_a_private_suffix_is_refused() -> None:
    with pytest.raises(SettingError, match="private_suffix is for a model on a host"):
        plain().generate(SAFE, private_suffix=PRIVATE)
    refused: list[dict[str, Any]] = [{"n": 2}, {"regex": "x"}, {"logprobs": 1}, {"audit": True}]
    for more in refused:
        with pytest.raises(SettingError, match="private_suffix leaves the model out"):
            plain().generate(SAFE, private_suffix=PRIVATE, **more)
    with serving() as host:
        with pytest.raises(SettingError, match="with a draft that is a model"):
            client(host, draft="lookup").generate(SAFE, private_suffix=PRIVATE)
        talk = client(host, draft=MODEL).chat(plain=True)
        with pytest.raises(SettingError, match="private_suffix is for one text"):
            list(talk.send(SAFE, private_suffix=PRIVATE))
