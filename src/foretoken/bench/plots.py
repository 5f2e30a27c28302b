"""Draws a record of `bench decode`: speed beside plain decoding, acceptance by position, distance to the ceiling."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.bench.pages import how_sure
from foretoken.common.pictures import FAINT, INK, new_figure, save, style
from foretoken.common.provenance import isa_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Styles = dict[str, tuple[str, str]]  # colour and mark of each draft
_ASIDE = (-0.12, 0.0, 0.12)  # of a position, by draft
_SHADES = (1.0, 0.55, 0.3)  # of bars, by temperature


def draw(path: str | Path, record: dict[str, Any]) -> None:
    """Draw a record into a file, .png or .svg."""
    drafts = list(dict.fromkeys(run["draft"] for run in record["runs"]))
    styles = {draft: style(at) for at, draft in enumerate(drafts)}
    figure = new_figure(15, 5)
    speeds, positions, ceiling = figure.subplots(1, 3)
    _speeds(speeds, record["runs"], drafts, styles)
    _positions(positions, record["runs"], styles)
    _ceiling(ceiling, record["runs"], record["read_bandwidth_gb_per_s"], styles)
    machine = record["machine"]
    figure.suptitle(
        f"{record['model']}: {machine.get('processor')}, {machine.get('threads')} threads, "
        f"{isa_of(machine) or 'PyTorch'}, commit {str(record['commit'])[:12]}",
        fontsize=10,
    )
    save(figure, path)


def _speeds(axes: Axes, runs: list[dict[str, Any]], drafts: list[str], styles: Styles) -> None:
    temperatures = list(dict.fromkeys(run["temperature"] for run in runs))
    height = 0.8 / len(temperatures)
    for run in runs:
        at = temperatures.index(run["temperature"])
        place = drafts.index(run["draft"]) + (at - (len(temperatures) - 1) / 2) * height
        low, high = run["speedup_interval"]
        error = [[max(run["speedup"] - low, 0)], [max(high - run["speedup"], 0)]]
        shade = _SHADES[min(at, len(_SHADES) - 1)]
        axes.barh(place, run["speedup"], height * 0.9, color=styles[run["draft"]][0], alpha=shade)
        axes.errorbar(run["speedup"], place, xerr=error, color=INK, linewidth=1, capsize=2)
        said = f" {run['tokens_per_second']:.1f}/s, {_temperature(run)}"
        axes.annotate(said, (high, place), fontsize=7, va="center", color=FAINT)
    axes.axvline(1, color=FAINT, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(drafts)), drafts)
    axes.invert_yaxis()
    most = max(run["speedup_interval"][1] for run in runs)
    sure = how_sure(min(run["prompts"] for run in runs))
    axes.set(xlabel=f"times plain decoding (median of prompts; {sure})", title="Speed", xlim=(0, 1.35 * most))


def _temperature(run: dict[str, Any]) -> str:
    return f"T = {run['temperature']:g}"


def _positions(axes: Axes, runs: list[dict[str, Any]], styles: Styles) -> None:
    dashes = ("-", "--", ":")
    temperatures = list(dict.fromkeys(run["temperature"] for run in runs))
    from matplotlib.ticker import MaxNLocator

    drafted = [run for run in runs if run["drafts"] and run["accepted_per_position"]]
    for at, run in enumerate(drafted):
        shares = [count / run["drafts"] for count in run["accepted_per_position"]]
        aside = _ASIDE[at % len(_ASIDE)]  # lines may lie on each other: mxfp4 alone and with lookup
        axes.plot(
            [position + aside for position in range(1, len(shares) + 1)],
            shares,
            color=styles[run["draft"]][0],
            marker=styles[run["draft"]][1],
            markersize=4,
            linestyle=dashes[temperatures.index(run["temperature"]) % len(dashes)],
            label=f"{run['draft']}, {_temperature(run)}",
        )
    axes.set(xlabel="position in the draft", ylabel="drafts accepted so far", title="Acceptance", ylim=(0, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)


def _ceiling(
    axes: Axes,
    runs: list[dict[str, Any]],
    bandwidth: float | None,
    styles: Styles,
) -> None:
    """Tokens a second by the bytes that a token costs; the line is what memory allows."""
    sizes = [run["bytes_per_token"] / 1e9 for run in runs]
    first = runs[0]["temperature"]
    for run, gigabytes in zip(runs, sizes, strict=True):
        axes.scatter(
            gigabytes,
            run["tokens_per_second"],
            color=styles[run["draft"]][0],
            marker=styles[run["draft"]][1],
            alpha=1.0 if run["temperature"] == first else 0.4,
        )
        if run["temperature"] == first:  # the others are fainter, in the same colours
            place = gigabytes, run["tokens_per_second"]
            axes.annotate(run["draft"], place, xytext=(4, 3), textcoords="offset points", fontsize=7)
    if bandwidth is not None and min(sizes) > 0:
        ends = [min(sizes) / 1.3, max(sizes) * 1.3]
        axes.plot(ends, [bandwidth / size for size in ends], color=FAINT, linewidth=1, linestyle="--")
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    axes.set(
        xlabel="GB of weights read a token",
        ylabel="tokens a second",
        title=f"Dashed: what memory allows; named: T = {first:g}",
    )
    axes.grid(alpha=0.25, which="both")
