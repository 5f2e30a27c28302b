"""What a round may draft, where the last one ends, and what is recorded of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from foretoken.drafters.nothing import NothingDrafter
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Draft, Request, Turn
from tests.engine.common import request
from tests.fakes import Fake, Scripted
from tests.tiny import tiny_decoder
from tests.world import Run, make_world


def test_the_context_ends_a_generation_exactly() -> None:
    target = tiny_decoder(max_position_embeddings=24)
    prompt = tuple(range(1, 18))
    plain = Run(target, NothingDrafter(), [Request(0, prompt, 100)]).sequences[0]
    assert (len(plain.tokens), plain.finish_reason) == (24 - 17, "length")
    run = Run(target, Scripted({0: prompt + plain.tokens}), [Request(0, prompt, 100)], num_speculative_tokens=16)
    assert run.sequences[0].tokens == plain.tokens
    assert run.sequences[0].finish_reason == "length"
    assert sum(record.accepted.get(0, 0) for record in run.records) > 0


def test_the_last_round_drafts_no_more_than_can_be_used() -> None:
    world = make_world()
    drafter = Scripted({0: world.plains[0].prompt + world.plains[0].tokens})
    run = Run(world.target, drafter, [request(count=2)], num_speculative_tokens=16)
    assert [record.drafted.get(0, 0) for record in run.records] == [0, 0], "the second token is the bonus"


class Idle(Fake):
    """Proposes nothing, after some work."""

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        return [turn.chain((), self.name, (Work("inner", rows=3),)) for turn in turns]


def test_the_work_of_an_empty_draft_is_recorded() -> None:
    run = Run(make_world().target, Idle(), [request(count=4)])
    assert [record.work for record in run.records[1:]] == [{0: (Work("inner", rows=3),)}] * 3


def test_the_work_of_several_sequences_is_told_apart() -> None:
    run = Run(make_world().target, Idle(), [request(count=3), request(count=2, sequence=1)])
    assert [set(record.work) for record in run.records] == [set(), {0, 1}, {0}]


def test_rounds_follow_each_other_in_time() -> None:
    records = Run(make_world().target, Idle(), [request(count=4)]).records
    for before, after in itertools.pairwise(records):
        assert before.began + before.propose_seconds + before.check_seconds <= after.began
