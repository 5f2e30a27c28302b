"""What a measurement of decoding says in the end: one `Run` a draft and temperature, from its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from foretoken.bench.intervals import median_interval
from foretoken.bench.samples import Sample, added

KIND = "decode"  # of a record of such runs
PLAIN = "none"


@dataclass(frozen=True)
class Run:
    """One draft at one temperature. Speeds are medians over prompts of each prompt's median over repeats.

    tokens_per_second: of decoding alone, without the prompt and the first token, which its pass gives; with_prefill:
    with both. speedup: over plain decoding of the same prompt in the same repeat; the interval holds it at 95 %
    (bootstrap over prompts). speedup_of_total: of the time of all prompts together, which the slow ones decide.
    mean_acceptance_length: tokens a pass of the target, the bonus token counted. bytes_per_token: what target and
    drafts read of their weights for it. share_of_ceiling: of the speed that reading those bytes allows at the bandwidth
    measured beside. identical: whether every text is the plain one, token for token; first_difference: where not.
    """

    draft: str
    temperature: float
    promise: str
    prompts: int
    tokens: int
    tokens_per_second: float
    tokens_per_second_with_prefill: float
    speedup: float
    speedup_interval: tuple[float, float]
    speedup_with_prefill: float
    speedup_of_total: float
    mean_acceptance_length: float
    draft_acceptance_rate: float
    accepted_per_position: tuple[int, ...]
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    bytes_per_token: float
    share_of_ceiling: float | None
    levels: tuple[dict[str, Any], ...]
    identical: bool
    first_difference: dict[str, Any] | None


def summarise(samples: Sequence[Sample], draft: str, temperature: float, weights: Mapping[str, int]) -> Run | None:
    """A draft's run; None where no prompt had a second token, so that there is no speed. weights: bytes that a pass
    reads of them, by level; `target` among them."""
    plain = {s.prompt: s for s in reversed(samples) if (s.draft, s.temperature) == (PLAIN, temperature)}
    beside = {(s.prompt, s.repeat): s for s in samples if (s.draft, s.temperature) == (PLAIN, temperature)}
    every = [s for s in samples if (s.draft, s.temperature) == (draft, temperature)]
    own = [s for s in every if s.decoded > 0]
    if not own:
        return None
    first = [s for s in own if s.repeat == min(other.repeat for other in own)]  # the counts are those of every repeat
    seconds = _by_prompt(own, lambda s: s.decode_seconds)
    plain_seconds = _by_prompt([beside[s.prompt, s.repeat] for s in own], lambda s: s.decode_seconds)
    ratios = _by_prompt(own, lambda s: beside[s.prompt, s.repeat].decode_seconds / s.decode_seconds)
    whole = _by_prompt(own, lambda s: _seconds(beside[s.prompt, s.repeat]) / _seconds(s))
    decoded, passes = sum(s.decoded for s in first), sum(s.passes for s in first)
    draft_tokens, accepted = sum(s.draft_tokens for s in first), sum(s.accepted_tokens for s in first)
    levels = _levels(first, sum(s.decode_seconds for s in first))
    bytes_per_token = (
        passes * weights["target"] + sum(level["passes"] * weights.get(level["name"], 0) for level in levels)
    ) / decoded
    shares = [s.decoded / s.decode_seconds * bytes_per_token / s.bandwidth for s in own if s.bandwidth]
    difference = _first_difference(plain, every)
    return Run(
        draft=draft,
        temperature=temperature,
        promise=min(s.promise for s in own),
        prompts=len(ratios),
        tokens=sum(len(turn) for s in first for turn in s.tokens),
        tokens_per_second=_speed(own, lambda s: s.decoded / s.decode_seconds),
        tokens_per_second_with_prefill=_speed(own, lambda s: (s.decoded + len(s.tokens)) / _seconds(s)),
        speedup=median(ratios.values()),
        speedup_interval=median_interval(list(ratios.values())),
        speedup_with_prefill=median(whole.values()),
        speedup_of_total=sum(plain_seconds.values()) / sum(seconds.values()),
        mean_acceptance_length=decoded / passes,
        draft_acceptance_rate=accepted / draft_tokens if draft_tokens else 0.0,
        accepted_per_position=added(s.accepted_per_position for s in first),
        drafts=sum(s.drafts for s in first),
        draft_tokens=draft_tokens,
        accepted_tokens=accepted,
        bytes_per_token=bytes_per_token,
        share_of_ceiling=median(shares) if shares else None,
        levels=levels,
        identical=difference is None,
        first_difference=difference,
    )


def _seconds(sample: Sample) -> float:
    return sample.decode_seconds + sample.prefill_seconds


def _by_prompt(samples: Sequence[Sample], value: Callable[[Sample], float]) -> dict[str, float]:
    """Each prompt's median over repeats."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        values.setdefault(sample.prompt, []).append(value(sample))
    return {prompt: median(its) for prompt, its in values.items()}


def _speed(samples: Sequence[Sample], value: Callable[[Sample], float]) -> float:
    return median(_by_prompt(samples, value).values())


def _levels(samples: Sequence[Sample], seconds: float) -> tuple[dict[str, Any], ...]:
    """What each level did: its passes, its share of the time of decoding, its drafts' fate."""
    names = list(dict.fromkeys(name for sample in samples for name in sample.levels))
    levels = []
    for name in names:
        sums = {
            key: sum(sample.levels[name][key] for sample in samples if name in sample.levels)
            for key in ("passes", "seconds", "draft_tokens", "accepted_tokens")
        }
        share = sums.pop("seconds") / seconds
        levels.append({"name": name, **{key: int(count) for key, count in sums.items()}, "time_share": round(share, 4)})
    return tuple(levels)


def _first_difference(plain: Mapping[str, Sample], samples: Sequence[Sample]) -> dict[str, Any] | None:
    """Where a sample's text first leaves the plain one: the token there and the plain one, null where a text ended."""
    for sample in samples:
        for turn, (own, other) in enumerate(zip(sample.tokens, plain[sample.prompt].tokens, strict=True)):
            if own != other:
                at = next((i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), None)
                position = min(len(own), len(other)) if at is None else at
                return {
                    "prompt": sample.prompt,
                    "repeat": sample.repeat,
                    "turn": turn,
                    "position": position,
                    "token": own[position] if position < len(own) else None,
                    "plain_token": other[position] if position < len(other) else None,
                }
    return None
