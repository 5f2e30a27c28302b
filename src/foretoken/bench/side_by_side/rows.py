"""The figures of each way to decode, from its samples: a `Row`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from foretoken.bench.statistics import by_prompt, first_difference, parting, rounded, times_as_fast, with_interval

OURS = "foretoken"
PLAIN = "plain"
_Turn = tuple[str, str, int]  # the same for samples that are compared: peer, prompt and repeat
_LEAST = 0.01  # least share of all the time that decoding takes; a smaller share is due to other programs


@dataclass
class Way:
    """A way to decode. of: the mode of its engine that gives the same tokens without speculation; None for that mode.
    why: the reason why the way cannot be measured, or not any more."""

    engine: str
    mode: str
    settings: str
    of: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class Sample:
    """A prompt decoded once. `seconds`: for all its `tokens`. `prompt_seconds`: for the prompt and one token, by the
    same engine without speculation, just before. beside: the peer in whose turns it was decoded; each sample has one
    peer. bandwidth: memory's speed just before the turn, in bytes per second."""

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
        """The sample as a record keeps it, so that its figures can be computed again; tokens become their number."""
        return {**rounded(asdict(replace(self, tokens=()))), "tokens": len(self.tokens)}

    @property
    def turn(self) -> _Turn:
        """The turn in which the prompt was decoded."""
        return self.beside, self.prompt, self.repeat

    @property
    def is_disturbed(self) -> bool:
        """Whether the prompt seemed to take nearly all of the time, because something else ran."""
        return self.seconds - self.prompt_seconds <= _LEAST * self.seconds

    @property
    def seconds_per_token(self) -> float:
        """Seconds of decoding alone per token, a draft's time for the prompt included; meaningless if disturbed."""
        return (self.seconds - self.prompt_seconds) / (len(self.tokens) - 1)


_ByTurn = Mapping[_Turn, Sample]


@dataclass
class Row(Way):
    """A way to decode, measured. Times are medians over prompts of each prompt's median over repeats.

    ms_per_token: of decoding alone; with_prompt: all seconds divided by all tokens. times_our_plain, times_own_plain:
    how many times as fast as our plain decoding and as its engine's own, for the same prompt in the same turn; with
    intervals at 95 % (bootstrap over prompts). our_best_times: how many times as fast our fastest mode was in those
    turns; for each prompt the mode that was fastest on the others, so that no mode is chosen by the prompt that judges
    it. equal_to_own_plain: prompts whose tokens equal its own plain decoding's of the same turn, every time.
    equal_to_ours, like_ours: prompts whose tokens equal ours, and the median number of tokens before the first that
    differs. repeatable: whether the tokens were the same every time. disturbed: how many samples were left out, because
    their time cannot be used. If every sample was left out, `why` says so, and fields that need no time are still set.
    """

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


def row(way: Way, samples: Sequence[Sample]) -> Row:
    """The row of a way to decode, which may have no samples. samples: those of all ways."""
    samples = _settled(samples)
    own = [s for s in samples if (s.engine, s.mode) == (way.engine, way.mode)]
    known = asdict(way)
    if way.why is not None or not own:
        return Row(**{**known, "why": way.why or "it was not measured"})
    plain, ours = _by_turn(samples, way.engine, way.of), _by_turn(samples, OURS, PLAIN)
    known |= _of_tokens(own, plain, ours)
    timed = [s for s in own if not s.is_disturbed]
    beside_ours = _ratios(timed, ours)
    if not beside_ours:
        return Row(**{**known, "why": "it was disturbed in every turn; measure it again"})
    best, best_times = _our_best(timed, samples)
    return Row(
        **known,
        **_of_times(timed),
        our_best=best,
        **_compared("times_our_plain", beside_ours),
        **_compared("times_own_plain", _ratios(timed, plain)),
        **_compared("our_best_times", best_times),
    )


