"""Sequences begin, run side by side and end, and leave nothing behind, whatever happens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from foretoken.decoder.caches import Caches
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.nothing import NothingDrafter
from foretoken.errors import ContractError
from foretoken.loop.engine import Engine
from foretoken.protocol.types import Draft, Turn
from foretoken.verification.local import LocalVerifier
from tests.engine.common import request
from tests.fakes import Fake
from tests.world import chain_of, make_world


def test_closing_a_run_frees_both_sides() -> None:
    caches, drafter = Caches(), LookupDrafter()
    verifier = LocalVerifier(make_world().target, caches)
    run = Engine(verifier, drafter, budgets=chain_of(5)).run([request(0), request(1)])
    next(run)
    next(run)
    assert caches[0].length > 0
    run.close()
    for sequence in (0, 1):
        with pytest.raises(ContractError, match=f"sequence {sequence} has not begun, or has ended"):
            caches[sequence]
    assert drafter._texts == {}


def test_a_sequence_leaves_nothing_for_the_next_one() -> None:
    world, caches = make_world(), Caches()
    verifier, drafter = LocalVerifier(world.target, caches), LookupDrafter()
    for _ in range(2):
        rounds = list(Engine(verifier, drafter, budgets=chain_of(5)).run([request()]))
        assert tuple(t for (v,) in rounds for t in v.tokens) == world.plains[0].tokens


def test_runs_may_be_interleaved_on_one_verifier_and_drafter() -> None:
    world, drafter = make_world(), LookupDrafter()
    verifier = LocalVerifier(world.target, Caches())
    runs = [Engine(verifier, drafter, budgets=chain_of(4)).run([request(s)]) for s in (0, 1)]
    got: list[list[int]] = [[], []]
    alive = {0, 1}
    while alive:
        for s in tuple(alive):
            verdicts = next(runs[s], None)
            if verdicts is None:
                alive.remove(s)
            else:
                got[s] += verdicts[0].tokens
    assert [tuple(tokens) for tokens in got] == [plain.tokens for plain in world.plains]


class Raises(Fake):
    """A drafter with a bug."""

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        raise ZeroDivisionError("a bug in a drafter")


def test_a_drafters_exception_comes_through_and_leaves_nothing_behind() -> None:
    caches = Caches()
    engine = Engine(LocalVerifier(make_world().target, caches), Raises(), budgets=chain_of(3))
    with pytest.raises(ZeroDivisionError):
        list(engine.run([request()]))
    with pytest.raises(ContractError):
        caches[0]


@pytest.mark.parametrize("engines", [1, 2])
def test_a_second_run_with_a_live_sequence_is_refused_and_does_not_harm_the_first(engines: int) -> None:
    world, drafter = make_world(), LookupDrafter()
    verifier = LocalVerifier(world.target)
    engine, *others = [Engine(verifier, drafter, budgets=chain_of(4)) for _ in range(engines)]
    first = engine.run([request(0)])
    tokens = list(next(first)[0].tokens)
    with pytest.raises(ContractError, match="sequence 0 has begun already"):
        next((others or [engine])[-1].run([request(1), request(0)]))
    tokens += [token for (verdict,) in first for token in verdict.tokens]
    assert tuple(tokens) == world.plains[0].tokens
    assert drafter._texts == {}
    assert verifier.caches._caches == {}


class EndsBadly(Fake):
    """A drafter whose `end` has a bug."""

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        return []

    def end(self, sequence: int) -> None:
        raise ZeroDivisionError


def test_a_drafter_that_fails_to_end_does_not_keep_the_targets_memory() -> None:
    caches = Caches()
    verifier = LocalVerifier(make_world().target, caches)
    with pytest.raises(ZeroDivisionError):
        list(Engine(verifier, EndsBadly(), budgets=chain_of(3)).run([request(0), request(1)]))
    assert caches._caches == {}


def test_a_sequence_that_has_finished_frees_its_memory_while_others_go_on() -> None:
    caches = Caches()
    verifier = LocalVerifier(make_world().target, caches)
    run = Engine(verifier, NothingDrafter(), budgets=chain_of(3)).run([request(0, 2), request(1, 6)])
    held = [sorted(caches._caches) for _ in run]
    assert held[0] == [0, 1]
    assert held[-1] == [1]
