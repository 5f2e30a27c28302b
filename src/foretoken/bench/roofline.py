"""Shows a record of `foretoken bench kernels`: a table, and pictures of the bandwidth by the rows of a pass and of a
roofline.

The two pictures are figures 7 and 8 of ML-SpecQD (Georganas et al. 2025), for this machine. A kernel's roof is its
speed with weights in the cache. Where the roof is below the bandwidth's line, memory does not limit the kernel.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.bench.pages import markdown
from foretoken.common.pictures import FAINT, new_figure, save, style
from foretoken.common.progress import many
from foretoken.common.provenance import isa_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Lines = dict[str, list[dict[str, Any]]]  # results by kernel
_DASHED: dict[str, Any] = {"color": FAINT, "linewidth": 1, "linestyle": "--"}  # what memory allows


def draw(path: str | Path, record: dict[str, Any]) -> None:
    """Draw a record into a file, .png or .svg, for its largest matrix."""
    m, k = max(((r["m"], r["k"]) for r in record["results"]), key=lambda shape: shape[0] * shape[1])
    lines: Lines = {}
    for result in record["results"]:
        if (result["m"], result["k"]) == (m, k):
            lines.setdefault(_short(result), []).append(result)
    figure = new_figure(13, 5.4)
    bandwidth_axes, roof_axes = figure.subplots(1, 2)
    bandwidth, machine = record["read_bandwidth_gb_per_s"], record["machine"]
    _bandwidth(bandwidth_axes, lines, bandwidth)
    _roofline(roof_axes, lines, bandwidth, {_short(roof): roof["gflops"] for roof in record["roofs"]})
    figure.suptitle(
        f"{m} outputs, {k} inputs: {machine['processor']}, {machine['threads']} threads, {isa_of(machine)}, "
        f"{bandwidth} GB/s, commit {str(record.get('commit'))[:7]}",
        fontsize=10,
    )
    save(figure, path)


def lines(record: dict[str, Any]) -> list[str]:
    """A table of the share of the bandwidth: a line per kernel and shape, a column per number of rows."""
    machine, (low, high) = record["machine"], record["read_bandwidth_range_gb_per_s"]
    threads, speed = many(machine["threads"], "thread"), f"{record['read_bandwidth_gb_per_s']} GB/s ({low} to {high})"
    sizes = sorted({result["n"] for result in record["results"]})
    table: dict[tuple[str, str], dict[int, str]] = {}
    for result in record["results"]:
        row = table.setdefault((result["kernel"], f"{result['m']} x {result['k']}"), {})
        row[result["n"]] = f"{result['fraction_of_bandwidth']:.2f} ({result['gflops']:.0f})"
    rows = [[*named, *(row.get(n, "") for n in sizes)] for named, row in table.items()]
    return [
        f"{machine['processor']}, {threads}, {isa_of(machine)}: memory is read at {speed}",
        "",
        "Share of the read bandwidth (GFLOP/s), by rows N of a pass:",
        "",
        *markdown(["kernel", "outputs x inputs", *(f"N = {n}" for n in sizes)], rows),
    ]


def _short(result: dict[str, Any]) -> str:
    return str(result["kernel"]).removeprefix("linear_")


def _bandwidth(axes: Axes, lines: Lines, bandwidth: float) -> None:
    axes.axhline(bandwidth, **_DASHED)
    axes.annotate("read bandwidth", (1, bandwidth), xytext=(0, 3), textcoords="offset points", color=FAINT)
    for at, (name, results) in enumerate(lines.items()):
        colour, mark = style(at)
        speeds = [r["fraction_of_bandwidth"] * bandwidth for r in results]
        axes.plot([r["n"] for r in results], speeds, color=colour, marker=mark, label=name)
    axes.set_xscale("log", base=2)
    ticks = sorted({r["n"] for results in lines.values() for r in results})
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.set(xlabel="rows N of a pass", ylabel="GB/s of weights", ylim=(0, None), title="Bandwidth by rows")
    axes.grid(alpha=0.25)


def _roofline(axes: Axes, lines: Lines, bandwidth: float, roofs: dict[str, float]) -> None:
    every = [result for results in lines.values() for result in results]
    low, high = min(map(_intensity, every)) / 1.5, max(map(_intensity, every)) * 1.5
    axes.plot([low, high], [low * bandwidth, high * bandwidth], **_DASHED)
    for at, (name, results) in enumerate(lines.items()):
        colour, mark = style(at)
        axes.plot([roofs[name] / bandwidth, high], [roofs[name]] * 2, color=colour, linewidth=1, alpha=0.5)
        reached = [result["gflops"] for result in results]
        axes.plot(list(map(_intensity, results)), reached, color=colour, marker=mark, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    reached = [result["gflops"] for result in every]
    axes.set(
        xlabel="operations for each byte of weights",
        ylabel="GFLOP/s",
        title="Roofline: thin lines are what a kernel computes in the cache",
        xlim=(low, high),
        ylim=(min(reached) / 1.5, max(*roofs.values(), *reached) * 1.5),
    )
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(alpha=0.25)


def _intensity(result: dict[str, Any]) -> float:
    return float(2 * result["m"] * result["k"] * result["n"] / result["bytes"])
