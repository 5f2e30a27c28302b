"""What is said of a record of tuning: its steps, what was measured, and what to take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretoken.bench.pages import times
from foretoken.bench.statistics import FEWEST, PLAIN
from foretoken.common.provenance import isa_of

Rows = list[list[str]]


def steps(record: Mapping[str, Any]) -> Rows:
    """A row a step: fractal layers, what was varied, how many were tried, the best of them, its accepted tokens a check
    and predicted speed-up."""
    accepted = {line["draft"]: line["accepted"] for line in record["candidates"]}
    rows = []
    for step in record["steps"]:
        tried = f"{len(step['tried'])}" + (f" of {len(step['tried']) + step['not_tried']}" if step["not_tried"] else "")
        best = max(step["tried"], key=lambda each: each["speedup"], default=None)
        if best is None:
            rows.append([str(step["n"]), step["varied"], tried, "", "", ""])
            continue
        draft = best["draft"]
        told = [f"{accepted[draft]:.2f}", f"{best['speedup']:.2f}"]
        rows.append([str(step["n"]), step["varied"], tried, draft.partition(":")[2], *told])
    return rows


def beside(record: Mapping[str, Any]) -> Rows:
    """Of each kind of other draft, all that were tried: accepted tokens a check and predicted speed-up."""
    return [
        [line["draft"], f"{line['accepted']:.2f}", f"{line['predicted_speedup']:.2f}"]
        for line in record["candidates"]
        if line["kind"] != "fractal"
    ]


def measured(record: Mapping[str, Any]) -> Rows:
    """A row a draft that was measured: tokens a second, speed-up with its interval, what was predicted, accepted tokens
    a check, whether every token was plain decoding's."""
    predicted = {line["draft"]: line["predicted_speedup"] for line in record["candidates"]}
    return [
        [
            final["draft"],
            f"{final['tokens_per_second']:.1f}",
            times(final["speedup"], final["interval"]),
            f"{predicted[final['draft']]:.2f}" if final["draft"] in predicted else "-",
            f"{final['accepted']:.2f}",
            "NO" if final["differing"] else "yes",
        ]
        for final in record["finals"]
    ]


def where(record: Mapping[str, Any]) -> str:
    """The model, the machine and the prompts, in a line."""
    machine, prompts = record["machine"], record["prompts"]
    return (
        f"{record['model']} ({record['num_layers']} layers) on {machine['processor']}, {machine['threads']} threads, "
        f"{isa_of(machine) or 'PyTorch'}: chosen on {_count(len(prompts['choosing']), 'prompt')} of "
        f"{record['suite']['name']}, measured on {_others(prompts)}, {_count(record['repeats'], 'time')}"
    )


def _others(prompts: Mapping[str, list[str]]) -> str:
    count = len(prompts["measuring"])
    return "the same" if prompts["measuring"] == prompts["choosing"] else _count(count, "other")


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def verdict(record: Mapping[str, Any]) -> list[str]:
    """What to take, ready to be typed; and what that says of fractal drafts."""
    best, finals = record["recommended"], {final["draft"]: final for final in record["finals"]}
    lines = [f"fastest here: --draft {best}"]
    fractal = [final for name, final in finals.items() if name.startswith("fractal")]
    if best == PLAIN:
        lines = [f"fastest here: --draft {best}, plain decoding: no draft that was measured is faster"]
    if not best.startswith("fractal") and fractal:
        most = max(fractal, key=lambda final: final["speedup"])
        times_plain = f"{most['speedup']:.2f} times plain decoding"
        beside = "" if best == PLAIN else f", and {best} {finals[best]['speedup']:.2f} times"
        lines.append(f"the fastest fractal draft is {times_plain}{beside}: --draft {most['draft']}")
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
    differing = record["differing_tokens"]
    if not differing:
        return f"no token differs from plain decoding (promise {record['promise']})"
    wrong = [line["draft"] for line in record["candidates"] if line["differing"]]
    wrong += [final["draft"] for final in record["finals"] if final["differing"]]
    return f"{differing} tokens DIFFER from plain decoding: {', '.join(dict.fromkeys(wrong))}"
