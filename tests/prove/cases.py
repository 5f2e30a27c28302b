"""One subject, proved: plain decoding at every level and with every drafter, against plain decoding once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.drafters.nothing import NothingDrafter
from foretoken.formats import Format
from foretoken.kernels import native
from foretoken.protocol.roles import Verifier
from foretoken.protocol.types import Draft, PromptChunk, Request, Verdict
from foretoken.verification.worker import WorkerVerifier
from tests.fakes import (
    FarVerifier,
)
from tests.prove.drafters import DRAFTERS, SAMPLING, Stage, budgets_of, sampler
from tests.prove.models import Subject
from tests.world import Run

SLOW = (native.EMULATED, "generic")
WRAPS: dict[str, Callable[[Verifier], Verifier]] = {
    "near": lambda verifier: verifier,
    "far": FarVerifier,
    "in a thread": WorkerVerifier,
}
CODED = "blocks of keys and values that drafts read in int8"
ALWAYS = (
    CODED,
    "draft tokens",
    "accepted tokens",
    "rejected tokens",
    "fully accepted rounds",
    "passes with several sequences",
    "drafters on copied weights",
    "drafts that were late, repeated or for nobody",
    "drafts behind a wrong guess, passed over",
    "rounds that share a pass with a prompt",
    "prompts in chunks",
    "drafts made 1 round ahead",
    "drafts made 2 rounds ahead",
    *(f"rounds of a verifier that is {name}" for name in WRAPS),
    *(f"accepted tokens, {name}" for name in (*SAMPLING, *DRAFTERS) if name not in ("none", "silent")),
)  # what a proof must have seen happen, or it proves less than it says


@contextmanager
def counting_coded(events: Counter[str]) -> Iterator[None]:
    """Count the blocks that drafters code meanwhile. Those count that are made meanwhile."""
    really = native.code_places

    def code_places(*given: Any, **named: Any) -> torch.Tensor:
        events[CODED] += 1
        return really(*given, **named)

    native.code_places = code_places
    try:
        yield
    finally:
        native.code_places = really


class Watched:
    """A verifier, and how far ahead its drafts were made: for how many rounds of their sequence no verdict had come."""

    def __init__(self, near: Verifier, events: Counter[str]) -> None:
        self.context_length, self.vocab_size = near.context_length, near.vocab_size
        self.near = near
        self._events = events
        self._under_way: dict[int, list[int]] = {}

    def submit(self, drafts: Sequence[Draft], chunks: Sequence[PromptChunk] = ()) -> int:
        under_way = Counter(sequence for sequences in self._under_way.values() for sequence in sequences)
        for draft in drafts:
            ahead = under_way[draft.sequence]
            self._events[f"drafts made {ahead} round{'s' if ahead > 1 else ''} ahead"] += ahead > 0 and len(draft) > 0
        ticket = self.near.submit(drafts, chunks)
        self._under_way[ticket] = [draft.sequence for draft in drafts]
        return ticket

    def result(self, ticket: int) -> list[Verdict]:
        del self._under_way[ticket]
        return self.near.result(ticket)

    def admit(self, request: Request) -> None:
        self.near.admit(request)

    def end(self, sequence: int) -> None:
        self.near.end(sequence)

    def forget(self, conversation: int) -> None:
        self.near.forget(conversation)


class Difference(AssertionError):  # noqa: N818 (it is what is looked for, not a failure of the search)
    """Something came out otherwise than plainly decoded."""


@dataclass(frozen=True)
class Size:
    """How much of a subject is proved."""

    prompts: int = 12
    longest_prompt: int = 320
    tokens: int = 48
    threads: tuple[int, ...] = (1, 2)


def prove(subject: Subject, levels: list[str], size: Size, chance: random.Random, events: Counter[str]) -> None:
    """Compare, count, and raise `Difference` at the first one."""
    prompts = [_prompt(subject, size, chance) for _ in range(size.prompts)]
    sampling = chance.choice(list(SAMPLING))
    requests = [
        Request(i, prompt, size.tokens, keep_logits=True, sampling=SAMPLING[sampling], completion=i)
        for i, prompt in enumerate(prompts)
    ]
    plain = Run(
        subject.decoder(f"native {levels[-1]}", 1), NothingDrafter(), requests[:1], samplers=sampler
    )  # warm, alone
    plains = [
        Run(subject.decoder(f"native {levels[-1]}", 1), NothingDrafter(), [request], samplers=sampler).sequences[
            request.sequence
        ]
        for request in requests
    ]
    _compare(f"{subject.name} {subject.kind}: twice", plain, requests[:1], plains, events, "plain")
    if subject.format is not None:
        values = Run(subject.of_values(f"native {chance.choice(levels)}"), NothingDrafter(), requests, samplers=sampler)
        _compare(f"{subject.name} {subject.kind}: its values as bf16", values, requests, plains, events, "values")
    for level in levels:
        if level == native.EMULATED and subject.dtype != "bf16" and subject.format is None:
            continue  # tiles are for bf16
        # plain C++ takes most of the time: with one of the numbers of threads
        for threads in [chance.choice(size.threads)] if level in SLOW else size.threads:
            run = Run(
                subject.decoder(f"native {level}", threads),
                NothingDrafter(),
                requests,
                prefill_chunk=_chunk(chance),
                samplers=sampler,
            )
            what = f"{subject.name} {subject.kind}, plainly at {level} with {threads} threads"
            _compare(what, run, requests, plains, events, "level")
    copies: dict[float, Decoder] = {}
    for name, make in DRAFTERS.items():
        fast = [level for level in levels if level not in SLOW]
        arithmetic = f"native {chance.choice([chance.choice(SLOW), *fast, *fast, *fast])}"
        chosen = chance.sample(requests, chance.randint(1, len(requests)))
        copied = chance.random() < 0.5  # as `--weights copied` has them
        target, caches = subject.decoder(arithmetic, chance.choice(size.threads), copied=copied), Caches()
        events["drafters on copied weights"] += target.weights.layouts != {"rows"}

        def copy(noise: float, best: str = f"native {levels[-1]}") -> Decoder:  # how a draft is computed is all one
            if noise not in copies:
                copies[noise] = subject.poor_copy(noise, best)
            return copies[noise]

        def low(format: Format, inputs: str, target: Decoder = target) -> Decoder:
            return subject.low_bit_copy(format, inputs, target)

        truth = {request.sequence: request.prompt + plains[request.sequence].tokens for request in chosen}
        shape, count = chance.choice(["chain", "tree"]), chance.choice([1, 2, 5, 8, 17])
        where = chance.choice(["near", "near", "near", "far", "in a thread"])
        ahead = chance.choice([0, 1, 2]) if where != "near" else 0
        wrapped: list[Verifier] = []

        def wrap(verifier: Verifier, where: str = where, wrapped: list[Verifier] = wrapped) -> Verifier:
            wrapped.append(WRAPS[where](verifier))
            return Watched(wrapped[0], events)

        run = Run(
            target,
            make(Stage(target, caches, truth, shape, copy, low, chance)),
            chosen,
            budgets=budgets_of(chance, count),
            caches=caches,
            prefill_chunk=_chunk(chance),
            wrap=wrap,
            ahead=ahead,
            samplers=sampler,
        )
        if isinstance(wrapped[0], WorkerVerifier):
            wrapped[0].close()
        what = (
            f"{subject.name} {subject.kind}, {name} ({shape}, {count} tokens) at {arithmetic}, "
            f"{len(chosen)} sequences, weights {'copied' if copied else 'mapped'}, verifier {where}, {ahead} ahead"
        )
        _compare(what, run, chosen, plains, events, "drafted")
        for record in run.records:
            events[f"rounds of a verifier that is {where}"] += 1
            events["rounds that share a pass with a prompt"] += bool(record.read) and any(record.drafted.values())
            events["prompts in chunks"] += any(s not in record.new_tokens for s in record.read)
            # with the others, no draft is late but those behind a wrong guess
            late = name in ("delayed", "liar")
            events["drafts that were late, repeated or for nobody"] += record.dropped if late else 0
            events["drafts behind a wrong guess, passed over"] += 0 if late else record.dropped
            for sequence, drafted in record.drafted.items():
                accepted = record.accepted[sequence]
                events["draft tokens"] += drafted
                events["accepted tokens"] += accepted
                events["rejected tokens"] += drafted - accepted
                events["rounds"] += 1
                events["fully accepted rounds"] += drafted > 0 and accepted == drafted
                events["passes with several sequences"] += len(record.drafted) > 1
                events[f"accepted tokens, {sampling}"] += accepted
                events[f"accepted tokens, {name}"] += accepted


def _prompt(subject: Subject, size: Size, chance: random.Random) -> tuple[int, ...]:
    usual = chance.random() < 0.9  # the others reach over more than one block of attention
    length = min(chance.choice([3, 17, 40, 60, 90]) if usual else chance.randint(200, 320), size.longest_prompt)
    piece = [chance.randrange(subject.config.valid_vocab_size) for _ in range(max(2, length // 3))]
    return tuple((piece * 4)[:length])


def _chunk(chance: random.Random) -> int:
    return chance.choice([1, 7, 64, 256]) if chance.random() < 0.3 else 256


def _compare(what: str, run: Run, requests: list[Request], plains: list, events: Counter[str], kind: str) -> None:
    for request in requests:
        got, plain = run.sequences[request.sequence], plains[request.sequence]
        events[f"tokens, {kind}"] += len(plain.tokens)
        events["logits"] += plain.logits.numel()
        if got.tokens != plain.tokens:
            at = next(i for i, (a, b) in enumerate(zip(got.tokens, plain.tokens, strict=False)) if a != b)
            raise Difference(
                f"{what}: token {at} of sequence {request.sequence} is {got.tokens[at]}, not {plain.tokens[at]}"
            )
        if not torch.equal(got.logits.view(torch.int32), plain.logits.view(torch.int32)):
            raise Difference(f"{what}: logits of sequence {request.sequence} differ in a bit")
