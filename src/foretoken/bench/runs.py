"""The results of a measurement of decoding: one `Run` per draft and temperature, from its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from foretoken.bench.samples import Sample, added, summed
from foretoken.bench.statistics import PLAIN, by_prompt, parting, times_as_fast, with_interval

KIND = "decode"  # the kind of a record of such runs
_COUNTS = ("drafts", "draft_tokens", "accepted_tokens")


@dataclass(frozen=True)
class Run:
    """One draft at one temperature. Speeds are medians over prompts of each prompt's median over repeats.

    tokens_per_second: of decoding alone, without the prompt and the first token, which the prompt's pass gives;
    with_prefill: with both. speedup: how many times as fast a token is as in plain decoding of the same prompt in the
    same repeat; the interval holds it at 95 % (bootstrap over prompts). speedup_of_total, speedup_with_prefill: the
    same for all prompts together, without and with their reading, the median over repeats; slow prompts count for more.
    mean_acceptance_length: tokens per check of the target, the bonus token counted. bytes_per_token: weights that the
    decoders of target and drafts read per token; cache_bytes_per_token: keys and values that they read and write;
    flops_per_token: what they compute, as `foretoken.decoder.cost` counts. share_of_ceiling: share of the speed that
    reading the weights' bytes allows at the bandwidth measured beside. identical: whether every text equals the plain
    one, token for token; first_difference: where it does not. Older records lack the fields that are None by default.
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
    flops_per_token: float | None = None
    cache_bytes_per_token: float | None = None


def summarise(samples: Sequence[Sample], draft: str, temperature: float) -> Run | None:
    """A draft's run; None if no prompt had a second token, because then there is no speed."""
    plain = {(s.prompt, s.repeat): s for s in samples if (s.draft, s.temperature) == (PLAIN, temperature)}
    every = [s for s in samples if (s.draft, s.temperature) == (draft, temperature)]
    pairs = [(s, plain[s.prompt, s.repeat]) for s in every]
    pairs = [(own, beside) for own, beside in pairs if own.decoded > 0 and beside.decoded > 0]
    if not pairs:
        return None
    own = [s for s, _ in pairs]
    first = [s for s in own if s.repeat == min(other.repeat for other in own)]  # each repeat has the same counts
    speedup, interval = with_interval(times_as_fast(pairs))
    counts = {name: sum(getattr(s, name) for s in first) for name in ("decoded", "passes", *_COUNTS)}
    decoded, drafted = counts["decoded"], counts["draft_tokens"]
    shares = [_spent("weight_bytes", s) / s.decode_seconds / s.bandwidth for s in own if s.bandwidth]
    difference = _first_difference(every, plain)
    return Run(
        draft=draft,
        temperature=temperature,
        promise=min(s.promise for s in own),
        prompts=len({s.prompt for s in own}),
        tokens=sum(len(turn) for s in first for turn in s.tokens),
        tokens_per_second=_speed(own, lambda s: s.decoded / s.decode_seconds),
        tokens_per_second_with_prefill=_speed(own, lambda s: (s.decoded + len(s.tokens)) / _seconds(s)),
        speedup=speedup,
        speedup_interval=interval,
        speedup_of_total=_of_total(pairs, lambda s: s.decode_seconds, lambda s: s.decoded),
        speedup_with_prefill=_of_total(pairs, _seconds, lambda s: s.decoded + len(s.tokens)),
        mean_acceptance_length=decoded / counts["passes"],
        draft_acceptance_rate=counts["accepted_tokens"] / drafted if drafted else 0.0,
        accepted_per_position=added(s.accepted_per_position for s in first),
        **{name: counts[name] for name in _COUNTS},
        bytes_per_token=_spent("weight_bytes", *first) / decoded,
        share_of_ceiling=median(shares) if shares else None,
        levels=_levels(first, sum(s.decode_seconds for s in first)),
        identical=difference is None,
        first_difference=difference,
        flops_per_token=_spent("flops", *first) / decoded,
        cache_bytes_per_token=_spent("cache_bytes", *first) / decoded,
    )


def _spent(what: str, *samples: Sample) -> float:
    """One part of the samples' cost, summed over all levels."""
    return sum(cost[what] for sample in samples for cost in sample.cost.values())


def _of_total(
    pairs: Sequence[tuple[Sample, Sample]], seconds: Callable[[Sample], float], tokens: Callable[[Sample], int]
) -> float:
    """How many times as fast all prompts of a repeat together are; the median over repeats."""
    ratios = []
    for repeat in {own.repeat for own, _ in pairs}:
        its = [pair for pair in pairs if pair[0].repeat == repeat]
        own, plain = (sum(map(seconds, each)) / sum(map(tokens, each)) for each in zip(*its, strict=True))
        ratios.append(plain / own)
    return median(ratios)


def _seconds(sample: Sample) -> float:
    return sample.decode_seconds + sample.prefill_seconds


def _speed(samples: Sequence[Sample], value: Callable[[Sample], float]) -> float:
    return median(by_prompt(samples, value).values())


def _levels(samples: Sequence[Sample], seconds: float) -> tuple[dict[str, Any], ...]:
    """What each level did: its passes, its share of the decoding time, its drafted and accepted tokens."""
    levels = []
    for name, sums in summed(sample.levels for sample in samples).items():
        counts = {key: int(sums[key]) for key in ("passes", "draft_tokens", "accepted_tokens")}
        levels.append({"name": name, **counts, "time_share": round(sums["seconds"] / seconds, 4)})
    return tuple(levels)


def _first_difference(samples: Sequence[Sample], plain: Mapping[tuple[str, int], Sample]) -> dict[str, Any] | None:
    """Where a sample's text first differs from its prompt's first plain text."""
    for sample in samples:
        expected = plain[sample.prompt, min(repeat for prompt, repeat in plain if prompt == sample.prompt)]
        for turn, (own, other) in enumerate(zip(sample.tokens, expected.tokens, strict=True)):
            found = parting(own, other)
            if found is not None:
                return {"prompt": sample.prompt, "repeat": sample.repeat, "turn": turn, **found}
    return None
