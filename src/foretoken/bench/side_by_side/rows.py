"""What is said of each way to decode, from its samples: a `Row`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from foretoken.bench.statistics import by_prompt, first_difference, median_interval, rounded

OURS = "foretoken"
PLAIN = "plain"
_Turn = tuple[str, str, int]
_LEAST = 0.01  # of all the time is decoding; what comes out as less is other programs' doing


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
    engine without speculation, just before. beside: the peer in whose turns it was, which no other shares. bandwidth:
    what memory gave just before the turn, in bytes a second."""

    engine: str
    mode: str
    beside: str
    prompt: str
    repeat: int
    tokens: tuple[int, ...]
    seconds: float
    prompt_seconds: float
    bandwidth: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record, so that its figures can be made again; of the tokens only their number."""
        return {**rounded(asdict(replace(self, tokens=()))), "tokens": len(self.tokens)}

    @property
    def is_disturbed(self) -> bool:
        """Whether the prompt seemed to take all of the time: something else ran."""
        return self.seconds - self.prompt_seconds <= _LEAST * self.seconds

    @property
    def seconds_per_token(self) -> float:
        """Of decoding alone. What a draft needs for the prompt is in it. Of a disturbed sample it means nothing."""
        return (self.seconds - self.prompt_seconds) / (len(self.tokens) - 1)


@dataclass(frozen=True)
class Row:
    """A way to decode, measured. Times are medians over prompts of each prompt's median over repeats.

    ms_per_token: of decoding alone; with_prompt: all seconds by all tokens. times_our_plain, times_own_plain: how many
    times as fast as our plain decoding and as its engine's own, which decoded the same prompt in the same turn; with
    intervals at 95 % (bootstrap over prompts). our_best_times: how many times as fast our fastest mode was in those
    turns; for each prompt the mode that was fastest on the others, so that none is chosen by what it is judged on.
    equal_to_own_plain: prompts whose tokens are those of its own plain decoding of the same turn, every time.
    equal_to_ours, like_ours: prompts whose tokens are ours, and the median of how many are until the first that
    differs. repeatable: whether it said the same every time. disturbed: how many samples were left out, because they
    have no time that can be used; where that is every one, `why` says so, and what needs no time is there all the same.
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
    our_best: str | None = None
    our_best_times: float | None = None
    our_best_times_interval: tuple[float, float] | None = None
    equal_to_own_plain: int | None = None
    first_difference: dict[str, Any] | None = None
    equal_to_ours: int | None = None
    like_ours: float | None = None
    repeatable: bool | None = None
    disturbed: int | None = None
    ms_per_token_by_prompt: Mapping[str, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record; numbers as far as they mean something."""
        return {key: rounded(value) for key, value in asdict(self).items()}


def row(way: Way, samples: Sequence[Sample]) -> Row:
    """The row of a way to decode, of which there may be no samples. samples: those of all ways."""
    settled = _settled(samples)
    every = [s for s in settled if (s.engine, s.mode) == (way.engine, way.mode)]
    if way.why is not None or not every:
        return Row(way.engine, way.mode, way.of, way.settings, way.why or "it was not measured")
    return _with_times(_said(way, every, settled), every, settled)


def _said(way: Way, every: Sequence[Sample], samples: Sequence[Sample]) -> Row:
    """What a row says of tokens, which needs no time. every: its samples; samples: those of all ways."""
    ours, plain = _by_turn(samples, OURS, PLAIN), _by_turn(samples, way.engine, way.of)
    equal, difference = _compared(every, plain)
    parted = {_turn(s): first_difference(s.tokens, ours[_turn(s)].tokens) for s in every if _turn(s) in ours}
    first = {s.prompt: s for s in reversed(every)}
    return Row(
        way.engine,
        way.mode,
        way.of,
        way.settings,
        prompts=len(first),
        tokens=sum(len(s.tokens) for s in first.values()),
        identical_to_own_plain=equal == len(first) if plain else None,
        equal_to_own_plain=equal if plain else None,
        first_difference=difference,
        equal_to_ours=sum(parted[_turn(s)] is None for s in first.values()),
        like_ours=median(len(s.tokens) if (at := parted[_turn(s)]) is None else at for s in first.values()),
        repeatable=all(s.tokens == first[s.prompt].tokens for s in every),
        disturbed=sum(s.is_disturbed for s in every),
    )


def _with_times(said: Row, every: Sequence[Sample], samples: Sequence[Sample]) -> Row:
    """A row with the times of its samples that nothing disturbed, or, where there are none, why it has no times."""
    own = [s for s in every if not s.is_disturbed]
    per_token = _of_prompts(own, lambda s: s.seconds_per_token)
    beside_ours = _ratios(own, _by_turn(samples, OURS, PLAIN))
    if not beside_ours:
        return replace(said, why="it was disturbed in every turn; measure it again")
    best, best_times = _our_best(own, samples)
    milliseconds = 1e3 * median(per_token.values())
    return replace(
        said,
        ms_per_token=milliseconds,
        ms_per_token_with_prompt=1e3 * median(_of_prompts(own, lambda s: s.seconds / len(s.tokens)).values()),
        prompt_ms=1e3 * median(_of_prompts(own, lambda s: s.prompt_seconds).values()),
        tokens_per_second=1e3 / milliseconds,
        our_best=best,
        ms_per_token_by_prompt={prompt: 1e3 * seconds for prompt, seconds in per_token.items()},
        **_times("times_our_plain", beside_ours),
        **_times("times_own_plain", _ratios(own, _by_turn(samples, said.engine, said.of))),
        **_times("our_best_times", best_times),
    )


def _times(name: str, ratios: Mapping[str, float]) -> dict[str, Any]:
    """How many times as fast, with its interval, of ratios by prompt; nothing of none."""
    values = list(ratios.values())
    return {name: median(values), f"{name}_interval": median_interval(values)} if values else {}


def _of_prompts(samples: Iterable[Sample], value: Callable[[Sample], float]) -> dict[str, float]:
    return by_prompt(samples, lambda s: s.prompt, value)


def _by_turn(samples: Iterable[Sample], engine: str, mode: str | None) -> dict[_Turn, Sample]:
    return {_turn(s): s for s in samples if (s.engine, s.mode) == (engine, mode)}


def _ratios(own: Iterable[Sample], others: Mapping[_Turn, Sample]) -> dict[str, float]:
    """How many times as fast these samples are as those of the same turns, by prompt; without disturbed ones."""
    pairs = [(s, others[_turn(s)]) for s in own if _turn(s) in others and not others[_turn(s)].is_disturbed]
    return by_prompt(pairs, lambda p: p[0].prompt, lambda p: p[1].seconds_per_token / p[0].seconds_per_token)


def _our_best(own: Sequence[Sample], samples: Sequence[Sample]) -> tuple[str | None, dict[str, float]]:
    """Our fastest mode in the turns of a peer's samples; and how many times as fast our mode was, by prompt, that was
    fastest on the other prompts."""
    if not own or own[0].engine == OURS:
        return None, {}
    beside = [s for s in samples if s.engine == OURS and s.beside == own[0].beside and not s.is_disturbed]
    seconds = {
        mode: _of_prompts([s for s in beside if s.mode == mode], lambda s: s.seconds_per_token)
        for mode in dict.fromkeys(s.mode for s in beside)
    }
    if not seconds:
        return None, {}
    chosen = {s.prompt: _fastest(seconds, without=s.prompt) for s in beside}
    theirs = {_turn(s): s for s in own}
    return _fastest(seconds), _ratios([s for s in beside if s.mode == chosen[s.prompt]], theirs)


def _fastest(seconds: Mapping[str, Mapping[str, float]], without: str | None = None) -> str:
    """The mode with the shortest time a token, the median over prompts; without one of them, if there are others."""
    others = {
        mode: [time for prompt, time in its.items() if prompt != without] or list(its.values())
        for mode, its in seconds.items()
    }
    return min(others, key=lambda mode: median(others[mode]))


def _compared(every: Sequence[Sample], plain: Mapping[_Turn, Sample]) -> tuple[int, dict[str, Any] | None]:
    """How many prompts always had the tokens of plain decoding in the same turn, and the first place that had not."""
    difference = None
    differs = set()
    for s in every:
        other = plain.get(_turn(s))
        at = None if other is None else first_difference(s.tokens, other.tokens)
        if at is not None and other is not None:
            differs.add(s.prompt)
            if difference is None:
                tokens = {"token": s.tokens[at], "plain_token": other.tokens[at]}
                difference = {"prompt": s.prompt, "repeat": s.repeat, "position": at, **tokens}
    return len({s.prompt for s in every} - differs), difference


def _settled(samples: Sequence[Sample]) -> list[Sample]:
    """Samples whose prompt's time is the median over repeats: it is short, so a single one is easily disturbed."""
    times: dict[tuple[str, str, str, str], list[float]] = {}
    for s in samples:
        times.setdefault((s.engine, s.mode, s.beside, s.prompt), []).append(s.prompt_seconds)
    return [replace(s, prompt_seconds=median(times[s.engine, s.mode, s.beside, s.prompt])) for s in samples]


def _turn(sample: Sample) -> _Turn:
    """What samples that are compared have in common."""
    return sample.beside, sample.prompt, sample.repeat
