"""Sequences join and leave between rounds: each that finishes is, bit for bit, what it is alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from foretoken.errors import ContractError
from foretoken.loop.schedule import Schedule
from foretoken.protocol.roles import Verifier
from foretoken.protocol.types import Request
from foretoken.verification.worker import WorkerVerifier
from tests.contracts.table import shipped
from tests.engine.open_loop import COUNT, LONG, Loop, seven
from tests.fakes import FarVerifier

DRAFTERS = (
    *shipped(),
    "fractal, int8, last layer",
    "fractal, int2, outer layers, lookup, patient",
    "model",
    "model, model, lookup",
    "model on a view, model",
    "model, tree",
    "tree, beam",
    "tree, mxfp4 on a view",
    "mxfp4, int2, lookup on stacked views",
    "lookup, left out by the model above",
    "scripted",
    "over-budget",
    "liar",
    "keys-values",
    "last-layer",
    "delayed",
)
NARROW = Schedule(rows=24, prompt_rows=7)
ROUNDS = 9  # at each of which somebody joins, and somebody leaves


def shared(loop: Loop) -> int:
    """How many rounds read a prompt and checked another sequence's draft."""
    return sum(
        any(record.drafted.get(s) for s in record.drafted if s not in record.read) and bool(record.read)
        for record in loop.records
    )


@pytest.mark.parametrize("name", DRAFTERS)
def test_whenever_others_join_and_leave_each_is_what_it_is_alone(name: str) -> None:
    """Two are there from the start. At one round a third joins, at another one of the first two leaves: every pair."""
    shape = "tree" if name in ("scripted", "liar", "keys-values") else "chain"
    together = drafted = cancelled = 0
    for number, joins in enumerate(range(ROUNDS)):
        leaves = (number * 4 + 1) % ROUNDS
        loop = Loop(name, shape=shape, schedule=NARROW)
        victim = number % 2

        def leave(loop: Loop, victim: int = victim) -> None:
            nonlocal cancelled
            cancelled += loop.verdicts[victim][-1:] == [] or not loop.verdicts[victim][-1].last
            loop.engine.cancel(victim)
            loop.expect_nothing_of(victim)

        plan: dict[int, list[Callable[[Loop], None]]] = {0: [lambda loop: loop.admit(0), lambda loop: loop.admit(1)]}
        plan.setdefault(joins, []).append(lambda loop: loop.admit(2))
        plan.setdefault(joins + 1, []).append(lambda loop: loop.admit(LONG, max_new_tokens=4))
        plan.setdefault(joins + 3, []).append(lambda loop: loop.admit(4))
        plan.setdefault(leaves, []).append(leave)
        loop.run(plan)
        loop.expect_as_alone(1 - victim)
        for newcomer in (2, LONG, 4):
            loop.expect_as_alone(newcomer, count=4 if newcomer == LONG else COUNT)
        truth = seven().plains[victim].tokens
        assert loop.tokens(victim) == truth[: len(loop.tokens(victim))], "what it said before it left is right"
        loop.expect_empty()
        loop.expect_rows_within(NARROW)
        together += shared(loop)
        drafted += sum(sum(record.drafted.values()) for record in loop.records)
    assert cancelled > 3, "vacuous: nearly all had ended before they were to leave"
    if name != "none":
        assert drafted > 0
        assert together > 0, "vacuous: no prompt was read in a pass that checked a draft"


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("name", ["model, model, lookup", "tree, beam", "mxfp4, int2, lookup on stacked views"])
def test_all_join_and_leave_one_after_the_other(name: str, at: int) -> None:
    """Each round somebody joins; from round `at` on, each round somebody leaves, whatever it is doing."""
    loop = Loop(name, schedule=Schedule(rows=16, prompt_rows=9))
    order = (1, LONG, 0, 4, 2)
    left: list[int] = []

    def join(sequence: int) -> Callable[[Loop], None]:
        return lambda loop: loop.admit(sequence)

    def leave(sequence: int) -> Callable[[Loop], None]:
        def leaves(loop: Loop) -> None:
            if sequence in loop.verdicts and sequence not in loop.finals:
                left.append(sequence)
            loop.engine.cancel(sequence)
            loop.expect_nothing_of(sequence)

        return leaves

    plan: dict[int, list[Callable[[Loop], None]]] = {}
    for step, sequence in enumerate(order):
        plan.setdefault(step, []).append(join(sequence))
    for step, sequence in enumerate(order[::2]):
        plan.setdefault(at + step, []).append(leave(sequence))
    loop.run(plan)
    for sequence in set(order) - set(left):
        if sequence in loop.finals:
            loop.expect_as_alone(sequence)
    assert len(loop.finals) + len(left) + sum(not loop.verdicts.get(s) for s in order) >= len(order)
    loop.expect_empty()
    loop.expect_rows_within(Schedule(rows=16, prompt_rows=9))


