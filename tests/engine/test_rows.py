"""The rows of a pass are shared: between prompts that are read and drafts that are checked, and among drafts."""

from __future__ import annotations

import pytest

from foretoken.loop.schedule import Schedule
from tests.engine.open_loop import LONG, Loop, seven


def test_prompts_are_read_in_chunks_side_by_side() -> None:
    loop = Loop("none", schedule=Schedule(rows=1024, prompt_rows=10))
    for sequence in (0, 2, 1):
        loop.admit(sequence)
    loop.run()
    lengths = {sequence: len(seven().plains[sequence].prompt) for sequence in (0, 1, 2)}
    first = min((0, 2, 1), key=lambda sequence: lengths[sequence])
    reads = [record.read for record in loop.records if record.read]
    assert sum(reads[0].values()) == 10
    assert len(reads[0]) == 3, "each goes on"
    assert reads[0][first] == min(lengths[first], 5), "the shortest gets half, or what it needs"
    assert {s: sum(record.read.get(s, 0) for record in loop.records) for s in lengths} == lengths
    for sequence in (0, 1, 2):
        *parts, last = [verdict for verdict in loop.verdicts[sequence] if verdict.read]
        left = lengths[sequence]
        for verdict in parts:
            left -= verdict.read
            assert verdict.tokens == ()
            assert (verdict.round, verdict.position, verdict.prompt_left) == (0, lengths[sequence], left)
        assert last.prompt_left == 0
        assert len(last.tokens) == 1
        loop.expect_as_alone(sequence)


@pytest.mark.parametrize("name", ["none", "model, lookup", "tree, beam"])
def test_a_long_prompt_keeps_nobody_from_going_on(name: str) -> None:
    loop = Loop(name, schedule=Schedule(rows=30, prompt_rows=4))
    loop.admit(0, max_new_tokens=20)
    while not loop.tokens(0):
        loop.step()
    loop.admit(LONG)
    while 0 not in loop.finals:
        said = len(loop.tokens(0))
        loop.step()
        assert len(loop.tokens(0)) > said, "each round brings it a token, whatever is read meanwhile"
        record = loop.records[-1]
        assert record.read == {LONG: 4}
        assert record.new_tokens[0] >= 1
    loop.run()
    loop.expect_as_alone(0, count=20)
    loop.expect_as_alone(LONG)


def test_drafts_are_cut_before_anybody_waits() -> None:
    """Whatever fits into a pass: all that are under way gain a token each round."""
    three, cut = (2, 5, 6), []
    for rows in (1, 2, 4, 7, 9, 24):
        loop = Loop("over-budget", schedule=Schedule(rows=rows, prompt_rows=50), tokens=5)
        for sequence in three:
            loop.admit(sequence, max_new_tokens=20)
        together = 0
        while not loop.finals:
            before = {sequence: len(loop.tokens(sequence)) for sequence in three}
            loop.step()
            assert all(len(loop.tokens(sequence)) > count for sequence, count in before.items() if count)
            together += all(before.values())
        assert together > 1
        drafts = [drafts for drafts, _ in loop.verifier.passes if len(drafts) == 3]
        cut.append(max(max(draft.values()) - 1 for draft in drafts))
        loop.run()
        for sequence in three:
            loop.expect_as_alone(sequence, count=20)
        loop.expect_rows_within(Schedule(rows=rows, prompt_rows=50))
    assert cut == [0, 0, 0, 1, 2, 5]


def test_drafts_of_several_sequences_share_the_rows_that_cost_little() -> None:
    """One sequence drafts as it likes; of several that share a pass each drafts less, and with many nobody does."""
    longest = {}
    for count in (1, 2, 3, 5):
        loop = Loop("over-budget", schedule=Schedule(prompt_rows=900, shared_rows=8), tokens=5)
        for sequence in range(count):
            loop.admit(sequence, max_new_tokens=20)
        while not loop.finals:
            loop.step()
        drafts = [drafts for drafts, _ in loop.verifier.passes if len(drafts) == count]
        assert len(drafts) > 1
        longest[count] = max(max(draft.values()) - 1 for draft in drafts)
        loop.run()
        for sequence in range(count):
            loop.expect_as_alone(sequence, count=20)
    assert longest == {1: 5, 2: 3, 3: 1, 5: 0}


@pytest.mark.parametrize("rows", [3, 4, 5, 12, 13])
def test_drafts_are_cut_for_a_prompt_too(rows: int) -> None:
    """Drafts that would fill a pass leave a prompt that is to be read a row of it, and the pass grows no longer."""
    loop = Loop("over-budget", schedule=Schedule(rows=rows, prompt_rows=8), tokens=5)
    for sequence in (2, 5):
        loop.admit(sequence, max_new_tokens=20)
    while not (loop.tokens(2) and loop.tokens(5)):
        loop.step()
    loop.admit(1)
    loop.run()
    for sequence in (2, 5):
        loop.expect_as_alone(sequence, count=20)
    loop.expect_as_alone(1)
    loop.expect_rows_within(Schedule(rows=rows, prompt_rows=8))
    assert any(len(drafts) == 2 and chunks for drafts, chunks in loop.verifier.passes)
    assert any(sum(drafts.values()) > 2 and chunks for drafts, chunks in loop.verifier.passes) or rows < 5
