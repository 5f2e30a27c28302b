"""The report and the picture of a record of tuning: its steps, what was measured, and the recommended draft."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foretoken.bench.pages import machine, many, markdown, times
from foretoken.bench.statistics import FEWEST, PLAIN
from foretoken.common.pictures import COLOURS, FAINT, INK, new_figure, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def report(record: Mapping[str, Any]) -> list[str]:
    """The lines that a terminal shows: where it was measured, the tables, and the recommended draft."""
    lines = [where(record), ""]
    for title, rows in tables(record).items():
        left = 4 if "best" in rows[0] else 1  # columns up to the draft's name
        lines += [f"## {title}", "", *markdown(list(rows[0]), [list(row.values()) for row in rows], left), ""]
    return lines + verdict(record)


def tables(record: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    """The tables by title: the search, step by step; the other drafts; measured speeds beside predicted ones."""
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
    choosing, measuring = record["prompts"]["choosing"], record["prompts"]["measuring"]
    others = "the same" if measuring == choosing else many(len(measuring), "other")
    return (
        f"{record['model']} ({record['num_layers']} layers) on {machine(record)}: chosen on "
        f"{many(len(choosing), 'prompt')} of {record['suite']['name']}, measured on {others}, "
        f"{many(record['repeats'], 'time')}"
    )


def verdict(record: Mapping[str, Any]) -> list[str]:
    """The recommended draft, ready to be typed; and what follows for fractal drafts."""
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
    fastest = max(finals.values(), key=lambda final: float(final["tokens_per_second"]), default=None)
    if fastest is not None and best in finals and fastest["tokens_per_second"] > finals[best]["tokens_per_second"]:
        lines.append(
            f"{fastest['draft']} has more tokens/s in the table, at another time; beside plain decoding, in the same "
            f"turns, it is {fastest['speedup']:.2f} times as fast, {best} {finals[best]['speedup']:.2f} times"
        )
    if len(record["prompts"]["measuring"]) < FEWEST:
        lines.append(f"of fewer than {FEWEST} prompts, intervals are their range")
    if record["left_out"]:
        lines.append(f"the time ended before: {'; '.join(record['left_out'])}. More of it: --minutes")
    return [*lines, identity(record)]


def identity(record: Mapping[str, Any]) -> str:
    """A sentence on whether every text equals plain decoding's."""
    if not record["differing_tokens"]:
        return f"no token differs from plain decoding (promise {record['promise']})"
    wrong = dict.fromkeys(each["draft"] for each in (*record["candidates"], *record["finals"]) if each["differing"])
    return f"{record['differing_tokens']} tokens DIFFER from plain decoding: {', '.join(wrong)}"


def draw(path: str | Path, record: dict[str, Any]) -> None:
    """Draw a record into a file, .png or .svg: the gain of one fractal layer by its place, the gain of each step, and
    what was measured."""
    figure = new_figure(16, 4.8)
    layers, steps, measured = figure.subplots(1, 3)
    _first_layer(layers, record)
    _steps(steps, [step for step in record["steps"] if step["tried"]])
    _measured(measured, record["finals"], {each["draft"]: each["predicted_speedup"] for each in record["candidates"]})
    for axes in (layers, steps):
        axes.axhline(1, color=FAINT, linewidth=1, linestyle="--")
        axes.set_ylabel("times plain decoding, predicted")
    figure.suptitle(where(record), fontsize=9)
    save(figure, path)


def _first_layer(axes: Axes, record: dict[str, Any]) -> None:
    """Bars: one fractal layer, at each place that was tried; the line is the fastest chain."""
    first = record["steps"][0]["tried"] if record["steps"] else []
    gains = {int(each["draft"].split("layers=")[1].split(":")[0]): each["speedup"] for each in first}
    axes.bar(list(gains), list(gains.values()), color=COLOURS[1])
    chains = [line["predicted_speedup"] for line in record["candidates"] if line["kind"] == "chain"]
    if chains:
        axes.axhline(max(chains), color=COLOURS[3], linewidth=1.5, label="fastest chain")
        axes.legend(fontsize=7)
    options = ", ".join(first[0]["draft"].split(":")[2:]) if first else "not tried"
    axes.set_title(f"One fractal layer ({options})", fontsize=10)
    axes.set(xlabel="the fractal layer", xlim=(-0.7, record["num_layers"] - 0.3))
    axes.locator_params(axis="x", integer=True)


def _steps(axes: Axes, steps: list[dict[str, Any]]) -> None:
    """A line: the best of each step, in turn."""
    best = [max(each["speedup"] for each in step["tried"]) for step in steps]
    axes.plot(range(len(best)), best, color=COLOURS[2], marker="o", markersize=4)
    axes.set_xticks(range(len(best)), [f"{step['n']}: {step['varied']}" for step in steps], rotation=60, fontsize=7)
    axes.set_title("Step by step")


def _measured(axes: Axes, finals: list[dict[str, Any]], predicted: dict[str, float]) -> None:
    """Bars: what was measured, with its interval; marks: what was predicted."""
    places, drafts = range(len(finals)), [final["draft"] for final in finals]
    speeds = np.array([final["speedup"] for final in finals])
    errors = np.abs(np.array([final["interval"] for final in finals]).T - speeds)
    colours = [style(place)[0] for place in places]
    axes.barh(places, speeds, 0.6, color=colours, alpha=0.8, xerr=errors, ecolor=INK, capsize=2)
    axes.plot([predicted.get(draft, np.nan) for draft in drafts], places, "D", color=INK, markersize=5)
    axes.axvline(1, color=FAINT, linewidth=1, linestyle="--")
    axes.set_yticks(places, [draft.replace(":", "\n:") for draft in drafts], fontsize=7)
    axes.invert_yaxis()
    axes.set(title="Measured (diamond: predicted)", xlabel="times plain decoding")