LATE: dict[str, tuple[Callable[[Verifier], Verifier], int]] = {
    "near": (lambda verifier: verifier, 1),
    "far, a round late": (FarVerifier, 1),
    "far, two rounds late": (FarVerifier, 2),
    "in a thread": (WorkerVerifier, 1),
    "in a thread, two rounds late": (WorkerVerifier, 2),
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize(
    "name",
    [
        "none",
        "lookup",
        "model, model, lookup",
        "tree, beam",
        "mxfp4, int2, lookup on stacked views",
        "scripted",
        "last-layer",
    ],
)
@pytest.mark.parametrize(
    ("joining", "leaving"),
    [((0, 3), (0, 2, 3, 7)), pytest.param((0, 3, 7), (0, 2, 3, 4, 7), marks=pytest.mark.prove)],
    ids=["some", "all"],
)
def test_those_who_leave_while_a_check_is_under_way_leave_nothing(
    name: str, late: str, joining: tuple[int, ...], leaving: tuple[int, ...]
) -> None:
    """Drafted on guesses: what was on its way for a sequence that has left is passed over when it arrives."""
    wrap, ahead = LATE[late]
    schedule = Schedule(rows=64, prompt_rows=7, ahead=ahead)
    for joins, leaves in itertools.product(joining, leaving):
        loop = Loop(name, schedule=schedule, wrap=wrap)

        def leave(loop: Loop) -> None:
            loop.engine.cancel(1)
            loop.expect_nothing_of(1)

        plan: dict[int, list[Callable[[Loop], None]]] = {0: [lambda loop: loop.admit(0), lambda loop: loop.admit(1)]}
        plan.setdefault(joins, []).append(lambda loop: loop.admit(4))
        plan.setdefault(leaves, []).append(leave)
        loop.run(plan)
        loop.expect_as_alone(0)
        loop.expect_as_alone(4)
        loop.expect_empty()
        if isinstance(loop.verifier.near, WorkerVerifier):
            loop.verifier.near.close()


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("name", ["lookup", "model, model, lookup", "tree, beam"])
def test_a_number_can_be_taken_again(name: str, ahead: int) -> None:
    """A sequence leaves, and another joins under its number: nothing of the first reaches it. While a pass with the
    first is under way, the other is refused."""
    refused = 0
    for at in range(9):
        loop = Loop(name, schedule=Schedule(prompt_rows=20, ahead=ahead))
        loop.admit(0, max_new_tokens=20)
        loop.admit(1)
        for _ in range(at):
            loop.step()
        loop.engine.cancel(1)
        tries = 0
        while any(1 in sent.sequences for sent in loop.engine._sent):
            with pytest.raises(ContractError, match="sequence 1 was cancelled, and a pass with it is still under way"):
                loop.admit(1, prompt=seven().plains[4].prompt)
            loop.expect_nothing_of(1)
            loop.step()
            tries += 1
        assert tries <= ahead
        refused += tries
        loop.admit(1, prompt=seven().plains[4].prompt)
        loop.run()
        loop.expect_as_alone(0, count=20)
        loop.expect_as_alone(1, seven().plains[4])
        loop.expect_empty()
    assert (refused > 0) == (ahead > 0)


@pytest.mark.parametrize("name", ["lookup", "model, lookup", "last-layer"])
def test_who_waits_for_a_prompt_that_is_never_read_reads_it_itself(name: str) -> None:
    """Three completions of a prompt; the first, which reads it for all, leaves at any round."""
    plain = seven().plains[0]
    waited = 0
    for leaves in range(8):
        loop = Loop(name, schedule=Schedule(rows=64, prompt_rows=8))
        loop.admit(0)
        loop.admit(1, prompt=plain.prompt, prompt_of=0)
        loop.admit(2, prompt=plain.prompt, prompt_of=0)
        for _ in range(leaves):
            loop.step()
        loop.engine.cancel(0)
        loop.expect_nothing_of(0)
        waited += not loop.tokens(1)
        loop.run()
        for sequence in (1, 2):
            loop.expect_as_alone(sequence, plain)
        cached = [loop.verdicts[s][-1 if not loop.tokens(s) else 0].cached_tokens for s in (1, 2)]
        assert cached == ([0, 0] if leaves < 5 else [len(plain.prompt) - 1] * 2)
        loop.expect_empty()
    assert 0 < waited < 8


def test_a_conversation_that_leaves_keeps_what_was_read() -> None:
    plain = seven().plains[0]
    for rounds in range(9):
        loop = Loop("model, lookup", schedule=Schedule(rows=64, prompt_rows=8))
        loop.admit(0, conversation=7)
        loop.admit(1)
        for _ in range(rounds):
            loop.step()
        said = loop.tokens(0)
        loop.engine.cancel(0)
        loop.expect_nothing_of(0)
        prompt = (*plain.prompt, *said)
        if len(said) >= COUNT:
            continue
        loop.admit(2, prompt=prompt, conversation=7, max_new_tokens=COUNT - len(said))
        loop.run()
        (first,) = [verdict for verdict in loop.verdicts[2] if verdict.round == 0 and verdict.tokens]
        read = sum(verdict.read for verdict in loop.verdicts[0])
        assert first.cached_tokens == read + max(0, len(said) - 1)
        assert min(4 * rounds, len(plain.prompt)) <= read  # two prompts share a pass
        assert said + loop.tokens(2) == plain.tokens[:COUNT]
        loop.expect_as_alone(1)
        loop.expect_empty()


def test_one_that_is_there_is_not_admitted_twice_and_one_that_is_not_can_leave() -> None:
    loop = Loop("model, model, lookup")
    loop.admit(0)
    loop.admit(1)
    loop.engine.cancel(99)
    loop.step()
    with pytest.raises(ContractError, match="sequence 0 has begun already"):
        loop.engine.admit(loop.local._sequences[0].request)
    loop.engine.cancel(1)
    loop.engine.cancel(1)
    loop.run()
    loop.expect_as_alone(0)
    loop.expect_empty()


def test_what_was_under_way_is_dropped_when_the_engine_is_closed() -> None:
    for steps in range(6):
        loop = Loop("mxfp4, int2, lookup on stacked views", schedule=NARROW)
        for sequence in (0, 1, LONG):
            loop.admit(sequence)
        for _ in range(steps):
            loop.step()
        loop.engine.close()
        loop.expect_empty()
        assert loop.engine.live == 0
        assert loop.engine.step() == [], "nothing is under way"
        loop.engine.close()


@pytest.mark.parametrize("late", LATE)
def test_no_result_waits_for_ever_when_a_run_has_ended_or_is_closed(late: str) -> None:
    """Passes that were started on guesses behind the end of the last sequence, or when somebody closed it."""
    wrap, ahead = LATE[late]
    waiting = 0
    for rounds in (1, 2, 3, 4, 99):
        loop = Loop("scripted", schedule=Schedule(prompt_rows=20, ahead=ahead), wrap=wrap)
        run = loop.engine.run([Request(s, seven().plains[s].prompt, COUNT) for s in (0, 1)])
        for _ in zip(range(rounds), run, strict=False):
            waiting += len(loop.engine._sent) > 0
        run.close()
        assert not loop.engine._sent
        if isinstance(loop.verifier.near, WorkerVerifier):
            assert loop.verifier.near._passes == {}
            loop.verifier.near.close()
        loop.expect_empty()
    assert waiting > 0
