"""The contract of every drafter: what comes out is what plain decoding gives, token for token and logit bit for bit.

`make test` runs a seeded sample in which every pair of values of two factors occurs; `make prove` the whole product.
Both count what happened, so that a contract cannot hold because nothing was drafted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch

from foretoken.decoder.caches import Caches
from foretoken.drafters.table import DRAFTERS
from foretoken.protocol.roles import Verifier
from foretoken.protocol.types import Request, SamplingParams, Verdict
from foretoken.verification.worker import WorkerVerifier
from tests.contracts.pairwise import pairwise
from tests.contracts.stage import Stage
from tests.contracts.table import TABLE
from tests.fakes import FarVerifier, Ladder
from tests.isas import HERE
from tests.paces import Wild
from tests.world import LONGEST, Plain, Run, from_disk, make_world

SEED = 20261122
# each with how many rounds may be drafted on guesses while a verdict is on its way
VERIFIERS: dict[str, tuple[Callable[[Verifier], Verifier] | None, int]] = {
    "near": (None, 0),
    "far": (FarVerifier, 0),
    "a round late": (FarVerifier, 1),
    "two rounds late": (FarVerifier, 2),
    "in a thread": (WorkerVerifier, 1),
}
FACTORS: dict[str, list[Any]] = {
    "shape": ["chain", "tree"],
    "max_new_tokens": list(range(1, 21)),
    "end_at": [*range(LONGEST), None],  # the offset of the planted end token; None: there is none
    "sequences": [1, 2],
    "num_speculative_tokens": [1, 2, 5, 17],  # 17: more than one block of rows
    "verifier": list(VERIFIERS),
    "sampling": ["greedy", "0.8, top-p", "1.3, penalties", "greedy, penalties", "0.6, top-k, bias"],
    "prefill_chunk": [256, 9],
    "ends_by": ["token", "text"],  # an end token, or a stop string that ends with it
    "target": [None, "mxfp4", "int3"],  # its low-bit format
    "layers": ["in memory", "read in each pass"],
    "pace": ["fixed", "wild"],  # wild: every round draws the lengths of all levels anew
}
SAMPLING = {
    "greedy": SamplingParams(),
    "0.8, top-p": SamplingParams(temperature=0.8, top_p=0.9, seed=11),
    "1.3, penalties": SamplingParams(
        temperature=1.3, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2, min_p=0.01, seed=2**64 - 1
    ),
    "greedy, penalties": SamplingParams(repetition_penalty=1.3, frequency_penalty=0.5),
    "0.6, top-k, bias": SamplingParams(temperature=0.6, top_k=20, logit_bias=((3, 2.0), (9, -1.0)), seed=5),
}
AGAIN = {*DRAFTERS, "lookup, left out by the model above", "tree, best-first", "tree, lookup", "ladder"}
PRODUCT = ("shape", "max_new_tokens", "end_at")  # the others are drawn at random, along the whole product


def expected(plain: Plain, max_new_tokens: int, end_at: int | None) -> tuple[int, str]:
    """How many tokens plain decoding gives, and why it stops there."""
    first = max_new_tokens if end_at is None else plain.tokens.index(plain.tokens[end_at])
    return (first + 1, "stop") if first < max_new_tokens else (max_new_tokens, "length")


def run_one(name: str, case: Mapping[str, Any], events: Counter[str]) -> None:
    sampling = SAMPLING[case["sampling"]]
    world, caches = make_world(sampling=sampling, low_bit=case["target"]), Caches()
    if case["layers"] != "in memory" and (case["target"] is None or HERE):  # in PyTorch low-bit layers must be there
        world = replace(world, target=from_disk(case["target"]))
    drafter = TABLE[name].make(Stage(world, caches, case["shape"]))
    plains = world.plains[: case["sequences"]]
    ends = [frozenset[int]() if case["end_at"] is None else frozenset([p.tokens[case["end_at"]]]) for p in plains]
    by_token = case["ends_by"] == "token"
    requests = [
        Request(
            sequence=s,
            prompt=plain.prompt,
            max_new_tokens=case["max_new_tokens"],
            end_tokens=ends[s] if by_token else frozenset(),
            keep_logits=True,
            sampling=sampling,
        )
        for s, plain in enumerate(plains)
    ]
    wrap, ahead = VERIFIERS[case["verifier"]]
    budgets = TABLE[name].budgets(case["num_speculative_tokens"])
    run = Run(
        world.target,
        drafter,
        requests,
        budgets=budgets if case["pace"] == "fixed" else Wild(budgets, seed=case["max_new_tokens"]),
        caches=caches,
        wrap=wrap,
        ahead=ahead,
        prefill_chunk=case["prefill_chunk"],
        stops_after=lambda sequence, token: not by_token and token in ends[sequence],
    )
    for s, plain in enumerate(plains):
        count, reason = expected(plain, case["max_new_tokens"], case["end_at"])
        got = run.sequences[s]
        assert got.tokens == plain.tokens[:count], f"{name}, {case}: tokens differ"
        assert torch.equal(got.logits, plain.logits[:count]), f"{name}, {case}: logits differ in a bit"
        assert got.finish_reason == reason, f"{name}, {case}"
        assert len(got.origins) == count
        assert run.final_caches[s].digest_at(len(plain.prompt) + count - 1) == plain.digests[count], (
            f"{name}, {case}: committed keys or values differ"
        )
    if isinstance(drafter, Ladder):
        events["accepted by the inner level"] += drafter.inner_accepted
    verdicts = {s: iter(run.verdicts[s]) for s in run.verdicts}
    for record in run.records:
        events["dropped"] += record.dropped if not ahead else 0
        events["drafted behind a wrong guess"] += record.dropped if ahead else 0
        for s in {*record.read, *record.new_tokens}:
            verdict, drafted, accepted = next(verdicts[s]), record.drafted.get(s, 0), record.accepted.get(s, 0)
            events["drafted"] += drafted
            events["accepted"] += accepted
            events["rejected"] += drafted - accepted
            if drafted and accepted == record.new_tokens[s] - 1 and _all_said(verdict, drafted):
                events["fully accepted"] += 1


def _all_said(verdict: Verdict, drafted: int) -> bool:
    """Whether the accepted path ends at a leaf of the draft: nothing of its branch was left over."""
    return verdict.finish_reason is None and bool(verdict.accepted) and verdict.accepted[-1] == drafted - 1


def run_all(name: str, cases: Iterable[Mapping[str, Any]]) -> Counter[str]:
    events: Counter[str] = Counter()
    for case in cases:
        run_one(name, case, events)
        events["cases"] += 1
    for event in TABLE[name].shows:
        assert events[event] > 0, (
            f"{name}: vacuous, nothing was {event} in {events['cases']} cases: {dict(events)}; "
            "what a drafter cannot show is said in SHOWS, in tests/contracts/table.py"
        )
    if name in ("delayed", "liar"):
        assert events["dropped"] > 0, f"{name}: no draft came late or twice"
    if name == "ladder":
        assert events["accepted by the inner level"] > 0, "one level of the ladder did nothing"
    if name in ("none", "silent"):
        assert events["drafted"] == 0
    return events


@cache
def sample() -> list[dict[str, Any]]:
    """Once more for those whose text decides whether anything is accepted whole: one sample may have no such case."""
    again = pairwise({"drafter": list(TABLE), **FACTORS}, SEED + 1)
    return pairwise({"drafter": list(TABLE), **FACTORS}, SEED) + [c for c in again if c["drafter"] in AGAIN]


@pytest.mark.parametrize("name", TABLE)
def test_every_pair_of_circumstances_gives_what_plain_decoding_gives(name: str) -> None:
    run_all(name, [case for case in sample() if case["drafter"] == name])


@pytest.mark.prove
@pytest.mark.parametrize("name", TABLE)
def test_all_circumstances_give_what_plain_decoding_gives(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    others = [factor for factor in FACTORS if factor not in PRODUCT]
    rest = list(product(*(FACTORS[factor] for factor in others)))
    random.Random(SEED).shuffle(rest)  # in order, the first of them would all have one sequence and one draft token
    cases = [
        dict(zip((*PRODUCT, *others), (*values, *rest[i % len(rest)]), strict=True))
        for i, values in enumerate(product(*(FACTORS[factor] for factor in PRODUCT)))
    ]
    assert all({case[factor] for case in cases} == {*values} for factor, values in FACTORS.items())
    events = run_all(name, cases)
    with capsys.disabled():
        print(f"\n  {name}: " + ", ".join(f"{count} {event}" for event, count in sorted(events.items())), flush=True)


def test_the_truth_is_not_trivial() -> None:
    for plain in make_world().plains:
        assert len(set(plain.tokens)) == LONGEST, "an end token can be planted at every offset"
        assert not plain.logits.isnan().any()
    targets = {make_world(low_bit=format).plains[0].digests[-1] for format in FACTORS["target"]}
    assert len(targets) == 3, "low-bit targets are others"
    texts = {tuple(plain.tokens for plain in make_world(sampling=sampling).plains) for sampling in SAMPLING.values()}
    assert len(texts) == len(SAMPLING), "each way to sample gives another text"
