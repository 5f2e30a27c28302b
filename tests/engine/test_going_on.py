"""A loop goes on behind a pass that was broken off, behind what failed for one, and beside Python's collector."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from threading import Thread
from typing import Any

import pytest
import torch

import foretoken
from foretoken.decoder.cache import Cache
from foretoken.drafters.nothing import NothingDrafter
from foretoken.errors import NumericsError
from foretoken.loop.schedule import Schedule
from foretoken.protocol.types import Needs
from foretoken.verification.local import LocalVerifier
from foretoken.verification.worker import WorkerVerifier
from tests.engine.open_loop import COUNT, Loop, apart, seven
from tests.engine.test_open_loop import LATE
from tests.world import GREEDY, World, chain_of, decode


@pytest.mark.parametrize("late", [None, "far, a round late", "in a thread, two rounds late"])
@pytest.mark.parametrize("name", ["none", "lookup", "model, model, lookup", "tree, beam", "scripted"])
def test_whichever_pass_is_broken_off_the_loop_goes_on(
    name: str, late: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For whatever reason: the next step makes the round again, and no bit differs."""
    wrap, ahead = (lambda verifier: verifier, 0) if late is None else LATE[late]
    broken = 0
    for at in range(7):
        loop = Loop(name, schedule=Schedule(prompt_rows=20, ahead=ahead), wrap=wrap)
        real, passes = loop.local._pass, iter(range(10**6))

        def interrupted(*given: Any, real: Any = real, passes: Any = passes, at: int = at) -> Any:
            if next(passes) == at:
                raise MemoryError("no memory for this pass")
            return real(*given)

        monkeypatch.setattr(loop.local, "_pass", interrupted)
        for sequence in (0, 1):
            loop.admit(sequence)
        for _ in range(200):
            try:
                loop.step()
            except MemoryError:
                broken += 1
            if not loop.engine.live:
                break
        loop.run()
        for sequence in (0, 1):
            loop.expect_as_alone(sequence)
        loop.expect_empty()
        if isinstance(loop.verifier.near, WorkerVerifier):
            loop.verifier.near.close()
    assert broken == 7


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize(
    "name", ["model on a view, model", "tree, mxfp4 on a view", "mxfp4, int2, lookup on stacked views"]
)
def test_the_targets_cache_grows_while_others_draft_on_views_of_it(name: str, ahead: int) -> None:
    """In a thread of its own, at any time: the target's cache outgrows the memory that it began with."""
    one, other = (plain.prompt for plain in seven().plains[:2])
    line = (*one, *other) * 20
    plains = tuple(decode(seven().target, line[:length], COUNT, GREEDY) for length in (236, 241, 246, 250))
    for drafted in (2, 5):  # of which the last is held back, as the bonus that is guessed
        loop = Loop(
            name,
            world=World(seven().target, plains),
            wrap=WorkerVerifier,
            schedule=Schedule(ahead=ahead),
            tokens=drafted,
        )
        for sequence in range(len(plains)):
            loop.admit(sequence)
        loop.run()
        for sequence in range(len(plains)):
            loop.expect_as_alone(sequence)
        assert sum(sum(record.accepted.values()) for record in loop.records) > 0
        loop.expect_empty()
        loop.verifier.near.close()


class FailingOnce:
    """An extractor that fails once."""

    name = "failing-once"

    def __init__(self, at: int) -> None:
        self.at, self.asked = at, 0

    def __call__(self, cache: Cache, start: int, stop: int) -> Mapping[str, torch.Tensor]:
        self.asked += 1
        if self.asked == self.at:
            raise NumericsError("features of this one are NaN")
        return {}


class Looking(NothingDrafter):
    """Drafts nothing, and wants what an extractor makes."""

    needs = Needs(extractors=("failing-once",))

    def __init__(self, extractor: FailingOnce) -> None:
        self.extractors = (extractor,)


@pytest.mark.parametrize("at", [1, 3, 4, 8])
def test_features_that_cannot_be_made_end_their_own_sequence(at: int) -> None:
    loop = Loop(Looking(FailingOnce(at)), world=apart(), budgets=chain_of(1))
    for sequence in range(3):
        loop.admit(sequence)
    loop.run()
    failed = [sequence for sequence in range(3) if loop.error(sequence) is not None]
    assert failed == [(at - 1) % 3]
    assert str(loop.error(failed[0])) == "features of this one are NaN"
    for sequence in {0, 1, 2} - set(failed):
        loop.expect_as_alone(sequence)
    loop.expect_empty()


def test_an_error_that_is_kept_holds_no_cache() -> None:
    loop = Loop("lookup", world=apart())
    real = loop.local._judge

    def failing(check: Any, at: int, draft: Any, *more: Any) -> Any:
        if draft.sequence == 1 and draft.round == 3:
            raise NumericsError("of its own")
        return real(check, at, draft, *more)

    loop.local._judge = failing
    for sequence in range(3):
        loop.admit(sequence)
    loop.run()
    error = loop.error(1)
    assert error is not None
    assert error.__traceback__ is error.__context__ is error.__cause__ is None
    del loop.finals[0], loop.finals[2]  # snapshots of the test's own
    caches = [held for held in gc.get_referrers(error) if isinstance(held, Cache)]
    assert not caches


def test_who_shares_a_prompt_waits_for_it_and_for_nobody_else() -> None:
    """All but one row of it is there then: the others read theirs in one pass, however few rows a pass may have."""
    prompt = seven().plains[3].prompt
    plain = decode(seven().target, prompt, 20, GREEDY)
    loop = Loop("none", world=World(seven().target, (plain,) * 6), schedule=Schedule(prompt_rows=len(prompt) // 3 + 1))
    for sequence in range(6):
        loop.admit(sequence, prompt=prompt, prompt_of=0 if sequence else None)
    loop.run()
    for sequence in range(6):
        loop.expect_as_alone(sequence)
    read = [dict(record.read) for record in loop.records if record.read]
    assert [set(each) for each in read] == [{0}, {0}, {0}, {1, 2, 3, 4, 5}]
    assert read[-1] == dict.fromkeys(range(1, 6), 1)


def test_a_conversation_may_be_forgotten_in_the_verifiers_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's collector comes by in any thread, and ends a conversation that nobody holds there."""
    model = foretoken.load("stdlib-1m", draft="none", threads=1)
    near = model._verifier
    assert isinstance(near, LocalVerifier)
    model._verifier = worker = WorkerVerifier(near)
    real = near.submit

    def submit(*given: Any) -> int:
        worker.forget(99)
        return real(*given)

    monkeypatch.setattr(near, "submit", submit)
    found: list[tuple[int, ...]] = []
    thread = Thread(target=lambda: found.append(model.generate([5, 6], max_new_tokens=2).tokens), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for itself"
    assert found
    worker.close()


def test_what_many_prompts_have_done_is_not_kept() -> None:
    model = foretoken.load("stdlib-1m", draft="lookup", threads=1, pace="fixed")
    most = 0
    for index, done in model.generate_many([[5, 6, 7]] * 60, as_completed=True, at_once=2, max_new_tokens=6, seed=1):
        del done
        if index % 12:
            continue  # looking at all objects takes a tenth of a second
        most = max(most, sum(type(held).__name__ == "RoundRecord" for held in gc.get_objects()))
    assert 0 < most < 40
