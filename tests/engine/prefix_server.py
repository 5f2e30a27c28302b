"""A server of sequences that keeps prefixes, for their tests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.drafters.nothing import NothingDrafter
from foretoken.loop.engine import Engine
from foretoken.loop.schedule import Schedule
from foretoken.protocol.roles import Drafter
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Request, SamplingParams, Verdict
from foretoken.verification.local import LocalVerifier
from foretoken.verification.prefixes import Prefixes
from tests.contracts.stage import Stage
from tests.contracts.test_lossless import VERIFIERS
from tests.fakes import Scripted
from tests.world import GREEDY, LONGEST, Snapshot, World, chain_of, decode, make_world

SHARED = 25  # tokens that both prompts begin with
LENGTH = 36  # of the first prompt


@cache
def alike(sampling: SamplingParams = GREEDY) -> World:
    """Two sequences, the second of which begins as the first does."""
    world = make_world(sampling=sampling)
    plain = world.plains[0]
    other = decode(world.target, (*plain.prompt[:SHARED], 7, *plain.prompt[3:9]), LONGEST, sampling)
    assert len(plain.prompt) == LENGTH
    return World(world.target, (plain, other))


class Server:
    """One loop and one verifier, which sequences join and leave. It keeps prefixes."""

    def __init__(
        self,
        make: Any,
        world: World,
        *,
        budgets: Any = (),
        prefixes: Prefixes | None = None,
        verifier: str = "near",
        sampling: SamplingParams = GREEDY,
        prompt_rows: int = 9,
    ) -> None:
        self.world, self.sampling = world, sampling
        self.caches = Caches()
        self.drafter: Drafter = make(Stage(world, self.caches, "chain"))
        self.prefixes = Prefixes(1000) if prefixes is None else prefixes
        self.stop: dict[int, int] = {}  # by sequence: the token that a stop string ends with
        self.verifier = LocalVerifier(
            world.target,
            self.caches,
            extractors=getattr(self.drafter, "extractors", ()),
            stops=lambda request: lambda token: token == self.stop.get(request.sequence),
            prefixes=self.prefixes,
        )
        wrap, ahead = VERIFIERS[verifier]
        self.near = self.verifier if wrap is None else wrap(self.verifier)
        self.records: list[RoundRecord] = []
        schedule = Schedule(prompt_rows=prompt_rows, ahead=ahead, shares=self.prefixes.least)
        self.engine = Engine(
            self.near, self.drafter, budgets=budgets or chain_of(5), schedule=schedule, recorder=self.records.append
        )
        self.said: dict[int, int] = {}
        self.verdicts: dict[int, list[Verdict]] = {}
        self.ends: dict[int, Snapshot] = {}

    def admit(self, sequence: int, count: int = LONGEST, *, said: int = 0, stop: int | None = None) -> None:
        """A request whose prompt has so many of the first tokens of its text behind it. stop: the index of the token
        that it stops at."""
        plain = self.world.plains[sequence]
        self.stop.pop(sequence, None)
        if stop is not None:
            self.stop[sequence] = plain.tokens[stop]
        self.said[sequence], self.verdicts[sequence] = said, []
        prompt = plain.prompt + plain.tokens[:said]
        self.engine.admit(Request(sequence, prompt, count, keep_logits=True, sampling=self.sampling))

    def step(self) -> None:
        for verdict in self.engine.step():
            assert verdict.error is None
            self.verdicts[verdict.sequence].append(verdict)
            if verdict.last:
                self.ends[verdict.sequence] = Snapshot(self.caches[verdict.sequence])
                self.engine.cancel(verdict.sequence)

    def run(self, until: int | None = None) -> None:
        """To the end of all sequences, or until one has said something."""
        while self.engine.live and not (until is not None and self.tokens(until)):
            self.step()
        if not self.engine.live:
            self.engine.step()  # takes what is left of passes on guesses

    def tokens(self, sequence: int) -> tuple[int, ...]:
        return tuple(token for verdict in self.verdicts[sequence] for token in verdict.tokens)

    def cached(self, sequence: int) -> int:
        return sum(verdict.cached_tokens for verdict in self.verdicts[sequence])

    def expect(self, sequence: int, count: int, *, cached: int, ended: bool = True) -> None:
        """The sequence has said what plain decoding says, to the bit, and so many tokens of its prompt were cached."""
        plain, said = self.world.plains[sequence], self.said[sequence]
        got = self.tokens(sequence)
        assert len(got) >= count > 0
        assert got == plain.tokens[said : said + len(got)]
        logits = [verdict.logits for verdict in self.verdicts[sequence] if verdict.logits is not None]
        assert torch.equal(torch.cat(logits), plain.logits[said : said + len(got)])
        assert self.cached(sequence) == cached
        read = sum(verdict.read for verdict in self.verdicts[sequence])
        assert read == len(plain.prompt) + said - cached
        if ended:
            assert len(got) == count
            length = len(plain.prompt) + said + count - 1
            assert self.ends[sequence].digest_at(length) == plain.digests[said + count]

    def expect_kept(self) -> None:
        """What is kept is what a fresh cache holds after the same tokens, and no more than may be kept."""
        assert self.prefixes.positions <= self.prefixes.most_positions
        for _, kept in self.prefixes._known():
            assert kept.cache.length == len(kept.tokens)
            assert kept.cache.digest() == fresh(self.world.target, kept.tokens).digest()

    def close(self) -> None:
        self.engine.close()
        self.expect_kept()
        assert self.verifier._sequences == {}
        assert self.caches._caches == {}
        if self.near is not self.verifier and hasattr(self.near, "close"):
            self.near.close()


def fresh(target: Decoder, tokens: Sequence[int]) -> Cache:
    """A cache in which these tokens were read, in one pass."""
    found = target.new_cache()
    rows = chain(found, list(tokens))
    target.forward(rows)
    found.commit(range(len(tokens)), rows.writer)
    return found


def plainly(stage: Stage) -> Drafter:
    return NothingDrafter()


def scripted(stage: Stage) -> Drafter:
    return Scripted(stage.truth, stage.shape)


def engine_of(verifier: LocalVerifier) -> Engine:
    return Engine(verifier, NothingDrafter(), budgets=chain_of(3))
