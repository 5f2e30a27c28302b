"""One generation of a method, as records keep it, and what many of them come to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from statistics import median
from typing import Any, Self

from foretoken.bench.fields import expect_fields
from foretoken.bench.samples import counted
from foretoken.bench.statistics import by_prompt, median_interval
from foretoken.results.completion import Completion


@dataclass(frozen=True)
class Generation:
    """A prompt, generated once with a method; sums over its turns.

    differing: tokens that are not those of plain cached decoding, which must be none. rounds: drafted, accepted and new
    tokens of each of the target's checks, the prompt's left out. flops: of all passes, None where nobody counted.
    """

    method: str
    prompt: str
    prompt_tokens: int
    tokens: int
    differing: int
    decoded: int
    prefill_seconds: float
    decode_seconds: float
    passes: int
    rounds: tuple[tuple[int, ...], ...]
    promise: str
    flops: float | None

    @classmethod
    def of(cls, completions: Sequence[Completion], plain: Sequence[Completion], **known: Any) -> Self:
        """Of a prompt's turns; they were asked for their rounds. plain: the same turns by the reference."""
        counts = counted(completions)
        return cls(
            prompt_tokens=sum(completion.prompt_tokens for completion in completions),
            tokens=sum(len(completion.tokens) for completion in completions),
            differing=differing(completions, plain),
            rounds=tuple(each for completion in completions for each in rounds_of(completion)),
            flops=_flops(completions),
            **{name: counts[name] for name in counts.keys() & cls.__dataclass_fields__.keys()},
            **known,
        )

    @classmethod
    def read(cls, line: dict[str, Any]) -> Self:
        """One that was written as JSON. Raises InputError."""
        expect_fields(line, cls, "a generation")
        known = {name: line[name] for name in cls.__dataclass_fields__}
        return cls(**{**known, "rounds": tuple(map(tuple, line["rounds"]))})

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record: so that every figure can be made again."""
        return asdict(self)

    @property
    def seconds(self) -> float:
        """All of it, reading the prompt included."""
        return self.prefill_seconds + self.decode_seconds

    def whole_rounds(self, most: int, budget: int) -> Iterator[tuple[int, int]]:
        """Drafted and accepted tokens of the rounds that had room for a draft of `most` tokens, and the bonus, in what
        was left of a `budget` of new tokens: the others were cut by the end of the text, not by the model."""
        left = budget - 1
        for drafted, accepted, new in self.rounds:
            if drafted and left > most:
                yield drafted, accepted
            left -= new


def differing(completions: Sequence[Completion], plain: Sequence[Completion]) -> int:
    """How many tokens are not the plain ones; one that is missing or too many is one that differs."""
    pairs = zip_longest(completions, plain)
    return sum(
        sum(one != other for one, other in zip_longest(own.tokens if own else (), its.tokens if its else ()))
        for own, its in pairs
    )


def rounds_of(completion: Completion) -> Iterator[tuple[int, int, int]]:
    """Drafted, accepted and new tokens of each of the target's checks; the prompt's pass is none."""
    for each in completion.rounds or ():
        if not each.read:
            ((sequence, gained),) = each.new_tokens.items()
            yield each.drafted.get(sequence, 0), each.accepted.get(sequence, 0), gained


def _flops(completions: Sequence[Completion]) -> float | None:
    """Of every round, the prompt's too, and of all levels together."""
    costs = [cost for completion in completions for each in completion.rounds or () for cost in each.cost.values()]
    return float(sum(cost.flops for cost in costs)) if costs else None


def of_method(generations: Iterable[Generation], name: str) -> list[Generation]:
    """Those of a method that have a second token, and so a speed."""
    return [each for each in generations if each.method == name and each.decoded > 0]


def tokens_per_second(generations: Sequence[Generation], method: str) -> float | None:
    """Of decoding, without the prompt and the first token, which its pass gives: the median over prompts."""
    speeds = [each.decoded / each.decode_seconds for each in of_method(generations, method)]
    return median(speeds) if speeds else None


def speedup(
    generations: Sequence[Generation], method: str, over: str
) -> tuple[float, tuple[float, float]] | tuple[None, None]:
    """By how much a token's time is shorter than with another method on the same prompt, measured beside it: the median
    over prompts, and the interval that holds it."""
    beside = {each.prompt: each for each in of_method(generations, over)}
    pairs = [(each, beside[each.prompt]) for each in of_method(generations, method) if each.prompt in beside]
    ratios = by_prompt(pairs, lambda pair: pair[0].prompt, lambda pair: times_as_fast(*pair))
    if not ratios:
        return None, None
    return median(ratios.values()), median_interval(list(ratios.values()))


def times_as_fast(own: Generation, beside: Generation) -> float:
    """By how much a token's time is shorter than another method's on the same prompt."""
    return beside.decode_seconds / beside.decoded / (own.decode_seconds / own.decoded)


def whole_seconds(generations: Sequence[Generation], method: str) -> float | None:
    """All prompts together, reading them included."""
    its = [each.seconds for each in generations if each.method == method]
    return sum(its) if its else None


def mean_flops(generations: Sequence[Generation], method: str) -> float | None:
    """Of a generation, the prompt included: the mean over prompts."""
    counts = [each.flops for each in generations if each.method == method]
    known = [count for count in counts if count is not None]
    return sum(known) / len(known) if known and len(known) == len(counts) else None


def accepted_a_check(
    generations: Sequence[Generation], method: str, most: int, budget: int
) -> tuple[float, float] | tuple[None, None]:
    """Draft tokens that a check accepted on average, and the share of `most` that they are, over the rounds that had
    room for a draft of that many."""
    rounds = [each for g in generations if g.method == method for each in g.whole_rounds(most, budget)]
    if not rounds:
        return None, None
    accepted = sum(count for _, count in rounds) / len(rounds)
    return accepted, accepted / most
