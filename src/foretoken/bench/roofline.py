"""Draws a record of `foretoken bench kernels`: the bandwidth that kernels reach by the rows of a pass, and a roofline.

The two pictures are figures 7 and 8 of ML-SpecQD (Georganas et al. 2025), of this machine. A kernel's roof is what it
computes with weights in the cache; where that lies below the line of the bandwidth, memory is not what holds it up.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.common.pictures import FAINT, new_figure, save, style
from foretoken.common.provenance import isa_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(path: str | Path, record: dict[str, Any]) -> None:
    """Draw a record into a file, .png or .svg, for its largest matrix."""
    m, k = max(((r["m"], r["k"]) for r in record["results"]), key=lambda shape: shape[0] * shape[1])
    lines: dict[str, list[dict[str, Any]]] = {}
    for result in record["results"]:
        if (result["m"], result["k"]) == (m, k):
            lines.setdefault(result["kernel"].removeprefix("linear_"), []).append(result)
    figure = new_figure(13, 5.4)
    bandwidth_axes, roof_axes = figure.subplots(1, 2)
    bandwidth = record["read_bandwidth_gb_per_s"]
    styles = {name: style(at) for at, name in enumerate(lines)}
    _bandwidth(bandwidth_axes, lines, bandwidth, styles)
    _roofline(roof_axes, lines, bandwidth, styles, {r["kernel"].removeprefix("linear_"): r for r in record["roofs"]})
    machine = record["machine"]
    figure.suptitle(
        f"{m} outputs, {k} inputs: {machine['processor']}, {machine['threads']} threads, {isa_of(machine)}, "
        f"{bandwidth} GB/s, commit {str(record.get('commit'))[:7]}",
        fontsize=10,
    )
    save(figure, path)


def _bandwidth(
    axes: Axes, lines: dict[str, list[dict[str, Any]]], bandwidth: float, styles: dict[str, tuple[str, str]]
) -> None:
    axes.axhline(bandwidth, color=FAINT, linewidth=1, linestyle="--")
    axes.annotate("read bandwidth", (1, bandwidth), xytext=(0, 3), textcoords="offset points", color=FAINT)
    for name, results in lines.items():
        colour, mark = styles[name]
        rows = [r["n"] for r in results]
        axes.plot(
            rows, [r["fraction_of_bandwidth"] * bandwidth for r in results], color=colour, marker=mark, label=name
        )
    axes.set_xscale("log", base=2)
    ticks = sorted({r["n"] for results in lines.values() for r in results})
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.set(xlabel="rows N of a pass", ylabel="GB/s of weights", ylim=(0, None), title="Bandwidth by rows")
    axes.grid(alpha=0.25)


def _roofline(
    axes: Axes,
    lines: dict[str, list[dict[str, Any]]],
    bandwidth: float,
    styles: dict[str, tuple[str, str]],
    roofs: dict[str, dict[str, Any]],
) -> None:
    intensities = [_intensity(r) for results in lines.values() for r in results]
    low, high = min(intensities) / 1.5, max(intensities) * 1.5
    axes.plot([low, high], [low * bandwidth, high * bandwidth], color=FAINT, linewidth=1, linestyle="--")
    for name, results in lines.items():
        colour, mark = styles[name]
        roof = roofs[name]["gflops"]
        axes.plot([roof / bandwidth, high], [roof, roof], color=colour, linewidth=1, alpha=0.5)
        axes.plot(
            [_intensity(r) for r in results], [r["gflops"] for r in results], color=colour, marker=mark, label=name
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    top = max(max(roof["gflops"] for roof in roofs.values()), max(r["gflops"] for rs in lines.values() for r in rs))
    axes.set(
        xlabel="operations for each byte of weights",
        ylabel="GFLOP/s",
        title="Roofline: thin lines are what a kernel computes in the cache",
        xlim=(low, high),
        ylim=(min(r["gflops"] for rs in lines.values() for r in rs) / 1.5, top * 1.5),
    )
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(alpha=0.25)


def _intensity(result: dict[str, Any]) -> float:
    return float(2 * result["m"] * result["k"] * result["n"] / result["bytes"])
