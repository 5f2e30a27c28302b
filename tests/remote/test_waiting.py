"""A pass of a host waits for drafts that are about to come, if its clients gain by it."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from foretoken.remote.network import PROFILES
from foretoken.remote.virtual import Step, play
from foretoken.remote.waiting import Coming, Habit, pause
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
    its.replied(6.11, 7)
    assert its.usual == pytest.approx(0.01 + 0.3 * 0.1)


@pytest.mark.parametrize(("network", "most"), [("lan", 1.15), ("base", 1.3)])
def test_clients_that_were_out_of_step_share_their_passes(network: str, most: float) -> None:
    chance = random.Random(1)
    texts = [[Step(chance.expovariate(1 / 0.0005), 1, 1, 40, 40) for _ in range(200)] for _ in range(4)]
    done = play(texts, PROFILES[network], flat, handling=0.003)
    assert done.passes < most * 200
    assert done.tokens_per_second > 4 / most / (flat(4) + 0.016)


def test_a_host_waits_for_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True}
    prompts = [PROMPT, "import os\n"]
    passes = {}
    for waits in (False, True):
        with serving() as host:
            room, texts = host.room, dict[str, tuple[int, ...]]()
            submit = room._verifier.submit
            monkeypatch.setattr(
                room._verifier, "submit", lambda *args, submit=submit: (time.sleep(0.03), submit(*args))[1]
            )
            monkeypatch.setattr(room, "_checking", (lambda rows: 0.03 + 0.0005 * rows) if waits else None)

            def work(prompt: str, host: Any = host, texts: Any = texts) -> None:
                texts[prompt] = client(host, draft="none").generate(prompt, **settings).tokens

            threads = [threading.Thread(target=work, args=(prompt,)) for prompt in prompts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert texts == {prompt: truth(prompt, **settings).tokens for prompt in prompts}
            passes[waits] = room.passes
    assert passes[True] < 40 <= passes[False], "of 48 rounds"
