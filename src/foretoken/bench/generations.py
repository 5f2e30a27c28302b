"""One generation of a method, as records keep it, and what many of them come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from statistics import median
from typing import Any, Self

from foretoken.api.model import Model
from foretoken.bench.decode import ask
from foretoken.bench.fields import expect_fields
from foretoken.bench.samples import counted
from foretoken.bench.statistics import by_prompt, times_as_fast, with_interval
from foretoken.bench.suites import Prompt
from foretoken.results.completion import Completion
from foretoken.settings.generate import GenerateSettings


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
    def seconds_per_token(self) -> float:
        """Of decoding."""
        return self.decode_seconds / self.decoded

    def whole_rounds(self, most: int, budget: int) -> Iterator[tuple[int, int]]:
        """Drafted and accepted tokens of the rounds that had room for a draft of `most` tokens, and the bonus, in what
        was left of a `budget` of new tokens: the others were cut by the end of the text, not by the model."""
        left = budget - 1
        for drafted, accepted, new in self.rounds:
            if drafted and left > most:
                yield drafted, accepted
            left -= new


def in_turn(
    models: Mapping[str, Model],
    reference: str,
    prompt: Prompt,
    how: GenerateSettings,
    turn: int,
    tell: Callable[[str], None] = lambda what: None,
) -> list[Generation]:
    """A prompt by every model, each compared with the one called `reference`; in the other order every second turn.

    how: rounds are kept. tell: is told which model comes next.
    """
    texts = {}
    for name in list(models) if turn % 2 == 0 else list(models)[::-1]:
        tell(f"{name}, prompt {prompt.id}")
        texts[name] = ask(models[name], prompt, how)
    return [Generation.of(texts[name], texts[reference], method=name, prompt=prompt.id) for name in models]


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


@dataclass(frozen=True)
class Generations:
    """What many of them come to, by their methods; None where a method has none, or none with a second token."""

    generations: Sequence[Generation] = ()

    @property
    def methods(self) -> list[str]:
        """In the order in which they came."""
        return list(dict.fromkeys(each.method for each in self.generations))

    def of(self, method: str) -> list[Generation]:
        """Those of a method."""
        return [each for each in self.generations if each.method == method]

    def tokens_per_second(self, method: str) -> float | None:
        """Of decoding, without the prompt and the first token, which its pass gives: the median over prompts."""
        speeds = by_prompt(self._decoded(method), lambda each: 1 / each.seconds_per_token)
        return median(speeds.values()) if speeds else None

    def speedup(self, method: str, over: str) -> tuple[float, tuple[float, float]] | tuple[None, None]:
        """By how much a token's time is shorter than with another method on the same prompt, measured beside it: the
        median over prompts, of each over its repeats, and the interval that holds it."""
        beside: dict[str, list[Generation]] = {}
        for each in self._decoded(over):
            beside.setdefault(each.prompt, []).append(each)
        pairs = [(own, beside[own.prompt].pop(0)) for own in self._decoded(method) if beside.get(own.prompt)]
        return with_interval(times_as_fast(pairs)) if pairs else (None, None)

    def _decoded(self, method: str) -> list[Generation]:
        """Those that had a second token."""
        return [each for each in self.of(method) if each.decoded > 0]

    def whole_seconds(self, method: str) -> float | None:
        """All prompts together, reading them included."""
        return sum(each.prefill_seconds + each.decode_seconds for each in self.of(method)) or None

    def mean_flops(self, method: str) -> float | None:
        """Of a generation, the prompt included: the mean over prompts."""
        counts = [each.flops for each in self.of(method)]
        known = [count for count in counts if count is not None]
        return sum(known) / len(known) if known and len(known) == len(counts) else None
