"""What is said of a record of tuning: its steps, what was measured, and what to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from foretoken.bench.pages import many, times
from foretoken.bench.statistics import FEWEST, PLAIN
from foretoken.common.provenance import isa_of


class Shown(NamedTuple):
    """A table as people see it."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(record: Mapping[str, Any]) -> list[Shown]:
    """The search, step by step; the other drafts; and what was measured, beside what was predicted of it."""
    tried = {line["draft"]: (f"{line['accepted']:.2f}", line["predicted_speedup"]) for line in record["candidates"]}
    others = [line["draft"] for line in record["candidates"] if line["kind"] != "fractal"]
    measured = [
        [
            final["draft"],
            f"{final['tokens_per_second']:.1f}",
            times(final["speedup"], final["interval"]),
            f"{tried[final['draft']][1]:.2f}" if final["draft"] in tried else "-",
            f"{final['accepted']:.2f}",
            "NO" if final["differing"] else "yes",
        ]
        for final in record["finals"]
    ]
    return [
        Shown(
            "fractal layers, one after the other",
            ["n", "varied", "tried", "best", "accepted a check", "speed-up, predicted"],
            list(_steps(record)),
        ),
        Shown(
            "other drafts",
            ["draft", "accepted a check", "speed-up, predicted"],
            [[draft, tried[draft][0], f"{tried[draft][1]:.2f}"] for draft in others],
        ),
        Shown(
            "measured beside plain decoding",
            ["draft", "tokens/s", "speed-up", "predicted", "accepted a check", "identical"],
            measured,
        ),
    ]


def _steps(record: Mapping[str, Any]) -> Iterator[list[str]]:
    accepted = {line["draft"]: line["accepted"] for line in record["candidates"]}
    for step in record["steps"]:
        count, left = len(step["tried"]), step["not_tried"]
        best = max(step["tried"], key=lambda each: each["speedup"], default=None)
        told = ["", "", ""]
        if best is not None:
            told = [best["draft"].partition(":")[2], f"{accepted[best['draft']]:.2f}", f"{best['speedup']:.2f}"]
        yield [str(step["n"]), step["varied"], f"{count} of {count + left}" if left else str(count), *told]


def where(record: Mapping[str, Any]) -> str:
    """The model, the machine and the prompts, in a line."""
    machine, choosing, measuring = record["machine"], record["prompts"]["choosing"], record["prompts"]["measuring"]
    others = "the same" if measuring == choosing else many(len(measuring), "other")
    return (
        f"{record['model']} ({record['num_layers']} layers) on {machine['processor']}, {machine['threads']} threads, "
        f"{isa_of(machine) or 'PyTorch'}: chosen on {many(len(choosing), 'prompt')} of {record['suite']['name']}, "
        f"measured on {others}, {many(record['repeats'], 'time')}"
    )


def verdict(record: Mapping[str, Any]) -> list[str]:
    """What to take, ready to be typed; and what that says of fractal drafts."""
    best, finals = record["recommended"], {final["draft"]: final for final in record["finals"]}
    fractal = [final for name, final in finals.items() if name.startswith("fractal")]
    why = ", plain decoding: no draft that was measured is faster" if best == PLAIN else ""
    lines = [f"fastest here: --draft {best}{why}"]
    if not best.startswith("fractal") and fractal:
        most = max(fractal, key=lambda final: final["speedup"])
        beside = "" if best == PLAIN else f", and {best} {finals[best]['speedup']:.2f} times"
        lines.append(
            f"the fastest fractal draft is {most['speedup']:.2f} times plain decoding{beside}: --draft {most['draft']}"
        )
    elif not best.startswith("fractal"):
        lines.append("no fractal draft was measured")
    if best != PLAIN:
        low, high = finals[best]["interval"]
        if low <= 1 <= high:
            lines.append(f"that it is faster than plain decoding is not sure: {low:.2f} to {high:.2f} times")
    if len(record["prompts"]["measuring"]) < FEWEST:
        lines.append(f"of fewer than {FEWEST} prompts, intervals are their range")
    if record["left_out"]:
        lines.append(f"the time ended before: {'; '.join(record['left_out'])}. More of it: --minutes")
    return [*lines, identity(record)]


def identity(record: Mapping[str, Any]) -> str:
    """Whether every text was plain decoding's."""
    if not record["differing_tokens"]:
        return f"no token differs from plain decoding (promise {record['promise']})"
    wrong = dict.fromkeys(each["draft"] for each in (*record["candidates"], *record["finals"]) if each["differing"])
    return f"{record['differing_tokens']} tokens DIFFER from plain decoding: {', '.join(wrong)}"
