"""Drafting goes on while a pass of the target waits: what comes of it, and what becomes of errors and Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count

import pytest

import foretoken
from foretoken.decoder.caches import Caches
from foretoken.decoder.rows import Rows
from foretoken.drafters.tree import TreeDrafter
from foretoken.errors import ContractError, NumericsError
from foretoken.protocol.types import Budget, Draft, PromptChunk, Request
from foretoken.sampling.sampler import Sampler
from foretoken.verification.meanwhile import GoOn, MeanwhileVerifier
from tests.contracts.table import copy_of
from tests.fakes import GoesOn
from tests.tiny import needs_native
from tests.world import LONGEST, VOCABULARY, Run, make_world

TREE = Budget(12, 5, 3)
DRAFT = Draft(0, 1, 1, (5,), (-1,), ("tree",))


def tree(caches: Caches, shape: str = "best-first") -> TreeDrafter:
    model = copy_of(make_world().target, "int4", "int8")
    return TreeDrafter(model, Sampler, name="tree", vocab_size=VOCABULARY, shape=shape, sharpness=1.0, views=caches)


def test_a_tree_that_went_on_needs_fewer_passes_afterwards_and_the_text_stays() -> None:
    world = make_world()
    requests = [Request(s, plain.prompt, LONGEST) for s, plain in enumerate(world.plains)]
    passes, reached = [], []
    for steps in (0, 8):
        caches = Caches()
        drafter = GoesOn(tree(caches), steps)
        run = Run(world.target, drafter, requests, budgets=[TREE], caches=caches)
        assert [run.sequences[s].tokens for s in run.sequences] == [plain.tokens for plain in world.plains]
        passes.append(drafter.passes)
        reached.append(drafter.went_on)
    assert reached[1] > reached[0], "some verdicts lead to expanded nodes even so"
    assert 0 < passes[1] < passes[0]


@pytest.mark.parametrize(("shape", "views"), [("beam", True), ("rerank", True), ("best-first", False)])
def test_other_trees_do_not_go_on(shape: str, views: bool) -> None:
    drafter = tree(Caches(), shape)
    if not views:
        drafter.views = None
    assert not drafter.can_go_on


@needs_native
def test_a_draft_that_pauses_does_not_go_on_and_no_other_verifier_waits() -> None:
    def verifier(draft: str, **settings: object) -> str:
        return type(foretoken.load("stdlib-7m", draft=draft, **settings)._verifier).__name__

    assert verifier("subspec,lookup", stream_layers=1) == "MeanwhileVerifier"
    assert verifier("subspec:pauses,lookup", stream_layers=1) == "LocalVerifier"
    assert verifier("subspec", stream_layers=1) == "LocalVerifier"
    assert verifier("subspec,lookup") == "LocalVerifier"


def test_rows_are_adopted_at_the_same_positions_only() -> None:
    target = make_world().target
    cache = target.new_cache()
    rows = Rows([(cache, [1, 2, 3, 4], [-1, 0, 1, 1])])
    target.forward(rows)
    other = target.new_cache()
    target.forward(text := Rows([(other, [1], [-1])]))
    other.commit(range(1), text.writer)
    with pytest.raises(ContractError, match="cannot be adopted: other places"):
        target.new_cache().adopt(cache, [1], [-1])
    assert list(other.adopt(cache, [1, 3], [-1, 0])) == [0, 1]
    for layer in other.layers:
        for mine, theirs in zip(other.read(layer), cache.read(layer), strict=True):
            assert (mine[1:] == theirs[[1, 3]]).all()
    other.commit([0, 1], rows.writer)  # with the tags of the pass that wrote them
    assert other.length == 3


class Near:
    """A verifier whose pass takes until it is told to end, and one second by its own clock."""

    context_length, vocab_size = 100, VOCABULARY

    def __init__(self, during: Callable[[], None] = lambda: None) -> None:
        self.during, self.passes, self.now = during, 0, 0.0

    def submit(self, drafts: Sequence[Draft], chunks: Sequence[PromptChunk] = ()) -> int:
        self.passes += 1
        self.during()
        self.now += 1.0
        return 7


def waits(near: Near, go_on: GoOn, waiting: float = 1.0, share: float = 1.0) -> MeanwhileVerifier:
    """A verifier whose checks wait now, and have waited for a share of their time."""
    verifier = MeanwhileVerifier(near, lambda: waiting, lambda: share * near.now, go_on, lambda: near.now)
    verifier.submit([DRAFT])  # nothing is known before it
    near.passes = 0
    return verifier


def test_steps_are_made_only_while_a_pass_waits_and_end_with_it() -> None:
    made, three = count(1), threading.Event()
    steps = 0

    def go_on(sequences: Sequence[int], may: Callable[[], bool]) -> None:
        nonlocal steps
        assert sequences == [DRAFT.sequence]
        while may():
            steps = next(made)
            if steps == 3:
                three.set()

    assert waits(Near(lambda: three.wait(10) or None), go_on).submit([DRAFT]) == 7
    assert steps >= 3
    assert not [thread for thread in threading.enumerate() if thread.name == "foretoken-drafting"]
    steps = 0
    waits(Near(), go_on, waiting=0.0).submit([DRAFT])
    assert steps == 0, "a pass that does not wait leaves no time"


@pytest.mark.parametrize(("share", "goes_on"), [(0.9, True), (0.3, False)])
def test_nothing_is_drafted_beside_checks_that_compute_most_of_the_time(share: float, goes_on: bool) -> None:
    begun = []
    verifier = waits(Near(), lambda sequences, may: begun.append(sequences), share=share)
    for _ in range(3):
        verifier.submit([DRAFT])
    assert len(begun) == (3 if goes_on else 0)


def test_without_a_draft_nothing_goes_on() -> None:
    near = Near()

    def go_on(sequences: Sequence[int], may: Callable[[], bool]) -> None:
        raise AssertionError("there is no tree")

    assert waits(near, go_on).submit([], [PromptChunk(0, 3)]) == 7
    assert near.passes == 1


def test_an_error_of_either_is_raised_and_no_thread_is_left() -> None:
    def fails(sequences: Sequence[int], may: Callable[[], bool]) -> None:
        raise NumericsError("of the draft")

    def interrupted() -> None:
        raise KeyboardInterrupt

    def goes_on(sequences: Sequence[int], may: Callable[[], bool]) -> None:
        while may():
            pass

    with pytest.raises(NumericsError, match="of the draft"):
        waits(Near(), fails).submit([DRAFT])
    with pytest.raises(KeyboardInterrupt):
        waits(Near(interrupted), goes_on).submit([DRAFT])
    assert not [thread for thread in threading.enumerate() if thread.name == "foretoken-drafting"]


@needs_native
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_model_on_a_slow_disk_drafts_meanwhile(temperature: float) -> None:
    prompt = "for i in range(3):\n    print(i)\nfor i in range(3):"
    asked = {"max_new_tokens": 60, "temperature": temperature, "seed": 3, "ignore_eos": True, "hash_logits": True}
    plain = foretoken.load("stdlib-7m", draft="none").generate(prompt, **asked)
    model = foretoken.load("stdlib-7m", draft="subspec:nodes=12,lookup", stream_layers="all", disk_bandwidth="100MB/s")
    assert isinstance(model._verifier, MeanwhileVerifier)
    done = model.generate(prompt, **asked, keep_rounds=True)
    assert (done.tokens, done.logits_sha256) == (plain.tokens, plain.logits_sha256)
    assert done.rounds is not None
    works = [(record, work) for record in done.rounds for each in record.work.values() for work in each]
    assert any(work.began < record.began for record, work in works), "made while another was checked"
