"""One generation by a method, as records keep it, and the statistics of many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from statistics import geometric_mean, median
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
    """One generation for a prompt by a method; counts and times are sums over the prompt's turns.

    differing: tokens that differ from plain cached decoding, which must be none. rounds: drafted, accepted and new
    tokens of each of the target's checks, without the prompt's pass. draft_passes: of the first level's own decoder.
    flops: of all passes; None if not counted.
    """

    method: str
    prompt: str
    prompt_tokens: int
    tokens: int
    differing: int
    decoded: int
    prefill_seconds: float
    decode_seconds: float
    draft_seconds: float
    check_seconds: float
    passes: int
    draft_passes: int
    rounds: tuple[tuple[int, ...], ...]
    promise: str
    flops: float | None

    @classmethod
    def of(cls, completions: Sequence[Completion], plain: Sequence[Completion], **known: Any) -> Self:
        """The generation of a prompt's turns, which were made with `keep_rounds=True`. plain: the reference's turns."""
        counts, stats = counted(completions), [completion.stats for completion in completions]
        return cls(
            draft_seconds=sum(each.draft_seconds for each in stats),
            check_seconds=sum(each.check_seconds for each in stats),
            draft_passes=sum(each.levels[0].passes for each in stats if each.levels),
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
        """A generation that was written as JSON. Raises InputError."""
        expect_fields(line, cls, "a generation")
        known = {name: line[name] for name in cls.__dataclass_fields__}
        return cls(**{**known, "rounds": tuple(map(tuple, line["rounds"]))})

    def to_json(self) -> dict[str, Any]:
        """The generation as a record keeps it, so that every figure can be computed again."""
        return asdict(self)

    @property
    def seconds_per_token(self) -> float:
        """Seconds of decoding per token."""
        return self.decode_seconds / self.decoded

    def whole_rounds(self, most: int, budget: int) -> Iterator[tuple[int, int]]:
        """Drafted and accepted tokens of the rounds that had room for `most` draft tokens and the bonus in a `budget`
        of new tokens. The end of the text, not the model, cut the drafts of all other rounds."""
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
    before: Callable[[str], object] = lambda name: None,
) -> list[Generation]:
    """Decode a prompt with every model, and compare each with the one called `reference`; reverse the order every
    second turn.

    how: settings that keep rounds. before: called with the name of the next model.
    """
    texts = {}
    for name in list(models) if turn % 2 == 0 else list(models)[::-1]:
        before(name)
        texts[name] = ask(models[name], prompt, how)
    return [Generation.of(texts[name], texts[reference], method=name, prompt=prompt.id) for name in models]


def differing(completions: Sequence[Completion], plain: Sequence[Completion]) -> int:
    """The number of tokens that differ from the plain ones; a missing or extra token differs."""
    pairs = zip_longest(completions, plain)
    return sum(
        sum(one != other for one, other in zip_longest(own.tokens if own else (), its.tokens if its else ()))
        for own, its in pairs
    )


def rounds_of(completion: Completion) -> Iterator[tuple[int, int, int]]:
    """Drafted, accepted and new tokens of each of the target's checks; the prompt's pass is left out."""
    for each in completion.rounds or ():
        if not each.read:
            ((sequence, gained),) = each.new_tokens.items()
            yield each.drafted.get(sequence, 0), each.accepted.get(sequence, 0), gained


def _flops(completions: Sequence[Completion]) -> float | None:
    """The sum over every round, the prompt's included, and over all levels."""
    costs = [cost for completion in completions for each in completion.rounds or () for cost in each.cost.values()]
    return float(sum(cost.flops for cost in costs)) if costs else None


@dataclass(frozen=True)
class Generations:
    """Statistics of many generations by method; None if a method has none, or none with a second token."""

    generations: Sequence[Generation] = ()

    @property
    def methods(self) -> list[str]:
        """The methods in the order of their first generations."""
        return list(dict.fromkeys(each.method for each in self.generations))

    def of(self, method: str) -> list[Generation]:
        """The generations of a method."""
        return [each for each in self.generations if each.method == method]

    def tokens_per_second(self, method: str) -> float | None:
        """Tokens per second of decoding, without the prompt and the first token, which the prompt's pass gives: the
        median over prompts."""
        speeds = by_prompt(self._decoded(method), lambda each: 1 / each.seconds_per_token)
        return median(speeds.values()) if speeds else None

    def speedup(self, method: str, over: str) -> tuple[float, tuple[float, float]] | tuple[None, None]:
        """How many times as fast a token is as with the method `over` on the same prompt, measured beside it: the
        median over prompts of each prompt's median over repeats, and its interval."""
        times = self._times_as_fast(method, over)
        return with_interval(times) if times else (None, None)

    def mean_speedup(self, method: str, over: str) -> float | None:
        """The same as a geometric mean over prompts."""
        times = self._times_as_fast(method, over)
        return geometric_mean(times.values()) if times else None

    def _times_as_fast(self, method: str, over: str) -> dict[str, float]:
        beside: dict[str, list[Generation]] = {}
        for each in self._decoded(over):
            beside.setdefault(each.prompt, []).append(each)
        pairs = [(own, beside[own.prompt].pop(0)) for own in self._decoded(method) if beside.get(own.prompt)]
        return times_as_fast(pairs)

    def _decoded(self, method: str) -> list[Generation]:
        """The generations of a method that have a second token."""
        return [each for each in self.of(method) if each.decoded > 0]

    def whole_seconds(self, method: str) -> float | None:
        """Seconds of all prompts together, reading them included."""
        return sum(each.prefill_seconds + each.decode_seconds for each in self.of(method)) or None

    def mean_flops(self, method: str) -> float | None:
        """FLOPs of a generation, the prompt included: the mean over prompts."""
        counts = [each.flops for each in self.of(method)]
        known = [count for count in counts if count is not None]
        return sum(known) / len(known) if known and len(known) == len(counts) else None
