"""A picture of tuning: what one fractal layer gains by its place, what each step gained, and what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foretoken.bench.tuning.report import where
from foretoken.common.pictures import COLOURS, FAINT, INK, new_figure, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(path: str | Path, record: dict[str, Any]) -> None:
    """Draw a record into a file, .png or .svg."""
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
    """Bars: one fractal layer, wherever it was tried; the line is the fastest chain."""
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
    """The best of each step, in turn."""
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