def _of_tokens(own: Sequence[Sample], plain: _ByTurn, ours: _ByTurn) -> dict[str, Any]:
    """A row's fields on tokens, which need no time. plain, ours: the samples to compare with."""
    first = {s.prompt: s for s in reversed(own)}
    like = [first_difference(s.tokens, ours[s.turn].tokens) for s in first.values()]
    parted = ((s, parting(s.tokens, plain[s.turn].tokens)) for s in own if s.turn in plain)
    differences = [{"prompt": s.prompt, "repeat": s.repeat, **found} for s, found in parted if found is not None]
    equal = len(first) - len({difference["prompt"] for difference in differences})
    return {
        "prompts": len(first),
        "tokens": sum(len(s.tokens) for s in first.values()),
        "identical_to_own_plain": not differences if plain else None,
        "equal_to_own_plain": equal if plain else None,
        "first_difference": differences[0] if differences else None,
        "equal_to_ours": like.count(None),
        "like_ours": median(len(s.tokens) if at is None else at for s, at in zip(first.values(), like, strict=True)),
        "repeatable": all(s.tokens == first[s.prompt].tokens for s in own),
        "disturbed": sum(s.is_disturbed for s in own),
    }


def _of_times(timed: Sequence[Sample]) -> dict[str, Any]:
    """A row's fields on the times of its samples alone."""
    per_token = by_prompt(timed, lambda s: 1e3 * s.seconds_per_token)
    milliseconds = median(per_token.values())
    return {
        "ms_per_token": milliseconds,
        "ms_per_token_with_prompt": median(by_prompt(timed, lambda s: 1e3 * s.seconds / len(s.tokens)).values()),
        "prompt_ms": median(by_prompt(timed, lambda s: 1e3 * s.prompt_seconds).values()),
        "tokens_per_second": 1e3 / milliseconds,
        "ms_per_token_by_prompt": per_token,
    }


def _compared(name: str, ratios: Mapping[str, float]) -> dict[str, Any]:
    """A row's fields on ratios by prompt: how many times as fast, with its interval; empty without ratios."""
    return dict(zip((name, f"{name}_interval"), with_interval(ratios), strict=True)) if ratios else {}


def _by_turn(samples: Iterable[Sample], engine: str, mode: str | None) -> _ByTurn:
    return {s.turn: s for s in samples if (s.engine, s.mode) == (engine, mode)}


def _ratios(own: Iterable[Sample], others: _ByTurn) -> dict[str, float]:
    """How many times as fast these samples are as the others of the same turns, by prompt; without disturbed others."""
    pairs = [(s, others[s.turn]) for s in own if s.turn in others]
    return times_as_fast(pair for pair in pairs if not pair[1].is_disturbed)


def _our_best(timed: Sequence[Sample], samples: Sequence[Sample]) -> tuple[str | None, dict[str, float]]:
    """Our fastest mode in the turns of a peer's samples; and, by prompt, how many times as fast as those samples our
    mode is that was fastest on the other prompts."""
    ours = [s for s in samples if s.engine == OURS and s.beside == timed[0].beside and not s.is_disturbed]
    if timed[0].engine == OURS or not ours:
        return None, {}
    seconds = {
        mode: by_prompt([s for s in ours if s.mode == mode], lambda s: s.seconds_per_token)
        for mode in dict.fromkeys(s.mode for s in ours)
    }
    chosen = {s.prompt: _fastest(seconds, without=s.prompt) for s in ours}
    best = [s for s in ours if s.mode == chosen[s.prompt]]
    return _fastest(seconds), _ratios(best, {s.turn: s for s in timed})


def _fastest(seconds: Mapping[str, Mapping[str, float]], without: str | None = None) -> str:
    """The mode with the shortest time per token, the median over prompts; `without` one prompt, if there are others."""

    def time(mode: str) -> float:
        others = [time for prompt, time in seconds[mode].items() if prompt != without]
        return median(others or seconds[mode].values())

    return min(seconds, key=time)


def _settled(samples: Sequence[Sample]) -> list[Sample]:
    """The samples with the prompt's time as a median over repeats: it is short, so a single one is easily disturbed."""
    times: dict[tuple[str, str, str, str], list[float]] = {}
    for s in samples:
        times.setdefault((s.engine, s.mode, s.beside, s.prompt), []).append(s.prompt_seconds)
    return [replace(s, prompt_seconds=median(times[s.engine, s.mode, s.beside, s.prompt])) for s in samples]
