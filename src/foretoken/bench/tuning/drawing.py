"""A picture of tuning: what one fractal layer gains by its place, what each step gained, and what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.bench.tuning.report import where
from foretoken.common.pictures import COLOURS, FAINT, INK, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(path: str | Path, record: dict[str, Any]) -> None:
    """Draw a record into a file, .png or .svg."""
    figure = new_figure(16, 4.8)
    layers, steps, measured = figure.subplots(1, 3)
    _first_layer(layers, record)
    _steps(steps, record["steps"])
    _measured(measured, record)
    figure.suptitle(where(record), fontsize=9)
    save(figure, path)


def _first_layer(axes: Axes, record: dict[str, Any]) -> None:
    """Bars: one fractal layer, wherever it was tried; the line is the fastest chain."""
    first = record["steps"][0]["tried"] if record["steps"] else []
    gains = {int(each["draft"].split("layers=")[1].split(":")[0]): each["speedup"] for each in first}
    axes.bar(list(gains), list(gains.values()), color=COLOURS[1])
    chains = [line["predicted_speedup"] for line in record["candidates"] if line["kind"] == "chain"]
    if chains:
        axes.axhline(max(chains), color=COLOURS[3], linewidth=1.5, label="fastest chain")
        axes.legend(fontsize=7)
    axes.axhline(1, color=FAINT, linewidth=1, linestyle="--")
    options = ", ".join(first[0]["draft"].split(":")[2:]) if first else "not tried"
    axes.set(xlabel="the fractal layer", ylabel="times plain decoding, predicted")
    axes.set_title(f"One fractal layer ({options})", fontsize=10)
    axes.set_xlim(-0.7, record["num_layers"] - 0.3)
    axes.locator_params(axis="x", integer=True)


def _steps(axes: Axes, steps: list[dict[str, Any]]) -> None:
    """The best of each step, in turn."""
    known = [step for step in steps if step["tried"]]
    best = [max(each["speedup"] for each in step["tried"]) for step in known]
    axes.plot(range(len(best)), best, color=COLOURS[2], marker="o", markersize=4)
    axes.axhline(1, color=FAINT, linewidth=1, linestyle="--")
    axes.set_xticks(range(len(best)), [f"{step['n']}: {step['varied']}" for step in known], rotation=60, fontsize=7)
    axes.set(title="Step by step", ylabel="times plain decoding, predicted")


def _measured(axes: Axes, record: dict[str, Any]) -> None:
    """Bars: what was measured, with its interval; marks: what was predicted."""
    predicted = {line["draft"]: line["predicted_speedup"] for line in record["candidates"]}
    finals = record["finals"]
    for place, final in enumerate(finals):
        low, high = final["interval"]
        error = [[max(final["speedup"] - low, 0)], [max(high - final["speedup"], 0)]]
        axes.barh(place, final["speedup"], 0.6, color=COLOURS[place % len(COLOURS)], alpha=0.8)
        axes.errorbar(final["speedup"], place, xerr=error, color=INK, linewidth=1, capsize=2)
        if final["draft"] in predicted:
            axes.plot(predicted[final["draft"]], place, marker="D", color=INK, markersize=5)
    axes.axvline(1, color=FAINT, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(finals)), [final["draft"].replace(":", "\n:") for final in finals], fontsize=7)
    axes.invert_yaxis()
    axes.set(title="Measured (diamond: predicted)", xlabel="times plain decoding")
