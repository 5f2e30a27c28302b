"""The few best drafts, measured in turn beside plain decoding; and which of them to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from foretoken.bench.generations import Generation, times_as_fast
from foretoken.bench.statistics import PLAIN, by_prompt, median_interval
from foretoken.bench.suites import Prompt
from foretoken.bench.tuning.trials import Trials


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


def measure(
    trials: Trials, drafts: Sequence[str], prompts: Sequence[Prompt], repeats: int, goes_on: Callable[[float], bool]
) -> tuple[list[Final], list[dict[str, Any]], int]:
    """Every prompt plainly and with each draft, in turn, in the other order every second time.

    Returns what drafts came to, every generation as a record has it, and how many repeats there were: after the first,
    `goes_on` is asked whether there is time for one that takes so many seconds.
    """
    models = {PLAIN: trials.plain, **{draft: trials.model(draft) for draft in drafts}}
    lines: list[dict[str, Any]] = []
    pairs: dict[str, list[tuple[Generation, Generation]]] = {draft: [] for draft in models}
    repeat = 0
    while repeat < repeats and (repeat == 0 or goes_on(_seconds(lines) / repeat)):
        for number, prompt in enumerate(prompts):
            order = list(models) if (repeat + number) % 2 == 0 else list(models)[::-1]
            texts = {}
            for draft in order:
                trials.progress(f"measuring {draft}, prompt {prompt.id}", repeat * len(prompts) + number, 0)
                texts[draft] = trials.complete(models[draft], prompt, number)
            made = {d: Generation.of(texts[d], texts[PLAIN], method=d, prompt=prompt.id) for d in models}
            for draft, generation in made.items():
                lines.append({"repeat": repeat, **generation.to_json()})
                if generation.decoded and made[PLAIN].decoded:
                    pairs[draft].append((generation, made[PLAIN]))
        repeat += 1
    return [_final(draft, pairs[draft], lines) for draft in models if pairs[draft]], lines, repeat


def _seconds(lines: Sequence[Mapping[str, Any]]) -> float:
    return float(sum(line["prefill_seconds"] + line["decode_seconds"] for line in lines))


def _final(draft: str, pairs: Sequence[tuple[Generation, Generation]], lines: Sequence[Mapping[str, Any]]) -> Final:
    def prompt(pair: tuple[Generation, Generation]) -> str:
        return pair[0].prompt

    speeds = by_prompt(pairs, prompt, lambda pair: pair[0].decoded / pair[0].decode_seconds)
    ratios = by_prompt(pairs, prompt, lambda pair: times_as_fast(*pair))
    rounds = [accepted for own, _ in pairs for _, accepted, _ in own.rounds]
    return Final(
        draft,
        median(speeds.values()),
        median(ratios.values()),
        median_interval(list(ratios.values())),
        sum(rounds) / max(1, len(rounds)),
        sum(line["differing"] for line in lines if line["method"] == draft),
    )


def recommended(finals: Sequence[Final]) -> str:
    """The draft that was measured to be fastest, of those whose every token was plain decoding's; plain decoding where
    none is faster than it."""
    sound = [final for final in finals if final.differing == 0 and final.speedup > 1]
    return max(sound, key=lambda final: final.speedup).draft if sound else PLAIN
