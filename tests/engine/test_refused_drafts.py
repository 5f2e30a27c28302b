"""Drafts and rows that break the rules are refused before they can do harm."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foretoken.decoder.caches import Caches
from foretoken.errors import ContractError
from foretoken.protocol.types import PromptChunk, Turn
from foretoken.verification.local import LocalVerifier
from tests.costs import cost_of
from tests.costs import counting as counting
from tests.engine.common import both, request
from tests.fakes_inside import Halves
from tests.world import Run, make_world, read


def test_two_drafts_for_one_sequence_are_refused_before_anything_happens() -> None:
    world = make_world()
    verifier = LocalVerifier(world.target)
    (first,) = read(verifier, [request()])
    draft = Turn(0, 1, first.position + 1, 3, 3).chain(world.plains[0].tokens[1:3], "test")
    for twice in ([draft, draft], [draft, replace(draft, tokens=(3, 4))]):
        with pytest.raises(ContractError, match="two drafts or chunks came for one sequence; expected one for each"):
            verifier.submit(twice)
    with pytest.raises(ContractError, match="two drafts or chunks came for one sequence"):
        verifier.submit([draft], [PromptChunk(0, 1)])
    ticket = verifier.submit([draft])
    assert verifier.result(ticket)[0].tokens == world.plains[0].tokens[1:4]
    with pytest.raises(ContractError, match="there is no check with ticket"):
        verifier.result(ticket)


def test_a_draft_that_is_not_current_is_passed_over_and_the_one_that_is_is_judged() -> None:
    """For another round, another place, a sequence that is not there or has ended: nothing is computed for it."""
    world = make_world()
    verifier = LocalVerifier(world.target)
    (first,) = read(verifier, [request(count=5)])
    position, tokens = first.position + 1, world.plains[0].tokens
    before = verifier.caches[0].digest()
    elsewhere = [
        Turn(0, 0, position, 3, 3),
        Turn(0, 2, position, 3, 3),
        Turn(0, 1, position - 1, 3, 3),
        Turn(0, 1, position + 1, 3, 3),
        Turn(9, 1, position, 3, 3),
    ]
    for turn in elsewhere:
        cost = cost_of(world.target)
        assert verifier.result(verifier.submit([turn.chain(tokens[1:3], "test")])) == []
        assert cost_of(world.target) == cost
    assert verifier.caches[0].digest() == before
    assert verifier.caches[0].scratch == 0
    now = Turn(0, 1, position, 3, 3).chain(tokens[1:3], "test")
    (verdict,) = verifier.result(verifier.submit([elsewhere[-1].chain([1], "test"), now]))
    assert verdict.tokens == tokens[1:4]
    assert verifier.result(verifier.submit([now])) == [], "once is enough"
    (last,) = verifier.result(verifier.submit([Turn(0, 2, position + 3, 3, 3).chain([1], "test")]))
    assert last.finish_reason == "length"
    assert verifier.result(verifier.submit([Turn(0, 3, position + 4, 3, 3).chain([1], "test")])) == []
    verifier.end(0)
    assert verifier.result(verifier.submit([Turn(0, 3, position + 4, 3, 3).chain([1], "test")])) == []


def test_the_verifier_refuses_what_comes_out_of_order() -> None:
    verifier = LocalVerifier(make_world().target)
    verifier.admit(request())
    with pytest.raises(ContractError, match="sequence 0 has begun already"):
        verifier.admit(request())
    with pytest.raises(ContractError, match="a draft came for sequence 0, whose prompt has not been read"):
        verifier.submit([Turn(0, 0, 36, 3, 3).chain([1], "test")])
    with pytest.raises(ContractError, match="a chunk of 0 rows came for sequence 0; expected one that is reading"):
        verifier.submit([], [PromptChunk(0, 0)])
    (verdict,) = verifier.result(verifier.submit([], [PromptChunk(0, 10)]))
    assert (verdict.tokens, verdict.read, verdict.prompt_left) == ((), 10, 26)
    with pytest.raises(ContractError, match="a draft came for sequence 0, whose prompt has not been read"):
        verifier.submit([Turn(0, 0, 36, 3, 3).chain([1], "test")])
    (verdict,) = verifier.result(verifier.submit([], [PromptChunk(0, 99)]))
    assert (verdict.tokens, verdict.read, verdict.prompt_left) == (make_world().plains[0].tokens[:1], 26, 0)
    with pytest.raises(ContractError, match="a chunk of 5 rows came for sequence 0; expected one that is reading"):
        verifier.submit([], [PromptChunk(0, 5)])
    with pytest.raises(ContractError, match="there is no check with ticket 99"):
        verifier.result(99)


class WritesIntoTheTarget(Halves):
    """A drafter that breaks the rules: it writes its own rows into the target's cache, not into a view, as soon as the
    target has written layer 1 (in PyTorch through `write`; natively by address, which `tag` then notes)."""

    def guess(self, turn: Turn) -> list[int]:
        cache = self.caches[turn.sequence]
        real_write, real_tag = cache.write, cache.tag

        def overwrite(slots: range, writer: int) -> None:
            keys, values = (t[cache.length + slots.start :][: len(slots)] for t in cache.read(1))
            real_write(1, slots, keys * 2, values, writer + 10**6)

        def write(layer: int, slots: range, keys: torch.Tensor, values: torch.Tensor, writer: int) -> None:
            real_write(layer, slots, keys, values, writer)
            if layer == 1:
                overwrite(slots, writer)

        def tag(layers: range, slots: range, writer: int) -> None:
            real_tag(layers, slots, writer)
            if 1 in layers:
                overwrite(slots, writer)

        cache.write, cache.tag = write, tag  # type: ignore[method-assign]
        return super().guess(turn)


@both
def test_a_commit_refuses_rows_that_a_drafter_wrote(arithmetic: str) -> None:
    world, caches = make_world(arithmetic), Caches()
    with pytest.raises(ContractError, match="of layer 1 was not written by the pass that commits it"):
        Run(world.target, WritesIntoTheTarget(world.target, caches), [request()], caches=caches)
