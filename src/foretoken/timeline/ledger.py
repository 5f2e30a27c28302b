"""Draws what each level's drafts cost, and what they spared: two bars for each level, and both in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foretoken.common.pictures import FAINT, INK
from foretoken.results.stats import LevelStats
from foretoken.timeline.page import ACCEPTED, INSIDE, MARGIN, REJECTED, Page, many, percent, short, took
from foretoken.timeline.worth import Worth

_LEFT, _WIDE = MARGIN + 3.0, INSIDE - 3.0 - 4.9  # of the bars


def draw_ledger(page: Page, levels: Sequence[LevelStats], ledger: Sequence[Worth]) -> None:
    """Draw one line for each level, the highest level first."""
    page.heading("What each level's drafts cost, and what they spared")
    widest = max(max(w.cost, w.spared) for w in ledger) or 1e-9
    for i, (level, found) in enumerate(zip(levels, ledger, strict=True)):
        checker = _checker(found, short(page.names[i], 16))
        top = page.top
        page.text(MARGIN, top + 0.2, short(level.name, 30), size=11, weight="bold", color=page.colours[i + 1])
        rate = percent(level.accepted_tokens, level.draft_tokens)
        said = f"{level.accepted_tokens} of {level.draft_tokens} drafted tokens accepted, {rate}"
        page.text(MARGIN, top + 0.4, said if level.draft_tokens else "nothing drafted", color=FAINT)
        _bars(page, i, found, widest)
        parts = [f"{took(sum(found.drafting))} of drafting"]
        if found.wider:
            parts.append(f"{took(found.wider)} that {checker} took longer")
        said = f"cost {' and '.join(parts)}"
        page.text(_LEFT + _WIDE * found.cost / widest + 0.08, top + 0.165, said)
        _spared(page, _LEFT + _WIDE * found.spared / widest + 0.08, top + 0.395, found, checker)
        page.top = top + 0.62
    page.top += 0.12


def _checker(found: Worth, above: str) -> str:
    by_target, by_level = found.checks
    if by_level and by_target:
        return f"{above} and the target"
    return above if by_level else "the target"


def _bars(page: Page, level: int, found: Worth, widest: float) -> None:
    """Draw the cost above and the time spared below. Estimated parts, which were not measured, are hatched."""
    axes = page.axes(_LEFT, _WIDE, 0.46)
    axes.set_xlim(0, widest)
    axes.set_ylim(0, 2)
    at = 0.0
    for seconds, colour in zip(found.drafting, page.colours[level + 1 :], strict=True):
        axes.barh(1.5, seconds, left=at, height=0.8, color=colour, clip_on=False)
        at += seconds
    hatched: dict[str, Any] = {"height": 0.8, "hatch": "////", "linewidth": 0.8, "clip_on": False}
    axes.barh(1.5, found.wider, left=at, color="#e4e7ee", edgecolor=page.colours[level], **hatched)
    axes.barh(0.5, found.spared, color="#e3f3ea", edgecolor=ACCEPTED, **hatched)
    axes.axvline(0, color=INK, linewidth=1, clip_on=False)


def _spared(page: Page, x: float, y: float, found: Worth, checker: str) -> None:
    accepted = sum(found.accepted)
    if not accepted:
        page.text(x, y, "spared nothing")
        return
    about = "about" if found.known else "at most"
    passes = many(accepted, "pass", "passes")
    x += page.text(x, y, f"spared {passes} of {checker}, {about} {took(found.spared)}")
    if not found.cost:  # none, or too little for the clock
        return
    times = found.spared / found.cost
    said = f"{times:.0f}" if times >= 9.95 else f"{times:.1f}"
    paid = REJECTED if times < 0.95 else ACCEPTED if times > 1.05 and found.known else INK
    page.text(x + 0.12, y, f"{'' if found.known else 'at most '}{said} × its cost", weight="bold", color=paid)
