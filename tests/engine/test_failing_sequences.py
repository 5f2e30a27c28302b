"""What is wrong with one sequence ends that one: the others have, bit for bit, what they would have had alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from foretoken.drafters.nothing import NothingDrafter
from foretoken.errors import ContractError, ForetokenError, GrammarError, NumericsError
from foretoken.loop.schedule import Schedule
from foretoken.protocol.roles import Verifier
from foretoken.protocol.types import Request, SamplingParams, Turn
from foretoken.sampling.sampler import Sampler
from foretoken.text.stopping import StopsAfter
from foretoken.verification.worker import WorkerVerifier
from tests.engine.common import both
from tests.engine.open_loop import APART, COUNT, Loop, apart, poisoned
from tests.fakes import FarVerifier, Scripted

DRAFTERS = (
    "none",
    "lookup",
    "fractal, int8, last layer",
    "model",
    "model, model, lookup",
    "model on a view, model",
    "tree, beam",
    "tree, mxfp4 on a view",
    "mxfp4, int2, lookup on stacked views",
    "scripted",
    "keys-values",
    "last-layer",
)
ORDERS = ((0, 1, 2), (1, 0, 2), (1, 2, 0))  # the first, the second and the last of a pass fails
LATE: dict[str, tuple[Callable[[Verifier], Verifier], int]] = {
    "near": (lambda verifier: verifier, 0),
    "far": (FarVerifier, 0),
    "a round late": (FarVerifier, 1),
    "in a thread": (WorkerVerifier, 2),
}


class Grammar:
    """Allows everything for so many tokens, and nothing then; or gives up then, as a library does."""

    def __init__(self, count: int, gives_up: bool) -> None:
        self._left, self._gives_up = count, gives_up

    complete = False

    def allowed(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        if self._left <= 0 and self._gives_up:
            raise GrammarError("the grammar cannot be followed any further")
        return np.full(size, self._left > 0)

    def advance(self, token: int) -> None:
        self._left -= 1

    def rewind(self, count: int) -> None:
        self._left += count


def grammar_for(sequence: int, count: int, *, gives_up: bool = False) -> Callable[[Request], Sampler]:
    """Samplers of which that of one sequence has such a grammar."""

    def make(request: Request) -> Sampler:
        return Sampler(request, Grammar(count, gives_up) if request.sequence == sequence else None)

    return make


def expect_failed(loop: Loop, sequence: int, count: int, kind: type[ForetokenError], match: str) -> None:
    """A sequence has what plain decoding gives until it fails, and one verdict that says with what."""
    *before, last = loop.verdicts[sequence]
    assert isinstance(last.error, kind)
    assert match in str(last.error)
    assert last.last
    assert (last.tokens, last.accepted, last.origins) == ((), (), ())
    assert last.finish_reason is None
    assert all(verdict.error is None and verdict.finish_reason is None for verdict in before)
    assert loop.tokens(sequence) == loop.world.plains[sequence].tokens[:count]
    assert last.position == (len(loop.world.plains[sequence].prompt) + count)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_nan_on_the_path_of_one_ends_that_one(name: str, late: str) -> None:
    wrap, ahead = LATE[late]
    together = 0
    for number, at in enumerate((0, 3, COUNT - 2)):
        world = poisoned(apart().plains[0].tokens[at])
        shape = "tree" if number % 2 else "chain"
        loop = Loop(name, world=world, shape=shape, wrap=wrap, schedule=Schedule(prompt_rows=50, ahead=ahead))
        for sequence in ORDERS[number]:
            loop.admit(sequence)
        loop.run()
        # the row of that token is NaN: it is the last one that is said
        expect_failed(loop, 0, at + 1, NumericsError, "the model's logits hold NaN: 24 of 12216 numbers in")
        for sequence in (1, 2):
            loop.expect_as_alone(sequence)
        together += sum({0, 1, 2} <= set(drafts) for drafts, _ in loop.verifier.passes)
        loop.expect_empty()
        if isinstance(loop.verifier.near, WorkerVerifier):
            loop.verifier.near.close()
    assert together > 0, "vacuous: they never shared a pass"


@both
@pytest.mark.parametrize("prompt_rows", [256, 40, 7])
def test_a_nan_in_the_prompt_of_one_ends_that_one(prompt_rows: int, arithmetic: str) -> None:
    for order, at in zip(ORDERS, (0, 5, len(APART) - 1), strict=True):
        world = poisoned(APART[at], arithmetic)
        loop = Loop("model, lookup", world=world, schedule=Schedule(prompt_rows=prompt_rows))
        for sequence in order:
            loop.admit(sequence)
        loop.run()
        expect_failed(loop, 0, 0, NumericsError, "NaN")
        assert loop.verdicts[0][-1].round == 0
        for sequence in (1, 2):
            loop.expect_as_alone(sequence)
        loop.expect_empty()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("gives_up", [False, True])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_grammar_that_allows_nothing_ends_its_own_sequence(name: str, gives_up: bool) -> None:
    for number, count in enumerate((0, 1, 4, 7)):
        loop = Loop(
            name,
            world=apart(),
            samplers=grammar_for(0, count, gives_up=gives_up),
            schedule=Schedule(prompt_rows=(256, 9)[number % 2]),
        )
        for sequence in ORDERS[number % 3]:
            loop.admit(sequence)
        loop.run()
        said = "cannot be followed any further" if gives_up else "no token may come next"
        expect_failed(loop, 0, count, GrammarError, said)
        for sequence in (1, 2):
            loop.expect_as_alone(sequence)
        loop.expect_empty()


def test_all_may_fail_each_in_its_own_way() -> None:
    loop = Loop(
        "model, model, lookup",
        world=poisoned(apart().plains[0].tokens[2]),
        samplers=lambda request: Sampler(request, {1: Grammar(3, False), 2: Grammar(5, True)}.get(request.sequence)),
    )
    for sequence in (0, 1, 2):
        loop.admit(sequence)
    loop.run()
    expect_failed(loop, 0, 3, NumericsError, "NaN")
    expect_failed(loop, 1, 3, GrammarError, "no token may come next")
    expect_failed(loop, 2, 5, GrammarError, "cannot be followed")
    loop.expect_empty()


def refuse(request: Request) -> Sampler:
    if request.sequence == 0:
        raise GrammarError("it cannot be read")
    return Sampler(request)


@pytest.mark.parametrize("name", ["model, model, lookup", "tree, beam", "last-layer"])
def test_one_that_is_refused_when_it_joins_leaves_the_others_as_they_are(name: str) -> None:
    for rounds in range(5):
        loop = Loop(name, world=apart(), samplers=refuse, schedule=Schedule(prompt_rows=20))
        loop.admit(1)
        for _ in range(rounds):
            loop.step()
        context = loop.verifier.context_length
        for prompt, kind, match in (
            ((), ContractError, "a prompt of 0 tokens"),
            ((5,) * context, ContractError, f"a prompt of {context} tokens"),
            ((5, 6), GrammarError, "it cannot be read"),
        ):
            with pytest.raises(kind, match=match):
                loop.engine.admit(Request(0, prompt, 9))
            loop.expect_nothing_of(0)
        loop.admit(2)
        loop.run()
        for sequence in (1, 2):
            loop.expect_as_alone(sequence)
        assert 0 not in loop.verdicts
        loop.expect_empty()


class BeginsBadly(NothingDrafter):
    """A drafter that cannot take one of the sequences."""

    def begin(self, requests: Sequence[Request]) -> None:
        if any(request.sequence == 0 for request in requests):
            raise ZeroDivisionError


def test_one_that_the_drafter_cannot_begin_is_not_left_with_the_verifier() -> None:
    loop = Loop(BeginsBadly(), world=apart())
    loop.admit(1)
    loop.step()
    with pytest.raises(ZeroDivisionError):
        loop.admit(0)
    loop.expect_nothing_of(0)
    loop.run()
    loop.expect_as_alone(1)
    loop.expect_empty()


def test_who_waits_for_the_prompt_of_one_that_fails_reads_it_itself() -> None:
    plain = apart().plains[0]
    for prompt_rows in (256, 9):
        loop = Loop(
            "model, lookup", world=apart(), samplers=grammar_for(0, 0), schedule=Schedule(prompt_rows=prompt_rows)
        )
        loop.admit(0)
        loop.admit(1, prompt=plain.prompt, prompt_of=0)
        loop.admit(2)
        loop.run()
        expect_failed(loop, 0, 0, GrammarError, "no token may come next")
        loop.expect_as_alone(1, plain)
        loop.expect_as_alone(2)
        loop.expect_empty()


def test_who_would_wait_for_its_own_prompt_is_refused() -> None:
    loop = Loop("none", world=apart())
    with pytest.raises(ContractError, match="sequence 0 has its own prompt_of; expected another, or None"):
        loop.admit(0, prompt_of=0)
    loop.admit(0)
    loop.run()
    loop.expect_as_alone(0)


def test_what_a_conversation_had_read_when_it_failed_is_kept() -> None:
    plain = apart().plains[0]
    loop = Loop("lookup", world=apart(), samplers=grammar_for(0, 4))
    loop.admit(0, conversation=3)
    loop.run()
    expect_failed(loop, 0, 4, GrammarError, "no token may come next")
    loop.admit(1, prompt=(*plain.prompt, *plain.tokens[:4]), conversation=3, max_new_tokens=COUNT - 4)
    loop.run()
    assert loop.verdicts[1][0].cached_tokens == len(plain.prompt) + 3
    assert loop.tokens(1) == plain.tokens[4:COUNT]


# -- behind a stop ----------------------------------------------------------------------------------------------------


class Known(Scripted):
    """Says what is coming, whole, and what would come after a stop."""

    def guess(self, turn: Turn) -> list[int]:
        return list(self.truth[turn.sequence][turn.position :][: turn.depth])


def stops_at(token: int | None) -> Callable[[Request], StopsAfter]:
    return lambda request: lambda said: request.sequence == 0 and said == token


def known(shape: str) -> Known:
    return Known({s: plain.prompt + plain.tokens for s, plain in enumerate(apart().plains)}, shape)


@pytest.mark.parametrize("way", ["text", "token"])
@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize(("rule", "temperature"), [("walk", 0.0), ("rejection", 0.0), ("rejection", 0.001)])
@both
def test_a_nan_behind_a_stop_is_not_met(arithmetic: str, rule: str, temperature: float, shape: str, way: str) -> None:
    """A draft goes on behind the place where plain decoding stops, over a token whose row is NaN."""
    plain = apart().plains[0]
    sampling = SamplingParams(temperature=temperature, seed=5)
    inside = 0
    for at in range(1, COUNT - 1, 4 if arithmetic == "pytorch" else 1):
        for stop in range(max(1, at - 3), at + 1):  # the NaN would choose a token behind the one that stops
            token = plain.tokens[stop]
            loop = Loop(
                known(shape),
                world=poisoned(plain.tokens[at], arithmetic),
                stops=stops_at(token if way == "text" else None),
                tokens=30,
                rule=rule,
            )
            ends = frozenset([token]) if way == "token" else frozenset[int]()
            loop.admit(0, end_tokens=ends, sampling=sampling, max_new_tokens=20)
            loop.admit(1)
            loop.run()
            loop.expect_as_alone(0, count=stop + 1)
            loop.expect_as_alone(1)
            (*_, last) = loop.verdicts[0]
            assert last.finish_reason == "stop"
            inside += len(last.accepted) == len(last.tokens)
    assert inside > 3, "vacuous: no draft went over its stop"


@pytest.mark.parametrize("gives_up", [False, True])
@pytest.mark.parametrize("rule", ["walk", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 0.001])
def test_a_grammar_that_fails_behind_a_stop_does_not_fail(temperature: float, rule: str, gives_up: bool) -> None:
    plain = apart().plains[0]
    sampling = SamplingParams(temperature=temperature, seed=5)
    for stop in range(1, 9):
        for count in range(stop + 1, stop + 4):
            loop = Loop(
                known("chain"),
                world=apart(),
                stops=stops_at(plain.tokens[stop]),
                samplers=grammar_for(0, count, gives_up=gives_up),
                tokens=30,
                rule=rule,
            )
            loop.admit(0, sampling=sampling, max_new_tokens=20)
            loop.run()
            loop.expect_as_alone(0, count=stop + 1)
            assert loop.verdicts[0][-1].finish_reason == "stop"


@pytest.mark.parametrize("rule", ["walk", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 0.001])
def test_without_the_stop_it_fails_where_plain_decoding_does(temperature: float, rule: str) -> None:
    """What was right before it is said first, and is committed."""
    plain = apart().plains[0]
    sampling = SamplingParams(temperature=temperature, seed=5)
    for at in range(1, COUNT - 1):
        said = {}
        for drafter in (known("chain"), NothingDrafter()):
            loop = Loop(drafter, world=poisoned(plain.tokens[at]), tokens=30, rule=rule)
            loop.admit(0, sampling=sampling, max_new_tokens=20)
            loop.run()
            expect_failed(loop, 0, at + 1, NumericsError, "NaN")
            said[drafter.name] = loop.tokens(0)
        assert len(set(said.values())) == 1
