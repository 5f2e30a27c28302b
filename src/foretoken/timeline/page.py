"""The page of a picture: text, squares and axes, placed in inches from the upper left, and the colours."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foretoken.common.pictures import FAINT, INK, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, MARGIN = 13.0, 0.4  # inches, as all places on the page
INSIDE = WIDTH - 2 * MARGIN
LEVELS = ("#3d7fc4", "#9059b8", "#16959b", "#a8673a", "#c2559b")
# without colours, tokens are told apart by their places, and rejected tokens are hollow
ACCEPTED, REJECTED, BONUS, HOLLOW = "#2f9e62", "#d9534f", "#e9b233", "#fbe4e3"
_TARGET, _LINE = "#33415c", "#d8dde3"


class Page:
    """A sheet that is filled from the top; `top` is how far it is filled. names: the target's and those of the levels
    below it. Each name has a colour."""

    def __init__(self, height: float, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.colours = (_TARGET, *itertools.islice(itertools.cycle(LEVELS), len(names) - 1))
        self.sheet = new_figure(WIDTH, height, layout=None)  # its canvas can measure a text
        self.top = 0.0
        self._height = height

    def text(self, x: float, y: float, text: str, **how: Any) -> float:
        """Write text at a place. Returns its width in inches."""
        how = {"color": INK, "size": 9, **how}
        drawn = self.sheet.text(x / WIDTH, 1 - y / self._height, text, va="baseline", parse_math=False, **how)
        return float(drawn.get_window_extent().width) / self.sheet.dpi

    def square(self, x: float, y: float, colour: str, hollow: bool = False) -> None:
        """A small square, as legends have them."""
        from matplotlib.patches import Rectangle

        size = 0.1
        self.sheet.add_artist(
            Rectangle(
                (x / WIDTH, 1 - (y + size / 2) / self._height),
                size / WIDTH,
                size / self._height,
                facecolor=HOLLOW if hollow else colour,
                edgecolor=colour,
                linewidth=0.8,
                transform=self.sheet.transFigure,
            )
        )

    def heading(self, text: str, cells: bool = False) -> None:
        """Write the heading of the next part. cells: whether a legend of the tokens' colours is drawn beside it."""
        self.text(MARGIN, self.top + 0.3, text, size=11.5, weight="bold")
        at = WIDTH - MARGIN - 2.78
        legend = ((ACCEPTED, "accepted"), (REJECTED, "rejected"), (BONUS, "bonus token"))
        for colour, name in legend if cells else ():
            self.square(at, self.top + 0.25, colour, hollow=colour == REJECTED)
            at += 0.15 + self.text(at + 0.15, self.top + 0.3, name, size=9, color=FAINT) + 0.2
        self.top += 0.42

    def axes(self, left: float, wide: float, high: float) -> Axes:
        """Axes at `top`, without frame and ticks."""
        box = (left / WIDTH, 1 - (self.top + high) / self._height, wide / WIDTH, high / self._height)
        axes = self.sheet.add_axes(box)
        axes.set_axis_off()
        return axes


def scale(axes: Axes) -> None:
    """Show a scale of milliseconds below axes."""
    axes.set_axis_on()
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_LINE)
    axes.tick_params(colors=FAINT, labelsize=8, length=3, color=_LINE)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} ms")


def short(text: str, most: int) -> str:
    """A text, or as much of it as `most` characters hold."""
    return text if len(text) <= most else text[: most - 1] + "…"


def many(count: int, one: str, more: str | None = None) -> str:
    """A number with its noun, in the singular or the plural."""
    return f"{count} {one if count == 1 else more or one + 's'}"


def took(seconds: float) -> str:
    """A time in a readable unit."""
    if seconds >= 0.9995:
        return f"{seconds:.2f} s"
    ms = seconds * 1e3
    return f"{ms:.0f} ms" if ms >= 99.5 else f"{ms:.1f} ms" if ms >= 0.1 else f"{ms * 1e3:.0f} µs"


def percent(part: float, whole: float) -> str:
    """A share in percent; 0 if the whole is 0."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if share >= 9.95 else f"{share:.1f} %"
