"""What is said of each way to decode, from its samples: a `Row`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from foretoken.bench.intervals import median_interval

OURS = "foretoken"
PLAIN = "plain"
_LEAST = 0.01  # of a token's share of all the time is decoding; what comes out as less is other programs' doing


@dataclass(frozen=True)
class Way:
    """A way to decode. of: the mode of its engine that gives the same tokens without speculation, None of that itself.
    why: it could not be measured, and this is the reason."""

    engine: str
    mode: str
    settings: str
    of: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class Sample:
    """A prompt decoded once: `seconds` for all its `tokens`; `prompt_seconds` for the prompt and one token, by the same
    engine without speculation, just before. beside: the peer in whose turns it was, which no other shares."""

    engine: str
    mode: str
    beside: str
    prompt: str
    repeat: int
    tokens: tuple[int, ...]
    seconds: float
    prompt_seconds: float

    @property
    def is_disturbed(self) -> bool:
        """Whether the prompt seemed to take all of the time: something else ran."""
        return self.seconds - self.prompt_seconds <= _LEAST * self.seconds

    @property
    def seconds_per_token(self) -> float:
        """Of decoding alone. What a draft needs for the prompt is in it."""
        count = len(self.tokens)
        return max((self.seconds - self.prompt_seconds) / (count - 1), _LEAST * self.seconds / count)


@dataclass(frozen=True)
class Row:
    """A way to decode, measured. Times are medians over prompts of each prompt's median over repeats.

    ms_per_token: of decoding alone; with_prompt: all seconds by all tokens. times_our_plain, times_own_plain: how many
    times as fast as our plain decoding and as its engine's own, which decoded the same prompt in the same turn; with
    intervals at 95 % (bootstrap over prompts). equal_to_own_plain: prompts whose tokens are those of its own plain
    decoding. equal_to_ours, like_ours: prompts whose tokens are ours, and the median of how many are until the first
    that differs. repeatable: whether it said the same every time. disturbed: how many samples have no time that can be
    used.
    """

    engine: str
    mode: str
    of: str | None
    settings: str
    why: str | None = None
    prompts: int = 0
    tokens: int = 0
    ms_per_token: float | None = None
    ms_per_token_with_prompt: float | None = None
    prompt_ms: float | None = None
    tokens_per_second: float | None = None
    times_our_plain: float | None = None
    times_our_plain_interval: tuple[float, float] | None = None
    times_own_plain: float | None = None
    times_own_plain_interval: tuple[float, float] | None = None
    identical_to_own_plain: bool | None = None
    equal_to_own_plain: int | None = None
    first_difference: dict[str, Any] | None = None
    equal_to_ours: int | None = None
    like_ours: float | None = None
    repeatable: bool | None = None
    disturbed: int | None = None
    ms_per_token_by_prompt: Mapping[str, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record; numbers as far as they mean something."""
        return {key: _rounded(value) for key, value in asdict(self).items()}


def row(way: Way, samples: Sequence[Sample]) -> Row:
    """The row of a way to decode, of which there may be no samples. samples: those of all ways."""
    samples = _settled(samples)
    own = [s for s in samples if (s.engine, s.mode) == (way.engine, way.mode)]
    if way.why is not None or not own:
        return Row(way.engine, way.mode, way.of, way.settings, way.why or "it was not measured")
    ours = {_turn(s): s for s in samples if (s.engine, s.mode) == (OURS, PLAIN)}
    plain = {_turn(s): s for s in samples if (s.engine, s.mode) == (way.engine, way.of)}
    per_token = _by_prompt(own, lambda s: s.seconds_per_token)
    beside_ours = _by_prompt(own, lambda s: ours[_turn(s)].seconds_per_token / s.seconds_per_token)
    beside_own = _by_prompt(own, lambda s: plain[_turn(s)].seconds_per_token / s.seconds_per_token) if plain else {}
    first = {s.prompt: s.tokens for s in reversed(own)}
    first_plain = {s.prompt: s.tokens for s in reversed(list(plain.values()))}
    first_ours = {s.prompt: s.tokens for s in reversed(list(ours.values()))}
    differs = [prompt for prompt in first_plain if first[prompt] != first_plain[prompt]]
    milliseconds = 1e3 * median(per_token.values())
    return Row(
        way.engine,
        way.mode,
        way.of,
        way.settings,
        prompts=len(first),
        tokens=sum(map(len, first.values())),
        ms_per_token=milliseconds,
        ms_per_token_with_prompt=1e3 * median(_by_prompt(own, lambda s: s.seconds / len(s.tokens)).values()),
        prompt_ms=1e3 * median(_by_prompt(own, lambda s: s.prompt_seconds).values()),
        tokens_per_second=1e3 / milliseconds,
        times_our_plain=median(beside_ours.values()),
        times_our_plain_interval=median_interval(list(beside_ours.values())),
        times_own_plain=median(beside_own.values()) if plain else None,
        times_own_plain_interval=median_interval(list(beside_own.values())) if plain else None,
        identical_to_own_plain=not differs if plain else None,
        equal_to_own_plain=len(first_plain) - len(differs) if plain else None,
        first_difference=_difference(differs[0], first, first_plain) if differs else None,
        equal_to_ours=sum(tokens == first_ours[prompt] for prompt, tokens in first.items()),
        like_ours=median(_in_common(tokens, first_ours[prompt]) for prompt, tokens in first.items()),
        repeatable=all(s.tokens == first[s.prompt] for s in own),
        disturbed=sum(s.is_disturbed for s in own),
        ms_per_token_by_prompt={prompt: 1e3 * seconds for prompt, seconds in per_token.items()},
    )


def _settled(samples: Sequence[Sample]) -> list[Sample]:
    """Samples whose prompt's time is the median over repeats: it is short, so a single one is easily disturbed."""
    times: dict[tuple[str, str, str, str], list[float]] = {}
    for s in samples:
        times.setdefault((s.engine, s.mode, s.beside, s.prompt), []).append(s.prompt_seconds)
    return [replace(s, prompt_seconds=median(times[s.engine, s.mode, s.beside, s.prompt])) for s in samples]


def _turn(sample: Sample) -> tuple[str, str, int]:
    """What samples that are compared have in common."""
    return sample.beside, sample.prompt, sample.repeat


def _by_prompt(samples: Iterable[Sample], value: Callable[[Sample], float]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for sample in samples:
        values.setdefault(sample.prompt, []).append(value(sample))
    return {prompt: median(its) for prompt, its in values.items()}


def _in_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens are the same from the start."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def _difference(prompt: str, tokens: Mapping[str, Sequence[int]], plain: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    at = _in_common(tokens[prompt], plain[prompt])
    return {"prompt": prompt, "position": at, "token": tokens[prompt][at], "plain_token": plain[prompt][at]}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, tuple) else value
