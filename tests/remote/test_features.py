"""What a trained drafter sees of the model, over a network: drafted with on the client."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import foretoken
from foretoken.api.hosting import host as hosted
from foretoken.bench.suites import open_suite
from foretoken.drafters.mixture import Observing
from foretoken.errors import RemoteError
from foretoken.remote import client as client_module
from foretoken.remote import guests
from foretoken.remote.features import Arriving, Part, bytes_of_row
from foretoken.remote.host import Host, Listening
from foretoken.remote.limits import Limits
from foretoken.remote.room import Room
from foretoken.remote.wire import Kind
from foretoken.trained.observer import ObservingLayers
from tests.remote.served import MODEL, PROMPT, SAMPLED, client, conversed, plain, truth, verifier_of
from tests.remote.test_faults import Unreliable

KINDS = ("moa", "block", "moa-1", "eagle2", "eagle3", "independent")
COUNT = 40


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", ["", ":k=3:depth=4", ",lookup"])
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_a_trained_drafter_on_a_client_drafts_what_it_would_draft_beside_the_model(
    host: Host, drafters: dict[str, Path], clients: dict[str, str], kind: str, options: str, sampling: dict[str, Any]
) -> None:
    if options == ",lookup" and kind.startswith("eagle"):
        pytest.skip("nothing speeds EAGLE up")
    settings: dict[str, Any] = {"max_new_tokens": COUNT, "ignore_eos": True, **sampling}
    done = client(host, draft=clients[kind] + options).generate(PROMPT, **settings)
    there = foretoken.load(MODEL, draft=f"{drafters[kind]}{options}", pace="fixed").generate(PROMPT, **settings)
    assert done.tokens == there.tokens == truth(**settings).tokens
    assert done.stats.draft_tokens > COUNT / 2
    # eight bits change what is drafted now and then
    assert abs(done.stats.passes - there.stats.passes) <= 2 + there.stats.passes // 8


def test_the_embedded_drafter_accepts_as_much_as_beside_its_model() -> None:
    """The bar: 0.99 of what the same drafter accepts with features that were not rounded."""
    target = foretoken.load("stdlib-7m", draft="none")
    running = hosted(target, Listening(port=0), Limits())
    try:
        far, near = client(running, draft="moa"), foretoken.load("stdlib-7m", draft="moa", pace="fixed")
        passes = dict.fromkeys((far, near), 0)
        for prompt in open_suite("heldout-20", near.tokenizer, count=6).prompts:
            texts = []
            for model in (far, near):
                done = model.generate(prompt.turns[0], max_new_tokens=64, ignore_eos=True)
                passes[model] += done.stats.passes
                texts.append(done.tokens)
            assert texts[0] == texts[1]
        assert passes[near] / passes[far] >= 0.99
    finally:
        running.close()


@pytest.mark.parametrize("kind", ["moa", "eagle3"])
def test_conversations_and_several_completions(host: Host, clients: dict[str, str], kind: str) -> None:
    model, its = client(host, draft=clients[kind]), foretoken.load(MODEL, draft="none")
    several = [each.completions(PROMPT, n=3, max_new_tokens=16, **SAMPLED) for each in (model, its)]
    assert [done.tokens for done in several[0]] == [done.tokens for done in several[1]]
    answers = conversed(model, its)
    assert all(done.stats.draft_tokens > 8 for done in answers)
    assert answers[-1].cached_tokens > 0


def test_messages_are_as_large_as_the_papers_formula_says(host: Host, clients: dict[str, str]) -> None:
    """Table 7: for each token 2 * E_kv * (TLI + 1) numbers, of one byte each; and the scales, which it does not
    count."""
    config = plain().target.config
    both = 2 * config.num_kv_heads * config.head_dim
    for kind, inferred in (("moa", 0), ("moa-1", 1), ("eagle2", None)):
        model = client(host, draft=clients[kind])
        link, sizes = verifier_of(model).link, []
        heard = link._heard

        def listen(message: Any, heard: Any = heard, sizes: Any = sizes) -> None:
            sizes.append((message.kind, len(message.body)))
            heard(message)

        link._heard = listen
        done = model.generate(PROMPT, max_new_tokens=COUNT, ignore_eos=True)
        values = config.hidden_size if inferred is None else both * (inferred + 1)
        scales = 2 + 4 * config.num_kv_heads * (inferred or 0)  # two bytes each: of the row, and of each head
        answers = [size for each, size in sizes if each is Kind.VERDICT]
        tokens = len(done.tokens) - 1
        last = (answers[-1] - 6) // 3  # the last answer needs no features
        assert sum(answers) == 6 * len(answers) + 3 * tokens + (tokens - last) * (values + scales)
        of_prompt = [size for each, size in sizes if each is Kind.FEATURES]
        assert sum(of_prompt) == 4 * len(of_prompt) + done.prompt_tokens * (values + scales)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["moa", "eagle2"])
def test_lost_late_and_repeated_messages_change_nothing(
    host: Host, clients: dict[str, str], kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_SOONEST", 0.02)
    monkeypatch.setattr(guests, "_MOST_SHOWN", 512)  # the features of a prompt in many messages
    model = client(host, draft=clients[kind])
    model.far = replace(model.far, ahead=seed % 2)
    verifier_of(model).link.round_trip = 0.0
    network = Unreliable(model, seed)
    stream = model.stream(PROMPT, max_new_tokens=COUNT, ignore_eos=True)
    for at, _ in enumerate(stream):
        if at in (10, 30):
            verifier_of(model).link._connection.socket.shutdown(socket.SHUT_RDWR)
    assert stream.completion.tokens == truth(max_new_tokens=COUNT, ignore_eos=True).tokens
    assert min(network.lost, network.repeated, network.late) > 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("came", [1, 2, 20])
@pytest.mark.parametrize("kind", ["moa", "eagle2"])
def test_a_host_that_is_started_again_sends_what_the_client_lacks(
    drafters: dict[str, Path], clients: dict[str, str], kind: str, came: int
) -> None:
    def serving(port: int) -> Host:
        return hosted(plain(), Listening(port=port), Limits(), [str(drafters["moa"])])

    first = serving(0)
    port = int(first.url.rpartition(":")[2])
    model = client(first, draft=clients[kind])
    arriving: list[Arriving] = []
    opening = client_module.RemoteVerifier._opening

    def opened(self: Any, seat: Any) -> Any:
        arriving.append(seat.arriving)
        return opening(self, seat)

    client_module.RemoteVerifier._opening = opened  # type: ignore[method-assign]
    try:
        stream = model.stream(PROMPT, max_new_tokens=COUNT, ignore_eos=True)
        for _ in range(came):
            next(stream)
        first.close()
        second = serving(port)
        try:
            for _ in stream:
                pass
            assert second.room.passes > 0
        finally:
            second.close()
    finally:
        client_module.RemoteVerifier._opening = opening  # type: ignore[method-assign]
    done = stream.completion
    assert done.tokens == truth(max_new_tokens=COUNT, ignore_eos=True).tokens
    # there is no gap: only the last answer came without features
    assert done.prompt_tokens + COUNT - 12 <= arriving[-1].have < done.prompt_tokens + COUNT
    assert done.stats.draft_tokens > COUNT / 2


def test_the_connection_breaks_while_features_of_a_prompt_are_on_their_way(
    host: Host, clients: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_SOONEST", 0.05)
    monkeypatch.setattr(guests, "_MOST_SHOWN", 512)
    model = client(host, draft=clients["eagle2"])
    link = verifier_of(model).link
    heard, came = link._heard, 0

    def listen(message: Any) -> None:
        nonlocal came
        came += message.kind is Kind.FEATURES
        if came == 3:  # the third is lost, with all behind it
            came += 1
            link._connection.socket.shutdown(socket.SHUT_RDWR)
        elif came != 3 and (came < 3 or link._connections > 1):
            heard(message)

    link._heard = listen
    done = model.generate(PROMPT, max_new_tokens=COUNT, ignore_eos=True)
    assert done.tokens == truth(max_new_tokens=COUNT, ignore_eos=True).tokens
    assert link._connections > 1
    assert done.stats.draft_tokens > COUNT / 2, "all features have come, or nothing would have been drafted"


class Rows:
    """Counts the rows of features that come to a client beside its verdicts."""

    def __init__(self, model: foretoken.Model) -> None:
        self.count, self.repeated = 0, 0
        link = verifier_of(model).link
        self._heard, link._heard = link._heard, self.listen  # type: ignore[method-assign]
        self._width = bytes_of_row(verifier_of(model).about.offered.layout(model.drafter.needs))

    def listen(self, message: Any) -> None:
        if message.kind is Kind.FEATURES:
            self.count += (len(message.body) - 4) // self._width
        self._heard(message)


def test_in_a_conversation_only_what_is_new_travels(host: Host, clients: dict[str, str]) -> None:
    model = client(host, draft=clients["moa"])
    rows, talk, its = Rows(model), model.chat(plain=True), plain().chat(plain=True)
    for turn, said in enumerate((PROMPT, "class A:", "import os")):
        rows.count = 0
        texts = [[piece.token for piece in each.send(said, max_new_tokens=12, ignore_eos=True)] for each in (talk, its)]
        assert texts[0] == texts[1]
        assert talk.prompt is not None
        if turn:
            assert 0 < rows.count < len(talk.prompt) // 2
        else:
            assert rows.count == len(talk.prompt)


def test_a_prompt_that_is_asked_for_again_sends_nothing_twice(
    host: Host, clients: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_SOONEST", 0.02)
    checked, openings = Room._checked, 0

    def slow(self: Room, *its: Any) -> Any:
        time.sleep(0.1)
        return checked(self, *its)

    def opened(self: Room, *its: Any) -> None:
        nonlocal openings
        openings += 1
        opening(self, *its)

    opening = Room._open
    monkeypatch.setattr(Room, "_checked", slow)
    monkeypatch.setattr(Room, "_open", opened)
    monkeypatch.setattr(host.room, "limits", replace(host.room.limits, prompt_rows=8))
    model = client(host, draft=clients["eagle2"])
    rows = Rows(model)
    done = model.generate(PROMPT, max_new_tokens=4, ignore_eos=True)
    assert done.tokens == truth(max_new_tokens=4, ignore_eos=True).tokens
    assert openings > 1
    assert rows.count == done.prompt_tokens


def test_a_text_does_not_depend_on_what_a_drafter_sees(
    drafters: dict[str, Path], clients: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that was started again may lack the drafter, and a model may compute what no message holds."""
    its = truth(max_new_tokens=COUNT, ignore_eos=True).tokens
    first = hosted(plain(), Listening(port=0), Limits(), [str(drafters["moa"])])
    model = client(first, draft=clients["moa"])
    stream = model.stream(PROMPT, max_new_tokens=COUNT, ignore_eos=True)
    for _ in range(10):
        next(stream)
    first.close()
    second = hosted(plain(), Listening(port=int(first.url.rpartition(":")[2])), Limits())
    for _ in stream:
        pass
    second.close()
    assert stream.completion.tokens == its
    observe = ObservingLayers.__call__

    def spoiled(self: ObservingLayers, *where: Any) -> dict[str, torch.Tensor]:
        return {name: tensor * float("nan") for name, tensor in observe(self, *where).items()}

    monkeypatch.setattr(ObservingLayers, "__call__", spoiled)
    third = hosted(plain(), Listening(port=0), Limits(), [str(drafters["moa"])])
    assert client(third, draft=clients["moa"]).generate(PROMPT, max_new_tokens=COUNT, ignore_eos=True).tokens == its
    third.close()


def test_a_host_that_would_send_something_else_is_refused(
    drafters: dict[str, Path], clients: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretoken.api.hosting.layout_of", lambda _: (Part("observed", 1, 7),))
    its = hosted(plain(), Listening(port=0), Limits(), [str(drafters["moa"])])
    with pytest.raises(RemoteError, match="the host would send other features than the drafter sees"):
        client(its, draft=clients["moa"])
    its.close()


def test_features_count_as_memory(clients: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    running = hosted(plain(), Listening(port=0), Limits())
    try:
        monkeypatch.setattr(running.room, "limits", replace(running.room.limits, positions=220))
        tokens = [7] * 200
        assert client(running, draft="none").generate(tokens, max_new_tokens=8).tokens
        with pytest.raises(RemoteError, match="the host has no memory left"):
            client(running, draft=clients["eagle3"], patience=0.2).generate(tokens, max_new_tokens=8)
    finally:
        running.close()


def test_a_mixture_on_a_client_observes_nothing_itself(host: Host, clients: dict[str, str]) -> None:
    drafter = client(host, draft=clients["moa"]).drafter
    assert isinstance(drafter, Observing)
    assert drafter.beside is None
    assert not drafter.extractors
    assert drafter.needs.extractors
