"""Drafts and rows that break the rules are refused before they can do harm."""

from __future__ import annotations

import pytest
import torch

from foretoken.decoder.caches import Caches
from foretoken.errors import ContractError
from foretoken.types import Turn
from foretoken.verification.local import LocalVerifier
from tests.engine.common import both, request
from tests.fakes import Halves
from tests.world import Run, make_world


def test_two_drafts_for_one_sequence_are_refused_before_anything_happens() -> None:
    world = make_world()
    verifier = LocalVerifier(world.target)
    (first,) = verifier.begin([request()])
    draft = Turn(0, 1, first.position + 1, 3, 3).chain(world.plains[0].tokens[1:3], "test")
    with pytest.raises(ContractError, match="two drafts came for one sequence"):
        verifier.submit([draft, draft])
    ticket = verifier.submit([draft])
    assert verifier.result(ticket)[0].tokens == world.plains[0].tokens[1:4]
    with pytest.raises(ContractError, match="there is no check with ticket"):
        verifier.result(ticket)


def test_the_verifier_refuses_a_draft_for_another_round_or_sequence() -> None:
    verifier = LocalVerifier(make_world().target)
    (verdict,) = verifier.begin([request()])
    late = Turn(0, 0, verdict.position + 1, 3, 3).chain([1], "test")
    with pytest.raises(ContractError, match=r"is for round 0, position 37; expected round 1, position 37"):
        verifier.submit([late])
    with pytest.raises(ContractError, match="sequence 9, which has not begun, or has ended"):
        verifier.submit([Turn(9, 1, 3, 3, 3).chain([1], "test")])
    with pytest.raises(ContractError, match="sequence 0 has begun already"):
        verifier.begin([request()])


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
