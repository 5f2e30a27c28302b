"""An engine that sequences join and leave in mid-run, and what comes of them: for the tests of the open loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from foretoken.decoder.caches import Caches
from foretoken.errors import ForetokenError
from foretoken.loop.engine import Engine
from foretoken.loop.schedule import Schedule
from foretoken.protocol.roles import Drafter, Verifier
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget, Draft, PromptChunk, Request, Verdict
from foretoken.sampling.sampler import MakeSampler, Sampler
from foretoken.text.stopping import MakeStopsAfter, never
from foretoken.verification.local import LocalVerifier
from tests.contracts.stage import Stage
from tests.contracts.table import TABLE
from tests.world import GREEDY, Plain, Snapshot, World, chain_of, decode, make_world, weak_decoder

COUNT = 12  # tokens of each sequence
LONG = 3  # the sequence with a long prompt
Plan = Mapping[int, Sequence[Callable[["Loop"], None]]]  # what happens before which step


@cache
def seven() -> World:
    """Truths of seven sequences: the two of every contract, a short prompt, a long one, one that begins as another, and
    two that are shorter still."""
    world = make_world()
    one, other = (plain.prompt for plain in world.plains)
    prompts = ((5, 9, 5), (*one, *other, *one, *other[:10]), (*one[:20], *other[20:]), (6,), (11, 3))
    more = tuple(decode(world.target, prompt, 20, GREEDY) for prompt in prompts)
    return World(world.target, (*world.plains, *more))


APART = (289, 182, 379, 123, 10, 160, 452, 472, 323)


@cache
def apart(arithmetic: str = "auto") -> World:
    """Three sequences; what the first one reads and says, the others do not."""
    world = make_world(arithmetic)
    first = decode(world.target, APART, 20)
    others = {token for plain in world.plains for token in (*plain.prompt, *plain.tokens)}
    assert others.isdisjoint((*APART, *first.tokens[:COUNT]))
    assert len({*APART, *first.tokens[:COUNT]}) == len(APART) + COUNT
    return World(world.target, (first, *world.plains))


@cache
def poisoned(token: int, arithmetic: str = "auto") -> World:
    """The same where the embedding of a token is NaN: the row of that token brings no token."""
    target = weak_decoder(1, arithmetic=arithmetic)
    target.weights.embedding[token] = float("nan")
    return World(target, apart(arithmetic).plains)


@dataclass
class Spied:
    """A verifier that notes how much each pass holds: (rows of each draft, rows of each chunk)."""

    near: Verifier
    passes: list[tuple[dict[int, int], dict[int, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context_length, self.vocab_size = self.near.context_length, self.near.vocab_size

    def submit(self, drafts: Sequence[Draft], chunks: Sequence[PromptChunk] = ()) -> int:
        self.passes.append(
            ({draft.sequence: 1 + len(draft) for draft in drafts}, {chunk.sequence: chunk.rows for chunk in chunks})
        )
        return self.near.submit(drafts, chunks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.near, name)

    @property
    def rows(self) -> list[int]:
        """How many rows each pass had."""
        return [sum(drafts.values()) + sum(chunks.values()) for drafts, chunks in self.passes]


class Loop:
    """An engine over a world's target, what it has given so far, and each sequence's cache as it stood at its end."""

    def __init__(
        self,
        drafter: str | Drafter = "none",
        *,
        world: World | None = None,
        shape: str = "chain",
        schedule: Schedule | None = None,
        tokens: int = 5,
        budgets: Sequence[Budget] = (),
        wrap: Callable[[Verifier], Verifier] = lambda verifier: verifier,
        samplers: MakeSampler = Sampler,
        stops: MakeStopsAfter = never,
        rule: str = "walk",
    ) -> None:
        """drafter: a name of the contracts' table, or a drafter with its budgets, if they are not those of a chain."""
        self.world = seven() if world is None else world
        self.caches = Caches()
        if isinstance(drafter, str):
            self.drafter = TABLE[drafter].make(Stage(self.world, self.caches, shape))
            budgets = TABLE[drafter].budgets(tokens)
        else:
            self.drafter = drafter
        extractors = getattr(self.drafter, "extractors", ())
        self.local = LocalVerifier(
            self.world.target, self.caches, extractors=extractors, samplers=samplers, stops=stops, rule=rule
        )
        self.verifier = Spied(wrap(self.local))
        self.records: list[RoundRecord] = []
        self.engine = Engine(
            self.verifier,
            self.drafter,
            budgets=budgets or chain_of(tokens),
            schedule=Schedule() if schedule is None else schedule,
            recorder=self.records.append,
        )
        self.verdicts: dict[int, list[Verdict]] = {}
        self.finals: dict[int, Snapshot] = {}

    def admit(self, sequence: int, **settings: Any) -> None:
        """A sequence of the world joins."""
        prompt = settings.pop("prompt", None) or self.world.plains[sequence].prompt
        count = settings.pop("max_new_tokens", COUNT)
        self.engine.admit(Request(sequence, prompt, count, keep_logits=True, **settings))
        self.verdicts[sequence] = []

    def step(self) -> list[Verdict]:
        """One round."""
        verdicts = self.engine.step()
        for verdict in verdicts:
            self.verdicts[verdict.sequence].append(verdict)
            if verdict.finish_reason is not None:
                self.finals[verdict.sequence] = Snapshot(self.caches[verdict.sequence])
        return verdicts

    def run(self, plan: Plan | None = None) -> None:
        """Rounds until all have ended; some things happen before some of them."""
        plan = {} if plan is None else plan
        step = 0
        while self.engine.live or step <= max(plan, default=-1):
            for event in plan.get(step, ()):
                event(self)
            self.step()
            step += 1
            assert step < 500, "it does not end"
        self.engine.step()  # which frees the last ones
        while self.engine._sent:  # what was drafted behind their end
            assert self.engine.step() == []

    def tokens(self, sequence: int) -> tuple[int, ...]:
        """What a sequence has gained."""
        return tuple(token for verdict in self.verdicts[sequence] for token in verdict.tokens)

    def error(self, sequence: int) -> ForetokenError | None:
        """What it has ended with, if that was an error."""
        return self.verdicts[sequence][-1].error

    def expect_as_alone(self, sequence: int, plain: Plain | None = None, count: int = COUNT) -> None:
        """A sequence that has ended has the tokens, logits and committed keys and values that it has alone."""
        plain = self.world.plains[sequence] if plain is None else plain
        assert self.verdicts[sequence][-1].finish_reason is not None
        assert self.tokens(sequence) == plain.tokens[:count]
        logits = [verdict.logits for verdict in self.verdicts[sequence] if verdict.logits is not None]
        assert torch.equal(torch.cat(logits), plain.logits[:count]), "logits differ in a bit"
        digest = self.finals[sequence].digest_at(len(plain.prompt) + count - 1)
        assert digest == plain.digests[count], "committed keys or values differ"

    def expect_rows_within(self, schedule: Schedule) -> None:
        """No pass had more rows than the schedule allows, where that leaves each of its sequences one."""
        for (drafts, chunks), rows in zip(self.verifier.passes, self.verifier.rows, strict=True):
            assert sum(chunks.values()) <= schedule.prompt_rows
            assert rows <= max(schedule.rows, len(drafts) + len(chunks))

    def expect_nothing_of(self, sequence: int) -> None:
        """Neither side holds anything of a sequence."""
        assert sequence not in self.caches._caches
        assert sequence not in self.local._sequences
        for name, held in tables_of(self.drafter):
            assert sequence not in held, f"the drafter's {name} still has sequence {sequence}"

    def expect_empty(self) -> None:
        """Neither side holds anything of any sequence, and no result waits."""
        assert self.caches._caches == {}
        assert self.local._sequences == {}
        assert self.local._results == {}
        for name, held in tables_of(self.drafter):
            assert not held, f"the drafter's {name} still has {sorted(held)}"


def tables_of(drafter: Any) -> list[tuple[str, Mapping[int, Any]]]:
    """All that a drafter, and those below it, keep by sequence."""
    found: list[tuple[str, Mapping[int, Any]]] = []
    for name, value in vars(drafter).items():
        if isinstance(value, dict) and name != "truth":
            found.append((name, value))
        elif isinstance(value, Caches) and name == "_checked":
            found.append((name, value._caches))
        elif name in ("inner", "_lookup") and value is not None:
            found += [(f"{name}.{other}", held) for other, held in tables_of(value)]
    return found
