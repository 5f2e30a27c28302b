"""The few best drafts, as they were measured beside plain decoding; and which of them to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from foretoken.bench.generations import Generation, times_as_fast
from foretoken.bench.statistics import PLAIN, by_prompt, median_interval


@dataclass(frozen=True)
class Final:
    """A draft that was measured: tokens a second of decoding, and its speed-up over plain decoding of the same prompt
    beside it, the medians over prompts; its interval at 95 %. accepted: draft tokens a check."""

    draft: str
    tokens_per_second: float
    speedup: float
    interval: tuple[float, float]
    accepted: float
    differing: int


def summarise(turns: Sequence[Sequence[Generation]]) -> list[Final]:
    """What each draft came to. turns: a prompt by every draft, plain decoding first. A draft that never had a second
    token is left out."""
    finals = []
    for every in zip(*turns, strict=True):
        pairs = [(own, turn[0]) for own, turn in zip(every, turns, strict=True) if own.decoded and turn[0].decoded]
        if not pairs:
            continue
        speeds = by_prompt(pairs, lambda pair: pair[0].prompt, lambda pair: pair[0].decoded / pair[0].decode_seconds)
        ratios = by_prompt(pairs, lambda pair: pair[0].prompt, lambda pair: times_as_fast(*pair))
        rounds = [accepted for own, _ in pairs for _, accepted, _ in own.rounds]
        finals.append(
            Final(
                every[0].method,
                median(speeds.values()),
                median(ratios.values()),
                median_interval(list(ratios.values())),
                sum(rounds) / max(1, len(rounds)),
                sum(each.differing for each in every),
            )
        )
    return finals


def recommended(finals: Sequence[Final]) -> str:
    """The draft that was measured to be fastest, of those whose every token was plain decoding's; plain decoding where
    none is faster than it."""
    sound = [final for final in finals if final.differing == 0 and final.speedup > 1]
    return max(sound, key=lambda final: final.speedup).draft if sound else PLAIN
