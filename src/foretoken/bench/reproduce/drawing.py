"""Pictures that papers' figures have in common, drawn from the rows of a table: one x, one value, and who it is of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretoken.bench.reproduce.report import number as text
from foretoken.common.pictures import new_figure, save, style

Rows = Sequence[dict[str, Any]]


def _kinds(rows: Rows, name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))


def heat_maps(path: Path, rows: Rows, title: str, panel: str, xy: tuple[str, str], value: str) -> None:
    """A map for each `panel`: our `value` by x and y, each number written into its field."""
    panels = _kinds(rows, panel)
    across, up = (sorted(_kinds(rows, name)) for name in xy)
    figure = new_figure(1.5 + 4.2 * len(panels), 4)
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        found = {tuple(row[each] for each in xy): row[value]["ours"] for row in rows if row[panel] == name}
        field = [[found.get((a, b)) or float("nan") for a in across] for b in up]
        image = axes.imshow(field, origin="lower", cmap="Blues", aspect="auto")
        middle = sum(image.get_clim()) / 2
        for at, line in enumerate(field):
            for beside, number in enumerate(line):
                if number == number:  # it was measured
                    ink = "white" if number > middle else "black"
                    axes.annotate(text(number), (beside, at), ha="center", va="center", color=ink, fontsize=9)
        axes.set_xticks(range(len(across)), across)
        axes.set_yticks(range(len(up)), up)
        axes.set(xlabel=xy[0], ylabel=xy[1], title=f"{value}, {name}")
    figure.suptitle(f"{title}, on {rows[0]['ours on']}", fontsize=10)
    save(figure, path)


def bars(path: Path, rows: Rows, title: str, by: str, x: str, value: str) -> None:
    """Our `value` by x, a colour for each `by`."""
    across, kinds = _kinds(rows, x), _kinds(rows, by)
    figure = new_figure(2 + 0.9 * len(across), 4)
    axes = figure.subplots()
    width = 0.8 / len(kinds)
    for at, kind in enumerate(kinds):
        found = {row[x]: row[value]["ours"] for row in rows if row[by] == kind}
        places = [place + (at - (len(kinds) - 1) / 2) * width for place in range(len(across))]
        axes.bar(places, [found.get(each) or 0 for each in across], width * 0.92, color=style(at + 1)[0], label=kind)
    axes.set_xticks(range(len(across)), [str(each) for each in across])
    axes.set(xlabel=x, ylabel=value)
    axes.legend(fontsize=8)
    figure.suptitle(f"{title}, on {rows[0]['ours on']}", fontsize=10)
    save(figure, path)
