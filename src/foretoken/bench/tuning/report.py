"""What is said of a record of tuning: its steps, what was measured, and what to take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretoken.bench.pages import many, markdown, times
from foretoken.bench.statistics import FEWEST, PLAIN
from foretoken.common.provenance import isa_of


def report(record: Mapping[str, Any]) -> list[str]:
    """The lines that a terminal shows: where, the tables, and what to take."""
    lines = [where(record), ""]
    for title, rows in tables(record).items():
        left = 4 if "best" in rows[0] else 1  # columns up to the draft's name
        lines += [f"## {title}", "", *markdown(list(rows[0]), [list(row.values()) for row in rows], left), ""]
    return lines + verdict(record)


def tables(record: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    """By their titles: the search, step by step; the other drafts; what was measured, beside what was predicted."""
    tried = {line["draft"]: line for line in record["candidates"]}
    return {
        "fractal layers, one after the other": [
            {
                "n": str(step["n"]),
                "varied": step["varied"],
                "tried": str(len(step["tried"]))
                + (f" of {len(step['tried']) + step['not_tried']}" if step["not_tried"] else ""),
                "best": (step["best"] or "").partition(":")[2],
                **_predicted(tried.get(step["best"])),
            }
            for step in record["steps"]
        ],
        "other drafts": [
            {"draft": draft, **_predicted(line)} for draft, line in tried.items() if line["kind"] != "fractal"
        ],
        "measured beside plain decoding": [
            {
                "draft": final["draft"],
                "tokens/s": f"{final['tokens_per_second']:.1f}",
                "speed-up": times(final["speedup"], final["interval"]),
                "predicted": _predicted(tried.get(final["draft"]))["speed-up, predicted"] or "-",
                "accepted a check": f"{final['accepted']:.2f}",
                "identical": "NO" if final["differing"] else "yes",
            }
            for final in record["finals"]
        ],
    }


def _predicted(line: Mapping[str, Any] | None) -> dict[str, str]:
    names = {"accepted a check": "accepted", "speed-up, predicted": "predicted_speedup"}
    return {title: "" if line is None else f"{line[name]:.2f}" for title, name in names.items()}


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
