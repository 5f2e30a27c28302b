"""Draws the rounds: all of them in a strip, the first ones in detail, with a lane for the target and for each level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from foretoken.common.pictures import FAINT, INK
from foretoken.timeline.lanes import Round, rows_of
from foretoken.timeline.page import (
    ACCEPTED,
    BONUS,
    HOLLOW,
    INSIDE,
    MARGIN,
    REJECTED,
    WIDTH,
    Page,
    many,
    scale,
    short,
    took,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LANE = 0.52  # inches
_LEFT = 1.25
_WIDE = WIDTH - MARGIN - _LEFT
_BAND = "#f5f6f8"
_ROWS = 4  # of rounds in detail
_STRIPS = 260  # columns of the strip of all rounds, at most


@dataclass(frozen=True)
class Detail:
    """The rounds that are drawn in detail, the same rounds in rows, and the seconds that a row has room for."""

    rounds: list[Round]
    rows: list[list[Round]]
    seconds: float


def in_detail(rounds: list[Round]) -> Detail:
    """The first rounds, as many as can be distinguished."""
    if not rounds:
        return Detail([], [], 0.0)
    passes = sum(len(r.passes) for r in rounds) / len(rounds)
    a_row = max(3, min(10, round(48 / (passes + 2))))
    few = len(rounds) <= a_row * (_ROWS + 1)  # one more row is better than a strip that shows little more
    detailed = rounds if few else rounds[: a_row * _ROWS]
    # a round that something else on the machine slowed down is cut off, or the other rounds would be too small to see
    most = max(3, a_row / 2) * median(r.seconds for r in detailed)
    return Detail(detailed, *rows_of(detailed, -(-len(detailed) // a_row), most))


def columns(rounds: Sequence[Round]) -> list[Sequence[Round]]:
    """All rounds, in as many columns as can be distinguished."""
    each = -(-len(rounds) // _STRIPS)
    return [rounds[i : i + each] for i in range(0, len(rounds), each)]


def draw_strip(page: Page, rounds: Sequence[Round], detailed: int) -> None:
    """Draw all rounds side by side: accepted tokens and the bonus upwards, rejected tokens downwards."""
    groups = columns(rounds)
    each = len(groups[0])
    mean = "" if each == 1 else f" (a column is the mean of {each} rounds)"
    page.heading(f"All {len(rounds)} rounds: tokens a round{mean}", cells=True)
    axes = page.axes(MARGIN + 0.35, INSIDE - 0.35, 0.9)
    lefts = [g[0].start * 1e3 for g in groups]
    wide = [(g[-1].end - g[0].start) * 1e3 for g in groups]
    accepted = [_mean([r.accepted for r in g]) for g in groups]
    bonus = [_mean([r.new_tokens - r.accepted for r in g]) for g in groups]
    rejected = [_mean([r.drafted - r.accepted for r in g]) for g in groups]
    bar: dict[str, Any] = {"align": "edge", "width": wide, "edgecolor": "white"}
    bar["linewidth"] = 0.4 if len(groups) < 150 else 0
    axes.bar(lefts, accepted, color=ACCEPTED, **bar)
    axes.bar(lefts, bonus, bottom=accepted, color=BONUS, **bar)
    axes.bar(lefts, [-n for n in rejected], color=REJECTED, alpha=0.45, **bar)
    axes.axhline(0, color=INK, linewidth=0.8)
    end = rounds[-1].end * 1e3
    axes.set_xlim(0, end)
    low, high = -max(rejected), max(a + b for a, b in zip(accepted, bonus, strict=True))
    axes.set_ylim(low * 1.08, high * 1.3)
    shown = rounds[detailed - 1].end * 1e3
    axes.axvspan(0, shown, color="#e8ebef", zorder=0, linewidth=0)
    inside = shown > 0.15 * end
    said = "in detail below " if inside else " in detail below"
    axes.text(shown, high * 1.27, said, size=8, color=FAINT, va="top", ha="right" if inside else "left")
    step = max(1, round((high - low) / 4))
    axes.set_yticks([n for n in range(-step * 9, step * 10, step) if low * 1.08 <= n <= high * 1.3])
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):.0f}")
    scale(axes)
    page.top += 0.9 + 0.4


def draw_rows(page: Page, detail: Detail, *, are_all: bool) -> None:
    """Draw when each level works, and what becomes of its drafts. are_all: no strip above has a legend of colours."""
    first, last = detail.rounds[0].number, detail.rounds[-1].number
    page.heading(f"Rounds {first} to {last}: who works when, and what becomes of it", cells=are_all)
    deepest = max([4, *(p.drafted for r in detail.rounds for p in r.passes)])
    room, height = detail.seconds * 1e3, LANE * len(page.names)
    for row in detail.rows:
        page.top += 0.22
        axes = page.axes(_LEFT, _WIDE, height)
        start, free = row[0].start * 1e3, 0.0
        axes.set_xlim(start, start + room)
        axes.set_ylim(len(page.names), 0)
        axes.set_yticks([])
        for lane, (name, colour) in enumerate(zip(page.names, page.colours, strict=True)):
            y = page.top + LANE * (lane + 0.8) + 0.04
            page.text(_LEFT - 0.1, y, short(name, 12), size=8.5, color=colour, weight="bold", ha="right")
        lanes = _Lanes(axes, page.colours, deepest, (axes.get_xlim()[1] - axes.get_xlim()[0]) / _WIDE)
        for r in row:
            if r.number % 2:
                axes.axvspan(r.start * 1e3, r.end * 1e3, color=_BAND, zorder=0, linewidth=0)
            at = (r.start * 1e3 - start) / room * _WIDE
            if at >= free:  # else the number of an earlier round is in the way
                said = f"round {r.number}" if r is row[0] else f"{r.number}"
                if r.end - row[0].start > detail.seconds * 1.001:
                    said += f" goes on to the right: it took {took(r.seconds)}, for {many(r.new_tokens, 'token')}"
                free = at + page.text(_LEFT + at, page.top - 0.04, said, size=8, color=FAINT) + 0.05
            lanes.draw(r)
        scale(axes)
        page.top += height + 0.28


@dataclass(frozen=True)
class _Lanes:
    """The lanes of one row, the target's first. deepest: the most tokens that a pass drafted. unit: ms per inch."""

    axes: Axes
    colours: Sequence[str]
    deepest: int
    unit: float

    def draw(self, r: Round) -> None:
        check, end = r.check * 1e3, r.end * 1e3
        self._bar(0, check, end - check)
        if end - check > 0.3 * self.unit:
            gained: dict[str, Any] = {"va": "center", "ha": "center", "clip_on": True}
            self.axes.text((check + end) / 2, 0.81, f"+{r.new_tokens}", size=8, color="white", **gained)
        kinds = ((ACCEPTED, r.accepted), (BONUS, r.new_tokens - r.accepted), (REJECTED, r.drafted - r.accepted))
        side = min(0.1, (end - check) / self.unit / max(sum(count for _, count in kinds), 1))
        self._cells(kinds, (check, 0.6), (side, 0), (0.1, 0.1))
        high = min(0.072, 0.58 * LANE / self.deepest)
        for i, done in enumerate(r.passes):
            lane, start = done.level + 1, done.start * 1e3
            then = next((other.start * 1e3 for other in r.passes[i + 1 :] if other.level == done.level), end)
            wide = min(0.075, (then - start) / self.unit)
            self._bar(lane, start, done.seconds * 1e3)
            judged = ((ACCEPTED, done.accepted), (REJECTED, done.drafted - done.accepted))
            self._cells(judged, (start, lane + 0.6), (0, high), (wide, high))

    def _bar(self, lane: int, start: float, wide: float) -> None:
        wide = max(wide - 0.007 * self.unit, 0.014 * self.unit)  # even microseconds are visible; neighbours keep apart
        self.axes.bar(start, 0.3, width=wide, bottom=lane + 0.66, align="edge", color=self.colours[lane], linewidth=0)

    def _cells(
        self,
        kinds: Iterable[tuple[str, int]],
        start: tuple[float, float],
        step: tuple[float, float],
        size: tuple[float, float],
    ) -> None:
        """Draw one cell for each token, from `start` (ms, lane) on, in steps right and up in inches. If cells are too
        small, draw one for each kind."""
        from matplotlib.patches import Rectangle

        small = max(step) < (0.05 if step[0] else 0.03)
        gap = min(0.02, max(step) / 3)
        x, y = start
        for colour, count in kinds:
            together = count if small else 1
            for _ in range(0, count, together or 1):
                wide = (step[0] * together or size[0]) - gap
                high = (step[1] * together or size[1]) - gap
                self.axes.add_patch(
                    Rectangle(
                        (x + gap / 2 * self.unit, y - (high + gap / 2) / LANE),
                        max(wide, 0.006) * self.unit,
                        max(high, 0.006) / LANE,
                        facecolor=HOLLOW if colour == REJECTED else colour,
                        edgecolor=colour,
                        linewidth=0.5,
                    )
                )
                x += step[0] * together * self.unit
                y -= step[1] * together / LANE


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
