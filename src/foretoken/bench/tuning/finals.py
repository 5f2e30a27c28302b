"""The few best drafts, as they were measured beside plain decoding; and which of them to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from foretoken.bench.generations import Generation
from foretoken.bench.statistics import PLAIN, by_prompt, times_as_fast, with_interval


def finals(turns: Sequence[Sequence[Generation]]) -> Iterator[dict[str, Any]]:
    """Drafts that were measured: tokens a second of decoding, and the speed-up over plain decoding of the same prompt
    beside it, medians over prompts; its interval at 95 %; `accepted` draft tokens a check.

    turns: a prompt by every draft, plain decoding first. A draft that never had a second token is left out.
    """
    for every in zip(*turns, strict=True):
        pairs = [(own, turn[0]) for own, turn in zip(every, turns, strict=True) if own.decoded and turn[0].decoded]
        if pairs:
            speeds = by_prompt((own for own, _ in pairs), lambda own: own.decoded / own.decode_seconds)
            speedup, interval = with_interval(times_as_fast(pairs))
            rounds = [accepted for own, _ in pairs for _, accepted, _ in own.rounds]
            yield {
                "draft": every[0].method,
                "tokens_per_second": median(speeds.values()),
                "speedup": speedup,
                "interval": interval,
                "accepted": sum(rounds) / max(1, len(rounds)),
                "differing": sum(each.differing for each in every),
            }


def recommended(finals: Sequence[Mapping[str, Any]]) -> str:
    """The draft that was measured to be fastest, of those whose every token was plain decoding's; plain decoding where
    none is faster than it."""
    sound = [final for final in finals if final["differing"] == 0 and final["speedup"] > 1]
    return str(max(sound, key=lambda final: float(final["speedup"]))["draft"]) if sound else PLAIN
