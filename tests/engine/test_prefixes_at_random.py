"""Prefixes under random requests: they are admitted, read, checked, broken off and ended in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.decoder.cache import Cache
from foretoken.decoder.checking import Check
from foretoken.decoder.rows import chain
from foretoken.protocol.types import Needs, PromptChunk, Request, Turn, Verdict
from foretoken.verification.local import LocalVerifier
from foretoken.verification.prefixes import Prefixes
from foretoken.verification.state import Gain
from tests.engine.test_features import truth
from tests.world import decode, make_world

COUNT = 5  # tokens of each output
NEEDS = (Needs(), Needs(hidden=(1,)), Needs(hidden=(2, 1)))


@cache
def said(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """What plain decoding says after a prompt."""
    return decode(make_world().target, prompt, COUNT).tokens


def goes_on(prompt: list[int], count: int) -> tuple[int, ...]:
    """A prompt with the first tokens of its output behind it, as a conversation is sent again."""
    return (*prompt, *said(tuple(prompt))[:count])


prompts = st.builds(
    goes_on, st.lists(st.sampled_from((5, 5, 5, 6)), min_size=4, max_size=8), st.sampled_from((0, 0, 3))
)
which, rows = st.integers(0, 3), st.sampled_from((2, 4, 9))
steps = st.one_of(
    st.tuples(st.just("admit"), prompts, st.sampled_from(NEEDS)),
    st.tuples(st.just("go on"), which, rows),
    st.tuples(st.just("all go on"), st.just(0), rows),
    st.tuples(st.just("all go on"), st.just(0), rows),
    st.tuples(st.sampled_from(("end", "break off")), which, rows),
    st.tuples(st.just("make room"), st.integers(10, 200), st.just(0)),
)


@cache
def right(tokens: tuple[int, ...]) -> tuple[str, dict[str, torch.Tensor]]:
    """The digest of a fresh cache after these tokens, and their features."""
    target = make_world().target
    found = target.new_cache()
    rows = chain(found, list(tokens))
    target.forward(rows)
    found.commit(range(len(tokens)), rows.writer)
    return found.digest(), truth(target, tokens)


class BreaksOff(LocalVerifier):
    """Its rounds break off after a commit, when told so."""

    armed = False

    def _commit(self, check: Check, gain: Gain, cache: Cache, *, reading: bool) -> None:
        super()._commit(check, gain, cache, reading=reading)
        if self.armed:
            raise KeyboardInterrupt


@dataclass
class Client:
    """One sequence, as far as it has come."""

    request: Request
    text: list[int]
    round: int = 0
    states: list[Mapping[str, torch.Tensor]] = field(default_factory=list)

    def turn(self, rows: int) -> PromptChunk | Any:
        """What comes next: a chunk of the prompt, or a draft that is right and then wrong."""
        if not self.round:
            return PromptChunk(self.request.sequence, rows)
        turn = Turn(self.request.sequence, self.round, len(self.text), rows, rows)
        done = len(self.text) - len(self.request.prompt)
        return turn.chain([*said(self.request.prompt)[done : done + rows - 1], 0], "test")

    def hear(self, verdict: Verdict, events: Counter[str]) -> None:
        """A verdict is what plain decoding says, and its features are those of one pass over the text."""
        assert verdict.error is None
        self.text += verdict.tokens
        self.round = verdict.round + bool(verdict.tokens)
        new = self.text[len(self.request.prompt) :]
        assert tuple(new) == said(self.request.prompt)[: len(new)]
        if verdict.cached_tokens:
            events["cached, with features" if verdict.features else "cached"] += 1
        if verdict.features is not None:
            length = len(self.text) - 1 if self.round else len(self.request.prompt) - verdict.prompt_left
            self.states.append(verdict.features.tensors)
            assert {*verdict.features.tensors} == {*self.request.needs.of_rows}
            for name in self.request.needs.of_rows:
                *before, states = (each[name] for each in self.states)
                assert verdict.features.start == sum(map(len, before))
                assert torch.equal(torch.cat([*before, states]), right(tuple(self.text[:length]))[1][name])


def serve(plan: Sequence[tuple[str, Any, Any]], most: int, events: Counter[str]) -> None:
    prefixes = Prefixes(most, least=2)
    verifier = BreaksOff(make_world().target, prefixes=prefixes)
    clients: dict[int, Client] = {}
    for number, (what, which, more) in enumerate(plan):
        names = list(clients)
        chosen = [] if not names or what in ("admit", "make room") else [names[which % len(names)]]
        if what == "admit":
            request = Request(number, which, COUNT, needs=more)
            verifier.admit(request)
            clients[number] = Client(request, list(which))
        elif what == "make room":
            prefixes.make_room(which)
            assert prefixes.positions <= which
        elif what == "break off" and chosen:
            verifier.armed = True
            turn = clients[chosen[0]].turn(more)
            try:
                verifier.submit(*([], [turn]) if isinstance(turn, PromptChunk) else ([turn], []))
            except KeyboardInterrupt:
                events["broken off"] += 1
            verifier.armed = False
            verifier.end(chosen[0])
            del clients[chosen[0]]
        elif what == "end" and chosen:
            verifier.end(chosen[0])
            del clients[chosen[0]]
        elif chosen:
            turns = [clients[name].turn(more) for name in (names if what == "all go on" else chosen)]
            chunks = [turn for turn in turns if isinstance(turn, PromptChunk)]
            for verdict in verifier.result(verifier.submit([turn for turn in turns if turn not in chunks], chunks)):
                clients[verdict.sequence].hear(verdict, events)
                if verdict.last:
                    verifier.end(verdict.sequence)
                    del clients[verdict.sequence]
        expect_sound(prefixes, verifier)


def expect_sound(prefixes: Prefixes, verifier: LocalVerifier) -> None:
    """All that is kept is what its tokens make of a fresh cache, within the bound, and in memory of its own."""
    assert prefixes.positions <= prefixes.most_positions
    memories = [cache._memory.keys for cache in verifier.caches._caches.values()]
    for _, kept in prefixes._known():
        digest, states = right(kept.tokens)
        assert len(kept.tokens) == kept.cache.length >= prefixes.least
        assert kept.cache.digest() == digest
        for name in kept.more.names if kept.more.rows else ():
            held = torch.cat([piece[name] for piece in kept.more.pieces])
            assert torch.equal(held, states[name][: len(held)])
        memories.append(kept.cache._memory.keys)
    places = [memory.data_ptr() for memory in memories if memory.numel()]
    assert len(set(places)) == len(places)
    for state in verifier._sequences.values():
        cache = verifier.caches[state.request.sequence]
        if cache.length:
            assert cache.digest() == right(tuple(state.text[: cache.length]))[0]


def test_whatever_comes_in_whatever_order_all_that_is_kept_is_right() -> None:
    events: Counter[str] = Counter()

    @settings(max_examples=80, deadline=None, derandomize=True, database=None)
    @given(st.lists(steps, min_size=30, max_size=60), st.sampled_from((12, 40, 200, 200)))
    def at_random(plan: list[tuple[str, Any, Any]], most: int) -> None:
        serve(plan, most, events)

    at_random()
    for event in ("cached", "cached, with features", "broken off"):
        assert events[event] > 5, f"vacuous: {dict(events)}"
