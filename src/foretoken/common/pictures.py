"""Pictures as files: whether one can be drawn, before minutes of work, and saving it; what lines in them look like."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from foretoken.common.files import expect_place, write_bytes
from foretoken.errors import InputError, SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg")
COLOURS = ("#33415c", "#3d7fc4", "#2f9e62", "#e9b233", "#d9534f", "#9059b8", "#16959b", "#a8673a", "#c2559b")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
INK, FAINT = "#1f2733", "#6c7683"


def style(at: int) -> tuple[str, str]:
    """The colour and the mark of the line at a place."""
    return COLOURS[at % len(COLOURS)], MARKS[at % len(MARKS)]


def expect_drawable(path: str | Path) -> None:
    """Refuse, before anything is generated, a picture that cannot be drawn or that has no place."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise SettingError(f"{path} is no name for a picture; expected one that ends in {' or '.join(ENDINGS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("pictures need matplotlib, which is not installed; run `pip install matplotlib`")
    expect_place(path, what="picture", is_one=_begins_a_picture)


def _begins_a_picture(start: bytes) -> bool:
    svg = start.startswith((b"<?xml", b"<svg")) and b"<svg" in start
    return svg or start.startswith(b"\x89PNG\r\n\x1a\n")


def new_figure(width: float, height: float, *, layout: Literal["constrained"] | None = "constrained") -> Figure:
    """A white figure of that many inches, which needs no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: str | Path, *, dpi: int = 130) -> None:
    """Write a figure into a file, .png or .svg, whole or not at all; the same numbers make the same file."""
    from matplotlib import rc_context

    data = io.BytesIO()
    kind = Path(path).suffix.lower().removeprefix(".")
    with rc_context({"svg.hashsalt": "foretoken"}):
        figure.savefig(data, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
    write_bytes(path, data.getvalue(), what="picture")
