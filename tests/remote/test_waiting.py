"""A pass of a host waits for drafts that are about to come, if its clients gain by it."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from foretoken.pace.cost import Moment, PassCost
from foretoken.prices.price import Price
from foretoken.remote.guests import pause_for
from foretoken.remote.network import PROFILES
from foretoken.remote.virtual import Step, play
from foretoken.remote.waiting import Coming, Habit, pause
from foretoken.remote.wire import DraftBody
from tests.remote.served import PROMPT, client, serving, truth


def flat(rows: int) -> float:
    """A pass that reads its weights: more rows hardly cost time."""
    return 0.08 + 0.001 * rows


def steep(rows: int) -> float:
    """A pass that computes: every row costs as much."""
    return 0.02 * rows


def test_a_pass_waits_if_all_together_have_their_answers_sooner() -> None:
    assert pause([1], [], flat) == 0
    assert pause([1], [Coming(0.005, 1)], flat) == 0.005
    assert pause([1], [Coming(0.005, 1)], steep) == 0, "the one that is there would wait for nothing"
    assert pause([1], [Coming(0.07, 1)], flat) == 0, "too late to be waited for"
    assert pause([1], [Coming(0.005, 1), Coming(0.07, 1), Coming(0.01, 1)], flat) == 0.01, "for some of them"
    assert pause([1] * 20, [Coming(0.03, 1)], flat) == 0, "twenty would wait for one"


def test_a_habit_is_learned_and_what_is_late_is_not_waited_for() -> None:
    its = Habit()
    its.replied(1.0, 4)
    assert its.coming(1.0) is None, "nobody knows yet"
    for now in (2.0, 3.0, 4.0):
        its.answered = now
        its.replied(now + 0.01, 7)
        assert its.coming(now + 0.01) is None, "it is there"
    its.answered = 5.0
    coming = its.coming(5.002)
    assert coming is not None
    assert coming.rows == 7
    assert 0.008 < coming.seconds < 0.015
    assert its.coming(5.03) is None, "it is late"
    its.answered = 6.0
    its.replied(9.0, 7)
    assert its.usual == pytest.approx(0.01), "one long pause says nothing"
    its.answered = 10.0
    its.replied(9.9, 7)
    assert its.usual == pytest.approx(0.01), "a draft that was sent before its answer says nothing"
    assert its.coming(10.0) is None


def test_guests_that_are_about_to_draft_are_waited_for() -> None:
    def guest(*, tokens: int | None = None, usual: float = 0.005, left: int = 0, ended: bool = False) -> Any:
        draft = None if tokens is None else (0, DraftBody(0, (1,) * tokens, tuple(range(-1, tokens - 1))))
        habit = Habit()
        habit._took.extend([usual] * 3)
        habit.answered = time.monotonic() if tokens is None else None
        return SimpleNamespace(current=draft, left=left, replay=[], ended=ended, habit=habit)

    def waits(*guests: Any, cost: Any = None) -> bool:
        known = SimpleNamespace(known=True, of=flat)
        return pause_for(guests, lambda each: bool(each.left or each.current), cost or known) > 0

    assert waits(guest(tokens=2), guest())
    assert not waits(guest())
    assert not waits(guest(tokens=2))
    assert not waits(guest(tokens=2), guest(usual=0.2)), "too far away"
    assert not waits(guest(tokens=2), guest(ended=True))
    assert not waits(guest(tokens=2), guest(), guest(left=9)), "a prompt is read"
    assert not waits(guest(tokens=2), guest(), cost=SimpleNamespace(known=False, of=flat))


@pytest.mark.parametrize(("network", "most"), [("lan", 1.15), ("base", 1.3)])
def test_clients_that_were_out_of_step_share_their_passes(network: str, most: float) -> None:
    chance = random.Random(1)
    texts = [[Step(chance.expovariate(1 / 0.0005), 1, 1, 40, 40) for _ in range(200)] for _ in range(4)]
    done = play(texts, PROFILES[network], flat, handling=0.003)
    assert done.passes < most * 200
    assert done.tokens_per_second > 4 / most / (flat(4) + 0.016)


def shared(prompts: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many passes a host makes for two clients, where a pass takes 40 ms."""
    settings: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True}
    with serving() as host:
        submit, texts = host.room._verifier.submit, dict[str, tuple[int, ...]]()
        monkeypatch.setattr(host.room._verifier, "submit", lambda *args: (time.sleep(0.04), submit(*args))[1])
        monkeypatch.setattr(host.room, "_checking", PassCost(Price({1: 0.04, 8: 0.041}), Moment()))

        def work(prompt: str) -> None:
            texts[prompt] = client(host, draft="none").generate(prompt, **settings).tokens

        threads = [threading.Thread(target=work, args=(prompt,)) for prompt in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert texts == {prompt: truth(prompt, **settings).tokens for prompt in prompts}
        return host.room.passes


def test_clients_of_a_host_share_its_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50 passes. Another program may disturb it, so it is tried again."""
    prompts = [PROMPT, "import os\n"]
    assert any(shared(prompts, monkeypatch) < 40 for _ in range(3))


def test_no_draft_is_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "foretoken.remote.room.pause_for", lambda guests, is_ready, cost: 0.01 * any(map(is_ready, guests))
    )
    monkeypatch.setattr("foretoken.remote.room._PAUSE", 0.05)
    with serving() as host:
        done = client(host, draft="lookup").generate(PROMPT, max_new_tokens=8)
        assert done.tokens == truth(max_new_tokens=8).tokens
        stream = client(host, draft="none").stream(PROMPT, max_new_tokens=50)
        next(stream)
    stream.close()
