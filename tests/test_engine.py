"""The engine and the local verifier where they meet: cancelling, errors, foreign writes, sequences side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches
from foretoken.decoder.rows import Rows
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.nothing import NothingDrafter
from foretoken.engine import Engine
from foretoken.errors import ContractError, NumericsError
from foretoken.types import Draft, Features, Needs, Request, Turn, Verdict, Work
from foretoken.verification.local import LocalVerifier
from tests.fakes import Fake, Halves, KeysValues, Scripted
from tests.tiny import ARITHMETICS, needs_native, tiny_decoder
from tests.world import Run, make_world

both = pytest.mark.parametrize("arithmetic", ARITHMETICS)


def request(sequence: int = 0, count: int = 20) -> Request:
    return Request(sequence, make_world().plains[sequence].prompt, count, keep_logits=True)


def test_closing_a_run_frees_both_sides() -> None:
    caches, drafter = Caches(), LookupDrafter()
    verifier = LocalVerifier(make_world().target, caches)
    run = Engine(verifier, drafter, num_speculative_tokens=5).run([request(0), request(1)])
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
        rounds = list(Engine(verifier, drafter, num_speculative_tokens=5).run([request()]))
        assert tuple(t for (v,) in rounds for t in v.tokens) == world.plains[0].tokens


def test_runs_may_be_interleaved_on_one_verifier_and_drafter() -> None:
    world, drafter = make_world(), LookupDrafter()
    verifier = LocalVerifier(world.target, Caches())
    runs = [Engine(verifier, drafter, num_speculative_tokens=4).run([request(s)]) for s in (0, 1)]
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
    engine = Engine(LocalVerifier(make_world().target, caches), Raises(), num_speculative_tokens=3)
    with pytest.raises(ZeroDivisionError):
        list(engine.run([request()]))
    with pytest.raises(ContractError):
        caches[0]


@pytest.mark.parametrize(
    ("arithmetic", "method", "after"),
    [
        *(pytest.param("pytorch", "write", layer, id=f"pytorch-write-{layer}") for layer in range(3)),
        # a native pass is one call: it can be broken off before, and after everything is written
        pytest.param("auto", "addresses", 0, id="native-before", marks=needs_native),
        pytest.param("auto", "tag", 0, id="native-after", marks=needs_native),
    ],
)
def test_a_cancelled_pass_leaves_a_sound_cache(
    arithmetic: str, method: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever breaks a pass off, and wherever: the prefix is as it was, and the sequence can go on."""
    world, caches = make_world(arithmetic), Caches()
    assert world.target.config.num_layers == 3
    verifier = LocalVerifier(world.target, caches)
    plain = world.plains[0]
    verifier.begin([request()])
    turn = Turn(0, 1, len(plain.prompt) + 1, 5, 5)
    before = caches[0].digest()
    real = getattr(Cache, method)
    calls = iter(range(after))

    def interrupted(*args: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Cache, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            verifier.submit([turn.chain(plain.tokens[1:4], "test")])
    assert caches[0].digest() == before
    assert caches[0].scratch == 0
    (verdict,) = verifier.result(verifier.submit([turn.chain(plain.tokens[1:4], "test")]))
    assert verdict.tokens == plain.tokens[1:5]


class BrokenOffError(Exception):
    """Something that breaks a pass off."""


@both
@pytest.mark.parametrize("where", ["extractor", "commit", "place", "second commit"])
def test_wherever_a_round_breaks_off_the_next_draft_is_judged_rightly_or_refused(
    where: str, arithmetic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, caches = make_world(arithmetic), Caches()
    armed = [False]

    def extract(cache: Cache, start: int, stop: int) -> dict[str, torch.Tensor]:
        if armed[0] and where == "extractor":
            raise BrokenOffError
        return {}

    verifier = LocalVerifier(world.target, caches, needs=Needs(extractor=extract))
    verifier.begin([request(0), request(1)])
    turns = [Turn(s, 1, len(world.plains[s].prompt) + 1, 5, 5) for s in (0, 1)]
    # a right token behind a wrong one: the accepted path has to be moved
    drafts = [t.tree([3, *world.plains[t.sequence].tokens[1:4]], [-1, -1, 1, 2], "test") for t in turns]
    calls = iter(range(1 if where == "second commit" else 0))
    name = where.removeprefix("second ")
    real = getattr(Cache, name, None)

    def call(*args: Any) -> Any:
        if next(calls, None) is None:
            raise BrokenOffError
        assert real is not None
        return real(*args)

    armed[0] = True
    with monkeypatch.context() as patch:
        if real is not None:
            patch.setattr(Cache, name, call)
        with pytest.raises(BrokenOffError):
            verifier.submit(drafts)
    armed[0] = False
    judged = refused = 0
    for draft, truth in zip(drafts, (p.tokens for p in world.plains), strict=True):
        for done in (1, 5):  # tokens so far: as if nothing, or all, had been committed
            position = len(world.plains[draft.sequence].prompt) + done
            turn = Turn(draft.sequence, 1 if done == 1 else 2, position, 5, 5)
            try:
                ticket = verifier.submit([turn.chain(truth[done : done + 2], "test")])
            except ContractError:
                refused += 1
                continue
            (verdict,) = verifier.result(ticket)
            assert verdict.tokens == truth[done : done + 3], "judged, so judged rightly"
            judged += 1
    assert judged >= 1
    assert refused >= 1


@both
def test_a_commit_that_broke_off_half_way_is_not_tried_again(arithmetic: str) -> None:
    target = tiny_decoder(arithmetic=arithmetic)
    cache = target.new_cache()
    rows = Rows([(cache, [5, 6, 7], [-1, -1, 1])])
    target.forward(rows)

    class Breaks:
        """Values that can be read and not written."""

        def __init__(self, values: torch.Tensor) -> None:
            self._values = values

        def __getitem__(self, index: Any) -> torch.Tensor:
            return self._values[index]

        def __setitem__(self, index: Any, value: Any) -> None:
            raise BrokenOffError

    values = cache._values
    cache._values = Breaks(values)  # type: ignore[assignment]
    with pytest.raises(BrokenOffError):
        cache.commit([1, 2], rows.writer)
    cache._values = values
    assert cache.length == 0
    with pytest.raises(ContractError, match="was not written by the pass that commits it"):
        cache.commit([1, 2], rows.writer)


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


def test_a_second_run_with_a_live_sequence_is_refused_and_does_not_harm_the_first() -> None:
    world, drafter = make_world(), LookupDrafter()
    verifier = LocalVerifier(world.target)
    engine = Engine(verifier, drafter, num_speculative_tokens=4)
    first = engine.run([request(0)])
    tokens = list(next(first)[0].tokens)
    with pytest.raises(ContractError, match="sequence 0 has begun already"):
        next(engine.run([request(1), request(0)]))
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
        list(Engine(verifier, EndsBadly(), num_speculative_tokens=3).run([request(0), request(1)]))
    assert caches._caches == {}


def test_a_sequence_that_has_finished_frees_its_memory_while_others_go_on() -> None:
    caches = Caches()
    verifier = LocalVerifier(make_world().target, caches)
    run = Engine(verifier, NothingDrafter(), num_speculative_tokens=3).run([request(0, 2), request(1, 6)])
    held = [sorted(caches._caches) for _ in run]
    assert held[0] == [0, 1]
    assert held[-1] == [1]


class Idle(Fake):
    """Proposes nothing, after some work."""

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        return [turn.chain((), self.name, (Work("inner", rows=3),)) for turn in turns]


def test_the_work_of_an_empty_draft_is_recorded() -> None:
    run = Run(make_world().target, Idle(), [request(count=4)])
    assert [record.work for record in run.records[1:]] == [(Work("inner", rows=3),)] * 3


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


@both
def test_a_nan_logit_is_an_error_that_names_its_cause(arithmetic: str) -> None:
    target = tiny_decoder(arithmetic=arithmetic)
    target.weights.tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    with pytest.raises(NumericsError, match=r"1 of 1536 numbers in model.layers.1.mlp.up_proj.weight"):
        Run(target, NothingDrafter(), [Request(0, (1, 2, 3), 4)])


@both
def test_a_nan_that_plain_decoding_would_not_meet_is_not_an_error(arithmetic: str) -> None:
    """The embedding of one token is NaN. A draft that proposes it is wrong; it must not break the run."""
    target = tiny_decoder(arithmetic=arithmetic)
    prompt = (1, 2, 3)
    plain = Run(target, NothingDrafter(), [Request(0, prompt, 8)]).sequences[0].tokens
    poison = next(token for token in range(50) if token not in (*prompt, *plain))
    target.weights.embedding[poison] = float("nan")

    class Poisoned(Fake):
        name = "poisoned"

        def guess(self, turn: Turn) -> list[int]:
            return [poison] * turn.depth

    run = Run(target, Poisoned(), [Request(0, prompt, 8)])
    assert run.sequences[0].tokens == plain
    assert sum(record.drafted.get(0, 0) for record in run.records) > 0


class Watches(Scripted):
    """Asks for hidden states and keeps what it is shown."""

    needs = Needs(hidden=True)

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        super().observe(verdicts)
        self.seen: list[Features] = getattr(self, "seen", [])
        self.seen += [v.features for v in verdicts if v.features is not None]


def test_features_are_owned_and_cover_each_committed_row_once() -> None:
    world = make_world()
    plain = world.plains[0]
    drafter = Watches({0: plain.prompt + plain.tokens})
    run = Run(world.target, drafter, [Request(0, plain.prompt, 12)])
    at = 0
    for features, verdict in zip(drafter.seen, run.verdicts[0], strict=True):
        assert features.start == at
        rows = len(features.tensors["hidden"])
        assert at + rows == verdict.position + len(verdict.tokens) - 1, "the last token has no row yet"
        at += rows
    assert at == len(plain.prompt) + 11


def test_features_own_their_memory() -> None:
    world, caches = make_world(), Caches()
    target = world.target
    drafter = KeysValues(target)
    verifier = LocalVerifier(target, caches, needs=Needs(hidden=True, extractor=drafter.extract))
    (verdict,) = verifier.begin([request()])
    assert verdict.features is not None
    before = {name: tensor.clone() for name, tensor in verdict.features.tensors.items()}
    caches[0]._keys.fill_(7)
    caches[0]._values.fill_(7)
    assert before.keys() == {"keys", "values", "hidden"}
    for name, tensor in verdict.features.tensors.items():
        assert torch.equal(tensor, before[name]), name


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
