"""Draws what the pace chose over time: for each round, how many tokens each level of the draft was allowed. A tree ends
itself, so for trees it is the number of tokens that were sent."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from foretoken.common.pictures import INK
from foretoken.timeline.lanes import Round
from foretoken.timeline.page import INSIDE, MARGIN, Page, scale, short
from foretoken.timeline.rounds import columns

HEIGHT = 1.72  # inches that the drawing takes
_HIGH = 0.7


def varies(rounds: Sequence[Round]) -> bool:
    """Whether a pace has chosen anything: fixed lengths need no drawing. Lengths that were cut because the text ends
    were not chosen."""
    whole, left = set(), 0
    for each in reversed(rounds):
        left += each.new_tokens
        if max(each.allowed, default=0) + 1 < left:
            whole.add(each.allowed)
    return len(whole) > 1


def draw_chosen(page: Page, rounds: Sequence[Round]) -> None:
    """Draw one line for each level. Where it lies at 0, the pace has left the level out."""
    groups = columns(rounds)
    page.heading("What the pace chose: the longest chain that each level may draft, or how many tokens its tree had")
    at = MARGIN
    for name, colour in zip(page.names[1:], page.colours[1:], strict=True):
        page.square(at, page.top + 0.04, colour)
        at += 0.16
        at += page.text(at, page.top + 0.09, short(name, 30)) + 0.3
    page.top += 0.2
    axes = page.axes(MARGIN + 0.35, INSIDE - 0.35, _HIGH)
    edges = [group[0].start * 1e3 for group in groups] + [rounds[-1].end * 1e3]
    highest = 1.0
    for level, colour in enumerate(page.colours[1:]):
        allowed = [fmean(each.allowed[level] if each.allowed else 0 for each in group) for group in groups]
        highest = max(highest, *allowed)
        axes.stairs(allowed, edges, color=colour, linewidth=1.4, baseline=None)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(-0.06 * highest, 1.12 * highest)
    axes.set_yticks(sorted({0, round(highest / 2), round(highest)}))
    scale(axes)
    page.top += _HIGH + 0.4
