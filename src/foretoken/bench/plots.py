"""Draws a record of `bench decode`: speed beside plain decoding, acceptance by position, distance to the ceiling."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.bench.pages import how_sure, where
from foretoken.common.pictures import FAINT, INK, new_figure, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Places = list[tuple[int, int, dict[str, Any]]]  # runs, each with the indices of its draft and temperature
_ASIDE = (-0.12, 0.0, 0.12)  # offsets from a position, by draft
_SHADES = (1.0, 0.55, 0.3)  # of bars, by temperature
_DASHES = ("-", "--", ":")  # of lines, by temperature
_DASHED: dict[str, Any] = {"color": FAINT, "linewidth": 1, "linestyle": "--"}  # reference lines


def draw(path: str | Path, record: dict[str, Any]) -> None:
    """Draw a record into a file, .png or .svg."""
    runs = record["runs"]
    drafts, temperatures = (list(dict.fromkeys(run[what] for run in runs)) for what in ("draft", "temperature"))
    places = [(drafts.index(run["draft"]), temperatures.index(run["temperature"]), run) for run in runs]
    figure = new_figure(15, 5)
    speeds, positions, ceiling = figure.subplots(1, 3)
    _speeds(speeds, places, drafts, len(temperatures))
    _positions(positions, places)
    _ceiling(ceiling, places, record["read_bandwidth_gb_per_s"])
    figure.suptitle(f"{record['model']}: {where(record)}", fontsize=10)
    save(figure, path)


def _speeds(axes: Axes, places: Places, drafts: list[str], temperatures: int) -> None:
    height = 0.8 / temperatures
    for draft, at, run in places:
        place = draft + (at - (temperatures - 1) / 2) * height
        low, high = run["speedup_interval"]
        error = [[max(run["speedup"] - low, 0)], [max(high - run["speedup"], 0)]]
        shade = _SHADES[min(at, len(_SHADES) - 1)]
        axes.barh(place, run["speedup"], height * 0.9, color=style(draft)[0], alpha=shade)
        axes.errorbar(run["speedup"], place, xerr=error, color=INK, linewidth=1, capsize=2)
        said = f" {run['tokens_per_second']:.1f}/s, {_temperature(run)}"
        axes.annotate(said, (high, place), fontsize=7, va="center", color=FAINT)
    axes.axvline(1, **_DASHED)
    axes.set_yticks(range(len(drafts)), drafts)
    axes.invert_yaxis()
    most = max(run["speedup_interval"][1] for *_, run in places)
    sure = how_sure(min(run["prompts"] for *_, run in places))
    axes.set(xlabel=f"times plain decoding (median of prompts; {sure})", title="Speed", xlim=(0, 1.35 * most))


def _temperature(run: dict[str, Any]) -> str:
    return f"T = {run['temperature']:g}"


def _positions(axes: Axes, places: Places) -> None:
    from matplotlib.ticker import MaxNLocator

    drafted = [each for each in places if each[2]["drafts"] and each[2]["accepted_per_position"]]
    for number, (draft, at, run) in enumerate(drafted):
        shares = [count / run["drafts"] for count in run["accepted_per_position"]]
        aside = _ASIDE[number % len(_ASIDE)]  # lines may coincide: mxfp4 alone and with lookup
        where = [position + aside for position in range(1, len(shares) + 1)]
        (line,) = axes.plot(where, shares, _DASHES[at % len(_DASHES)], label=f"{run['draft']}, {_temperature(run)}")
        line.set(color=style(draft)[0], marker=style(draft)[1], markersize=4)
    axes.set(xlabel="position in the draft", ylabel="drafts accepted so far", title="Acceptance", ylim=(0, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    if drafted:
        axes.legend(fontsize=7)


def _ceiling(axes: Axes, places: Places, bandwidth: float | None) -> None:
    """Tokens per second by bytes per token; the line is what memory allows."""
    sizes = [run["bytes_per_token"] / 1e9 for *_, run in places]
    for (draft, at, run), gigabytes in zip(places, sizes, strict=True):
        colour, mark = style(draft)
        place = gigabytes, run["tokens_per_second"]
        axes.scatter(*place, color=colour, marker=mark, alpha=0.4 if at else 1.0)
        if at == 0:  # the others are fainter, in the same colours
            axes.annotate(run["draft"], place, xytext=(4, 3), textcoords="offset points", fontsize=7)
    if bandwidth is not None and min(sizes) > 0:
        ends = [min(sizes) / 1.3, max(sizes) * 1.3]
        axes.plot(ends, [bandwidth / size for size in ends], **_DASHED)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    named = f"Dashed: what memory allows; named: {_temperature(places[0][2])}"
    axes.set(xlabel="GB of weights read a token", ylabel="tokens a second", title=named)
    axes.grid(alpha=0.25, which="both")
