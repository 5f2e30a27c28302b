"""Draws a generation: where the time went, what each level's drafts spared, all rounds, and some of them in detail."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from foretoken.common.pictures import FAINT, INK, new_figure, save
from foretoken.errors import InputError
from foretoken.results.completion import Completion
from foretoken.timeline.lanes import Round, lanes, rows_of
from foretoken.timeline.worth import Worth, worth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE, _BAND = "#d8dde3", "#f5f6f8"
_TARGET, _REST = "#33415c", "#c9cfd6"
_LEVELS = ("#3d7fc4", "#9059b8", "#16959b", "#a8673a", "#c2559b")
# what tells them apart without colour is their place, and that rejected ones are hollow
_ACCEPTED, _REJECTED, _BONUS, _HOLLOW = "#2f9e62", "#d9534f", "#e9b233", "#fbe4e3"

_WIDTH, _MARGIN, _LANES_LEFT = 13.0, 0.4, 1.25  # inches, as everything that is placed on the page
_INSIDE = _WIDTH - 2 * _MARGIN
_LANE = 0.52
_ROWS = 4  # of rounds in detail
_STRIPS = 260  # columns of the strip of all rounds, at most


def draw(path: str | Path, completion: Completion, model: str) -> None:
    """Draw a completion that was generated with `keep_rounds` into a file, .png or .svg. model: what it is called."""
    if completion.rounds is None:
        raise InputError("the completion has no rounds; generate it with keep_rounds=True")
    save(_Page(completion, model).figure(), path, dpi=150)


@dataclass
class _Page:
    completion: Completion
    model: str

    def figure(self) -> Figure:
        stats = self.completion.stats
        assert self.completion.rounds is not None
        self.names = ["target", *(level.name for level in stats.levels)]
        self.colours = [_TARGET, *itertools.islice(itertools.cycle(_LEVELS), len(stats.levels))]
        self.rounds = lanes(self.completion.rounds, self.names[1:])
        detailed, rows, widest = self._detail()
        row = _LANE * len(self.names)
        strip = 1.75 if len(self.rounds) > len(detailed) else 0.0
        self.height = 1.0 + 1.35 + (0.55 + 0.62 * len(stats.levels)) * bool(stats.levels) + strip
        self.height += (0.75 + (row + 0.5) * len(rows) + 0.1) if rows else 0.0
        self.sheet = new_figure(_WIDTH, self.height, layout=None)  # its canvas can say how wide a text is
        self.top = 0.0
        self._head()
        self._time()
        if stats.levels:
            self._worth()
        if strip:
            self._strip(len(detailed))
        if rows:
            self._rows(detailed, rows, widest, row)
        return self.sheet

    # -- the parts, from above --------------------------------------------------------------------------------------

    def _head(self) -> None:
        done, stats = self.completion, self.completion.stats
        drafting = f"drafted by {', '.join(self.names[1:])}" if stats.levels else "decoding plainly"
        self._text(_MARGIN, 0.48, _short(f"{Path(self.model).name}, {drafting}", 90), size=16, weight="bold")
        self._text(
            _MARGIN,
            0.78,
            f"{_many(len(done.tokens), 'token')}   ·   {stats.tokens_per_second:.0f} tokens/s   ·   "
            f"{_many(len(self.rounds), 'round')} of {stats.mean_acceptance_length:.2f} tokens on average   ·   "
            f"{_took(stats.decode_seconds)} of decoding, after {_took(stats.prefill_seconds)} for the prompt",
            size=10,
            color=FAINT,
        )
        self.top = 1.0

    def _time(self) -> None:
        stats = self.completion.stats
        self._heading("Where the time went")
        parts = [stats.check_seconds, *(level.seconds for level in stats.levels)]
        parts.append(max(0.0, stats.decode_seconds - sum(parts)))
        labels = ["target, checking", *(_short(name, 20) for name in self.names[1:]), "between them"]
        colours = [*self.colours, _REST]
        axes = self._axes(_MARGIN, _INSIDE, 0.32)
        axes.set_xlim(0, max(stats.decode_seconds, 1e-9))
        axes.set_ylim(0, 1)
        left, at = 0.0, _MARGIN
        for seconds, label, colour in zip(parts, labels, colours, strict=True):
            axes.barh(0.5, seconds, left=left, height=1, color=colour, edgecolor="white", linewidth=0.8)
            left += seconds
            self._square(at, self.top + 0.53, colour)
            at += 0.16
            at += self._text(at, self.top + 0.58, label, weight="bold") + 0.07
            at += self._text(at, self.top + 0.58, f"{_took(seconds)}, {_percent(seconds, stats.decode_seconds)}") + 0.3
        self.top += 0.75

    def _worth(self) -> None:
        assert self.completion.rounds is not None
        self._heading("What each level's drafts cost, and what they spared")
        ledger = worth(self.completion.rounds, self.names[1:])
        widest = max(max(w.cost, w.spared) for w in ledger) or 1e-9
        left, wide = _MARGIN + 3.0, _INSIDE - 3.0 - 4.9
        for i, (level, found) in enumerate(zip(self.completion.stats.levels, ledger, strict=True)):
            checker = _short(self.names[i], 16) if i else "the target"
            top = self.top
            self._text(_MARGIN, top + 0.2, _short(level.name, 30), size=11, weight="bold", color=self.colours[i + 1])
            rate = _percent(level.accepted_tokens, level.draft_tokens)
            said = f"{level.accepted_tokens} of {level.draft_tokens} drafted tokens accepted, {rate}"
            self._text(_MARGIN, top + 0.4, said if level.draft_tokens else "nothing drafted", color=FAINT)
            axes = self._axes(left, wide, 0.46)
            axes.set_xlim(0, widest)
            axes.set_ylim(0, 2)
            at = 0.0
            for seconds, colour in zip(found.drafting, self.colours[i + 1 :], strict=True):
                axes.barh(1.5, seconds, left=at, height=0.8, color=colour, clip_on=False)
                at += seconds
            hatched: dict[str, Any] = {"height": 0.8, "hatch": "////", "linewidth": 0.8, "clip_on": False}
            axes.barh(1.5, found.wider, left=at, color="#e4e7ee", edgecolor=self.colours[i], **hatched)
            axes.barh(0.5, found.spared, color="#e3f3ea", edgecolor=_ACCEPTED, **hatched)
            axes.axvline(0, color=INK, linewidth=1, clip_on=False)
            parts = [f"{_took(sum(found.drafting))} of drafting"]
            if found.wider:
                parts.append(f"{_took(found.wider)} that {checker} took longer")
            said = f"cost {' and '.join(parts)}"
            self._text(left + wide * found.cost / widest + 0.08, top + 0.165, said)
            self._spared(left + wide * found.spared / widest + 0.08, top + 0.395, found, checker)
            self.top = top + 0.62
        self.top += 0.12

    def _spared(self, x: float, y: float, found: Worth, checker: str) -> None:
        if not found.accepted:
            self._text(x, y, "spared nothing")
            return
        about = "about" if found.known else "at most"
        passes = _many(found.accepted, "pass", "passes")
        x += self._text(x, y, f"spared {passes} of {checker}, {about} {_took(found.spared)}")
        if not found.cost:  # or too little for the clock
            return
        times = found.spared / found.cost
        said = f"{times:.0f}" if times >= 9.95 else f"{times:.1f}"
        paid = _REJECTED if times < 0.95 else _ACCEPTED if times > 1.05 and found.known else INK
        self._text(x + 0.12, y, f"{'' if found.known else 'at most '}{said} × its cost", weight="bold", color=paid)

    def _strip(self, detailed: int) -> None:
        each = -(-len(self.rounds) // _STRIPS)
        groups = [self.rounds[i : i + each] for i in range(0, len(self.rounds), each)]
        mean = "" if each == 1 else f" (a column is the mean of {each} rounds)"
        self._heading(f"All {len(self.rounds)} rounds: tokens a round{mean}", cells=True)
        axes = self._axes(_MARGIN + 0.35, _INSIDE - 0.35, 0.9)
        lefts = [g[0].start * 1e3 for g in groups]
        wide = [(g[-1].end - g[0].start) * 1e3 for g in groups]
        accepted = [_mean([r.accepted for r in g]) for g in groups]
        bonus = [_mean([r.new_tokens - r.accepted for r in g]) for g in groups]
        rejected = [_mean([r.drafted - r.accepted for r in g]) for g in groups]
        bar: dict[str, Any] = {"align": "edge", "width": wide, "edgecolor": "white"}
        bar["linewidth"] = 0.4 if len(groups) < 150 else 0
        axes.bar(lefts, accepted, color=_ACCEPTED, **bar)
        axes.bar(lefts, bonus, bottom=accepted, color=_BONUS, **bar)
        axes.bar(lefts, [-n for n in rejected], color=_REJECTED, alpha=0.45, **bar)
        axes.axhline(0, color=INK, linewidth=0.8)
        end = self.rounds[-1].end * 1e3
        axes.set_xlim(0, end)
        low, high = -max(rejected), max(a + b for a, b in zip(accepted, bonus, strict=True))
        axes.set_ylim(low * 1.08, high * 1.3)
        shown = self.rounds[detailed - 1].end * 1e3
        axes.axvspan(0, shown, color="#e8ebef", zorder=0, linewidth=0)
        inside = shown > 0.15 * end
        said = "in detail below " if inside else " in detail below"
        axes.text(shown, high * 1.27, said, size=8, color=FAINT, va="top", ha="right" if inside else "left")
        step = max(1, round((high - low) / 4))
        axes.set_yticks([n for n in range(-step * 9, step * 10, step) if low * 1.08 <= n <= high * 1.3])
        axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):.0f}")
        self._scale(axes)
        self.top += 0.9 + 0.4

    def _rows(self, detailed: list[Round], rows: list[list[Round]], widest: float, height: float) -> None:
        title = f"Rounds {detailed[0].number} to {detailed[-1].number}: who works when, and what becomes of it"
        self._heading(title, cells=len(detailed) == len(self.rounds))
        deepest = max([4, *(p.drafted for r in detailed for p in r.passes)])
        for row in rows:
            self.top += 0.22
            inches = _WIDTH - _MARGIN - _LANES_LEFT
            axes = self._axes(_LANES_LEFT, inches, height)
            start, free = row[0].start * 1e3, 0.0
            axes.set_xlim(start, start + widest * 1e3)
            axes.set_ylim(len(self.names), 0)
            axes.set_yticks([])
            for lane, (name, colour) in enumerate(zip(self.names, self.colours, strict=True)):
                self._lane_name(name, colour, self.top + _LANE * (lane + 0.8))
            for r in row:
                if r.number % 2:
                    axes.axvspan(r.start * 1e3, r.end * 1e3, color=_BAND, zorder=0, linewidth=0)
                at = (r.start * 1e3 - start) / (widest * 1e3) * inches
                if at >= free:  # else the number before it is in the way
                    said = f"round {r.number}" if r is row[0] else f"{r.number}"
                    if r.end - row[0].start > widest * 1.001:
                        said += f" goes on to the right: it took {_took(r.seconds)}, for {_many(r.new_tokens, 'token')}"
                    free = at + self._text(_LANES_LEFT + at, self.top - 0.04, said, size=8, color=FAINT) + 0.05
                self._round(axes, r, deepest)
            self._scale(axes)
            self.top += height + 0.28

    def _round(self, axes: Axes, r: Round, deepest: int) -> None:
        unit = (axes.get_xlim()[1] - axes.get_xlim()[0]) / (_WIDTH - _MARGIN - _LANES_LEFT)  # ms an inch
        check, end = r.check * 1e3, r.end * 1e3
        self._bar(axes, 0, check, end - check, unit)
        if end - check > 0.3 * unit:
            axes.text(
                (check + end) / 2,
                0.81,
                f"+{r.new_tokens}",
                size=8,
                color="white",
                va="center",
                ha="center",
                clip_on=True,
            )
        kinds = ((_ACCEPTED, r.accepted), (_BONUS, r.new_tokens - r.accepted), (_REJECTED, r.drafted - r.accepted))
        side = min(0.1, (end - check) / unit / max(sum(count for _, count in kinds), 1))
        self._cells(axes, kinds, (check, 0.6), (side, 0), (0.1, 0.1), unit)
        high = min(0.072, 0.58 * _LANE / deepest)
        for i, done in enumerate(r.passes):
            lane, start = done.level + 1, done.start * 1e3
            then = next((other.start * 1e3 for other in r.passes[i + 1 :] if other.level == done.level), end)
            wide = min(0.075, (then - start) / unit)
            self._bar(axes, lane, start, done.seconds * 1e3, unit)
            judged = ((_ACCEPTED, done.accepted), (_REJECTED, done.drafted - done.accepted))
            self._cells(axes, judged, (start, lane + 0.6), (0, high), (wide, high), unit)

    # -- what they are made of --------------------------------------------------------------------------------------

    def _detail(self) -> tuple[list[Round], list[list[Round]], float]:
        """The first rounds, as many as can be told apart, in rows, and how many seconds a row has room for."""
        if not self.rounds:
            return [], [], 0.0
        passes = sum(len(r.passes) for r in self.rounds) / len(self.rounds)
        a_row = max(3, min(10, round(48 / (passes + 2))))
        few = len(self.rounds) <= a_row * (_ROWS + 1)  # rather one row more than a strip that says little more
        detailed = self.rounds if few else self.rounds[: a_row * _ROWS]
        # a round during which the machine did something else is cut off, or nothing could be seen of the others
        most = max(3, a_row / 2) * median(r.seconds for r in detailed)
        rows, widest = rows_of(detailed, -(-len(detailed) // a_row), most)
        return detailed, rows, widest

    def _bar(self, axes: Axes, lane: int, start: float, wide: float, unit: float) -> None:
        wide = max(wide - 0.007 * unit, 0.014 * unit)  # what took microseconds can be seen; neighbours keep apart
        axes.bar(start, 0.3, width=wide, bottom=lane + 0.66, align="edge", color=self.colours[lane], linewidth=0)

    def _cells(
        self,
        axes: Axes,
        kinds: Iterable[tuple[str, int]],
        start: tuple[float, float],
        step: tuple[float, float],
        size: tuple[float, float],
        unit: float,
    ) -> None:
        """A cell a token, from `start` (ms, lane) on, by steps right and up in inches; or, too small, a kind."""
        from matplotlib.patches import Rectangle

        small = max(step) < (0.05 if step[0] else 0.03)
        gap = min(0.02, max(step) / 3)
        x, y = start
        for colour, count in kinds:
            together = count if small else 1
            for _ in range(0, count, together or 1):
                wide = (step[0] * together or size[0]) - gap
                high = (step[1] * together or size[1]) - gap
                axes.add_patch(
                    Rectangle(
                        (x + gap / 2 * unit, y - (high + gap / 2) / _LANE),
                        max(wide, 0.006) * unit,
                        max(high, 0.006) / _LANE,
                        facecolor=_HOLLOW if colour == _REJECTED else colour,
                        edgecolor=colour,
                        linewidth=0.5,
                    )
                )
                x += step[0] * together * unit
                y -= step[1] * together / _LANE

    def _heading(self, text: str, cells: bool = False) -> None:
        self._text(_MARGIN, self.top + 0.3, text, size=11.5, weight="bold")
        at = _WIDTH - _MARGIN - 2.78
        legend = ((_ACCEPTED, "accepted"), (_REJECTED, "rejected"), (_BONUS, "bonus token"))
        for colour, name in legend if cells else ():
            self._square(at, self.top + 0.25, colour, hollow=colour == _REJECTED)
            at += 0.15 + self._text(at + 0.15, self.top + 0.3, name, size=9, color=FAINT) + 0.2
        self.top += 0.42

    def _lane_name(self, name: str, colour: str, y: float) -> None:
        self._text(_LANES_LEFT - 0.1, y + 0.04, _short(name, 12), size=8.5, color=colour, weight="bold", ha="right")

    def _axes(self, left: float, wide: float, high: float) -> Axes:
        box = (left / _WIDTH, 1 - (self.top + high) / self.height, wide / _WIDTH, high / self.height)
        axes = self.sheet.add_axes(box)
        axes.set_axis_off()
        return axes

    def _scale(self, axes: Axes) -> None:
        axes.set_axis_on()
        for side, spine in axes.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(_LINE)
        axes.tick_params(colors=FAINT, labelsize=8, length=3, color=_LINE)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} ms")

    def _text(self, x: float, y: float, text: str, **how: Any) -> float:
        """Text at a place in inches from the upper left; returns how wide it is."""
        how = {"color": INK, "size": 9, **how}
        drawn = self.sheet.text(x / _WIDTH, 1 - y / self.height, text, va="baseline", parse_math=False, **how)
        return float(drawn.get_window_extent().width) / self.sheet.dpi

    def _square(self, x: float, y: float, colour: str, hollow: bool = False) -> None:
        from matplotlib.patches import Rectangle

        size = 0.1
        self.sheet.add_artist(
            Rectangle(
                (x / _WIDTH, 1 - (y + size / 2) / self.height),
                size / _WIDTH,
                size / self.height,
                facecolor=_HOLLOW if hollow else colour,
                edgecolor=colour,
                linewidth=0.8,
                transform=self.sheet.transFigure,
            )
        )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


def _many(count: int, one: str, more: str | None = None) -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"


def _took(seconds: float) -> str:
    if seconds >= 0.9995:
        return f"{seconds:.2f} s"
    ms = seconds * 1e3
    return f"{ms:.0f} ms" if ms >= 99.5 else f"{ms:.1f} ms" if ms >= 0.1 else f"{ms * 1e3:.0f} µs"


def _percent(part: float, whole: float) -> str:
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if share >= 9.95 else f"{share:.1f} %"
