"""Prefixes where something breaks: interruptions at any line, passes that break off, sequences that fail."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

import foretoken
from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows
from foretoken.protocol.types import Needs, Request, Verdict
from foretoken.verification.local import LocalVerifier
from foretoken.verification.prefixes import Prefixes
from tests.engine.prefix_server import LENGTH, SHARED, Server, alike, engine_of, scripted
from tests.interrupts import Interrupts, interrupted_behind_the_commit
from tests.world import LONGEST, Plain, make_world

FILES = ("verification/local.py", "verification/prefixes.py", "decoder/caches.py", "decoder/cache.py")
STEPS = pytest.mark.parametrize(
    ("files", "step"),
    [(FILES[:1], 1), (FILES, 4), pytest.param(FILES, 1, marks=pytest.mark.prove)],
    ids=["the verifier's", "some", "all"],
)


def begun() -> Server:
    """A server with one sequence that ended, one under way, and one that begins as the first did."""
    server = Server(scripted, alike())
    server.admit(0, 6)
    server.run()
    server.admit(1)
    server.run(until=1)
    server.admit(0)
    return server


def go_on(server: Server) -> None:
    """Whatever was interrupted: both sequences, and the next one, are what they would have been."""
    server.run()
    plains = server.world.plains
    for s in (0, 1):
        assert server.tokens(s) in (plains[s].tokens, ())
        if server.tokens(s):
            assert server.ends[s].digest_at(len(plains[s].prompt) + LONGEST - 1) == plains[s].digests[LONGEST]
    server.expect_kept()
    server.admit(0)
    server.run()
    assert server.tokens(0) == server.world.plains[0].tokens
    server.close()


@STEPS
def test_wherever_a_beginning_is_interrupted_it_is_made_again(files: Sequence[str], step: int) -> None:
    def begin(server: Server) -> None:
        server.verifier._begin(server.verifier._sequences[0])

    interrupts, server = Interrupts(*files), begun()
    lines = interrupts.count(partial(begin, server))
    assert lines > 10
    assert server.caches[0].length == LENGTH - 1
    again = 0
    for at in range(0, lines, step):
        server = begun()
        interrupts.during(partial(begin, server), at)
        server.expect_kept()
        server.run(until=0)
        again += server.cached(0) == LENGTH - 1
        go_on(server)
    assert again == len(range(0, lines, step)), "what is copied is lost to nobody"


@STEPS
def test_wherever_an_end_is_interrupted_the_other_sequences_go_on(files: Sequence[str], step: int) -> None:
    def end(server: Server) -> None:
        server.engine.cancel(0)

    def ready() -> Server:
        server = begun()
        server.run(until=0)
        server.step()
        return server

    interrupts = Interrupts(*files)
    lines = interrupts.count(partial(end, ready()))
    assert lines > 8
    for at in range(0, lines, step):
        server = ready()
        interrupts.during(partial(end, server), at)
        server.expect_kept()
        memories = [kept.cache._memory.keys.data_ptr() for _, kept in server.prefixes._known()]
        live = [each._memory.keys.data_ptr() for s, each in server.caches._caches.items() if s != 0]
        assert len({*memories, *live}) == len(memories) + len(live), "each memory is somebody's alone"
        server.verifier.end(0)
        server.verdicts[0] = []
        go_on(server)


@pytest.mark.parametrize("after", range(4))
def test_a_pass_that_breaks_off_behind_a_prefix_is_made_again(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    server = begun()
    check, passes = Decoder.check, iter(range(after))

    def broken(self: Decoder, rows: Rows, *more: Any, **named: Any) -> Outputs:
        found = check(self, rows, *more, **named)
        if next(passes, None) is None:
            raise MemoryError
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "check", broken)
        with pytest.raises(MemoryError):
            server.run()
    server.run()
    server.expect(0, LONGEST, cached=LENGTH - 1)
    server.expect(1, LONGEST, cached=SHARED)
    server.close()


def test_of_a_round_that_was_broken_off_while_it_committed_only_what_is_known_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(scripted, alike())
    server.admit(0)
    server.run(until=0)
    with interrupted_behind_the_commit(monkeypatch):
        server.run()
    known = LENGTH + len(server.tokens(0))  # the row of the last one was committed, too
    assert server.caches[0].length > known
    server.engine.cancel(0)
    assert server.prefixes.positions == known
    server.expect_kept()
    server.admit(0)
    server.run()
    server.expect(0, LONGEST, cached=LENGTH - 1)
    server.close()


class Fails:
    """An extractor that fails for one sequence's text."""

    name = "fails"

    def __init__(self) -> None:
        self.armed = False

    def __call__(self, cache: Cache, start: int, stop: int) -> dict[str, torch.Tensor]:
        if self.armed:
            raise foretoken.ForetokenError("it fails")
        return {}


def test_of_a_sequence_that_fails_nothing_is_kept_nor_what_it_may_have_begun_with() -> None:
    world, fails, prefixes = make_world(), Fails(), Prefixes(1000)
    verifier = LocalVerifier(world.target, extractors=[fails], prefixes=prefixes)
    plain, other = world.plains

    def one(plain: Plain) -> Verdict:
        engine = engine_of(verifier)
        engine._drafter.needs = Needs(extractors=("fails",))
        return [verdict for (verdict,) in engine.run([Request(0, plain.prompt, 2)])][-1]

    assert one(plain).error is one(other).error is None
    assert prefixes.positions == 2 * (LENGTH + 1)
    fails.armed = True
    assert one(plain).error is not None
    assert [kept.tokens[:LENGTH] for _, kept in prefixes._known()] == [other.prompt]
