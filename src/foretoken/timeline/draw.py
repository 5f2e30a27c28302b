"""Draws a generation: where the time went, what each level's drafts spared, all rounds, what the pace chose for them,
and some rounds in detail."""

from __future__ import annotations

from pathlib import Path

from foretoken.common.pictures import FAINT, save
from foretoken.errors import InputError
from foretoken.results.completion import Completion
from foretoken.results.stats import Stats
from foretoken.timeline.chosen import HEIGHT, draw_chosen, varies
from foretoken.timeline.lanes import lanes
from foretoken.timeline.ledger import draw_ledger
from foretoken.timeline.page import INSIDE, MARGIN, Page, many, percent, short, took
from foretoken.timeline.rounds import LANE, draw_rows, draw_strip, in_detail
from foretoken.timeline.worth import worth

_REST = "#c9cfd6"


def draw(path: str | Path, completion: Completion, model: str) -> None:
    """Draw a completion that was generated with `keep_rounds` into a file, .png or .svg. model: its name or folder."""
    if completion.rounds is None:
        raise InputError("the completion has no rounds; generate it with keep_rounds=True")
    levels = completion.stats.levels
    names = ["target", *(level.name for level in levels)]
    rounds = lanes(completion.rounds, names[1:])
    detail = in_detail(rounds)
    strip = 1.75 if len(rounds) > len(detail.rounds) else 0.0
    chosen = varies(rounds)
    height = 1.0 + 1.35 + (0.55 + 0.62 * len(levels)) * bool(levels) + strip + HEIGHT * chosen
    height += (0.75 + (LANE * len(names) + 0.5) * len(detail.rows) + 0.1) if detail.rows else 0.0
    page = Page(height, names)
    _draw_head(page, completion, model, len(rounds))
    _draw_time(page, completion.stats)
    if levels:
        draw_ledger(page, levels, worth(completion.rounds, names[1:]))
    if strip:
        draw_strip(page, rounds, len(detail.rounds))
    if chosen:
        draw_chosen(page, rounds)
    if detail.rows:
        draw_rows(page, detail, are_all=not strip)
    save(page.sheet, path, dpi=150)


def _draw_head(page: Page, done: Completion, model: str, rounds: int) -> None:
    stats = done.stats
    drafting = f"drafted by {', '.join(page.names[1:])}" if stats.levels else "decoding plainly"
    page.text(MARGIN, 0.48, short(f"{Path(model).name}, {drafting}", 90), size=16, weight="bold")
    page.text(
        MARGIN,
        0.78,
        f"{many(len(done.tokens), 'token')}   ·   {stats.tokens_per_second:.0f} tokens/s   ·   "
        f"{many(rounds, 'round')} of {stats.mean_acceptance_length:.2f} tokens on average   ·   "
        f"{took(stats.decode_seconds)} of decoding, after {took(stats.prefill_seconds)} for the prompt",
        size=10,
        color=FAINT,
    )
    page.top = 1.0


def _draw_time(page: Page, stats: Stats) -> None:
    """One bar: the target's checks, each level's work, and the time between them."""
    page.heading("Where the time went")
    parts = [max(0.0, stats.check_seconds - stats.seconds_at_once), *(level.seconds for level in stats.levels)]
    parts.append(max(0.0, stats.decode_seconds - sum(parts)))
    labels = [
        "target, checking" + " alone" * (stats.seconds_at_once > 0),
        *(short(name, 20) for name in page.names[1:]),
        "between them",
    ]
    axes = page.axes(MARGIN, INSIDE, 0.32)
    axes.set_xlim(0, max(stats.decode_seconds, 1e-9))
    axes.set_ylim(0, 1)
    left, at = 0.0, MARGIN
    for seconds, label, colour in zip(parts, labels, [*page.colours, _REST], strict=True):
        axes.barh(0.5, seconds, left=left, height=1, color=colour, edgecolor="white", linewidth=0.8)
        left += seconds
        page.square(at, page.top + 0.53, colour)
        at += 0.16
        at += page.text(at, page.top + 0.58, label, weight="bold") + 0.07
        at += page.text(at, page.top + 0.58, f"{took(seconds)}, {percent(seconds, stats.decode_seconds)}") + 0.3
    page.top += 0.75
