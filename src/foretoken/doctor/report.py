"""What people read: calm on a terminal, plain text in a pipe; and the object that programs read."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from foretoken.doctor.facts import Facts, Fit
from foretoken.doctor.findings import GOOD, NOTE, PROBLEM, STATUSES, WARNING, Finding
from foretoken.doctor.findings.finding import gigabytes
from foretoken.doctor.fits import CONTEXT, DRAFT

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_WIDTH = 110  # columns in a pipe, and at most on a terminal
_MARKS = {GOOD: ("✓", "green"), NOTE: ("·", "cyan"), WARNING: ("!", "yellow"), PROBLEM: ("✗", "red")}
_TO_DO = (WARNING, PROBLEM)  # what the summary counts as things to improve


def worst(findings: Iterable[Finding]) -> str:
    """The gravest status among some."""
    return max((finding.status for finding in findings), key=STATUSES.index, default=GOOD)


def summary(findings: list[Finding]) -> str:
    """One line: what is to be done, by topic."""
    to_do = [finding.topic for finding in findings if finding.status in _TO_DO]
    notes = [finding.topic for finding in findings if finding.status == NOTE]
    said = f"{len(notes)} note{'s' * (len(notes) > 1)} ({', '.join(notes)})" if notes else ""
    if worst(findings) == PROBLEM:
        stops = [finding.topic for finding in findings if finding.status == PROBLEM]
        begins = f"Foretoken cannot run like this: see {', '.join(stops)}"
        to_do = [topic for topic in to_do if topic not in stops]
        begins += f"; then {_things(to_do)}" if to_do else ""
    elif to_do:
        begins = _things(to_do)
    else:
        begins = "Nothing to improve"
    return f"{begins}{f'; {said}' if said else ''}."


def as_json(facts: Facts, groups: dict[str, list[Finding]]) -> dict[str, Any]:
    """The object that `doctor --json` prints; docs/doctor.md describes its keys."""
    findings = [finding for group in groups.values() for finding in group]
    known = asdict(facts)
    return {
        "foretoken": known["versions"].pop("foretoken"),
        "status": worst(findings),
        "summary": summary(findings),
        "findings": [asdict(finding) for finding in findings],
        **known,
    }


def print_report(facts: Facts, groups: dict[str, list[Finding]]) -> None:
    """Print it on standard output."""
    from rich.console import Console

    terminal = sys.stdout is not None and sys.stdout.isatty()
    # in a pipe, into memory first: rows are filled up with spaces, which nobody wants there
    target = sys.stdout if terminal else io.StringIO()
    console = Console(file=target, highlight=False, markup=False, emoji=False)
    console.width = min(console.width, _WIDTH) if terminal else _WIDTH
    _print(console, facts, groups, marks=terminal and _can_write("".join(mark for mark, _ in _MARKS.values())))
    if isinstance(target, io.StringIO):
        print("\n".join(line.rstrip() for line in target.getvalue().splitlines()))


def _print(console: Console, facts: Facts, groups: dict[str, list[Finding]], *, marks: bool) -> None:
    findings = [finding for group in groups.values() for finding in group]
    console.print(f"Foretoken {facts.versions['foretoken'] or ''}".rstrip(), style="bold")
    console.print(summary(findings))
    for title, some in groups.items():
        console.print()
        console.print(title, style="bold")
        console.print(_lines(some, marks))
    if facts.fits:
        console.print()
        _print_fits(console, facts)


def _lines(findings: list[Finding], marks: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, width=3 if marks else 0)
    table.add_column(no_wrap=True, width=12)
    table.add_column(overflow="fold")
    for finding in findings:
        mark, colour = _MARKS[finding.status]
        said = "" if marks or finding.status == GOOD else f"{finding.status}: "
        topic = Text(finding.topic, style="dim" if marks else "")
        table.add_row(Text(f"  {mark}" if marks else "", style=colour), topic, _writable(said + finding.text))
        if finding.advice is not None:
            table.add_row("", "", Text(_writable(f"-> {finding.advice}"), style=colour if marks else ""))
    return table


def _print_fits(console: Console, facts: Facts) -> None:
    """A table: models down, formats across, or down as well where there is no width for that; how large, how fast at
    most, whether it fits."""
    from rich.padding import Padding

    available = facts.machine.memory_available
    console.print(f"What fits{'' if available is None else f' into {gigabytes(available)}'}", style="bold")
    console.print(_across(facts) if console.width >= _width(facts) else _down(facts))
    for line in _legend([fit for model in facts.fits for fit in model.formats]):
        console.print(Padding(line, (0, 0, 0, 2), style="dim"))


def _width(facts: Facts) -> int:
    """Columns that the wide table takes."""
    names = max(len(_writable(model.name)) for model in facts.fits) + 2
    columns = zip(*(model.formats for model in facts.fits), strict=True)
    return names + sum(2 + max(map(len, map(_cell, column))) for column in columns)


def _across(facts: Facts) -> Table:
    table = _table("  model", *(f"{fit.format:>{len(_cell(fit)) - 1}}" for fit in facts.fits[0].formats))
    for model in facts.fits:
        table.add_row(f"  {_writable(model.name)}", *map(_styled, model.formats))
    return table


def _down(facts: Facts) -> Table:
    table = _table("  model", "format", "")
    for model in facts.fits:
        for fit in model.formats:
            name = f"  {_writable(model.name)}" if fit is model.formats[0] else ""
            table.add_row(name, fit.format, _styled(fit))
    return table


def _table(*head: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in head:
        table.add_column(name, no_wrap=True)
    return table


def _styled(fit: Fit) -> Text:
    from rich.text import Text

    return Text(_cell(fit), style="dim" if fit.fits == "no" else "")


def _cell(fit: Fit) -> str:
    mark = {"no": "-", "without a draft copy": "*"}.get(fit.fits or "", " ")
    speed = "" if fit.tokens_per_second is None else f" {_rate(fit.tokens_per_second):>4}"
    return f"{gigabytes(fit.size):>7}{speed}{mark}"


def _rate(count: float) -> str:
    return f"{count:.0f}" if count >= 10 else f"{count:.1f}" if count >= 1 else f"{count:.2f}"


def _legend(fits: list[Fit]) -> list[str]:
    lines = []
    if any(fit.tokens_per_second is not None for fit in fits):
        lines.append(
            "Beside each size: the tokens a second that memory allows at most, plainly; drafting comes on top."
        )
    if any(fit.fits == "without a draft copy" for fit in fits):
        lines.append(f"* fits with {CONTEXT} tokens of keys and values, but not with an {DRAFT} copy that drafts.")
    if any(fit.fits == "no" for fit in fits):
        slow = ", and the disk is what bounds it" if any(f.fits == "no" and f.tokens_per_second for f in fits) else ""
        lines.append(f"- does not fit with {CONTEXT} tokens of keys and values{slow}.")
    return lines


def _things(topics: list[str]) -> str:
    return f"{len(topics)} thing{'s' * (len(topics) > 1)} to improve: {', '.join(topics)}"


def _writable(text: str) -> str:
    """What standard output cannot write, such as half a character in a folder's name, as an escape; and what a terminal
    would obey, such as what a checkpoint's file may hold."""
    encoding = (sys.stdout and sys.stdout.encoding) or "utf-8"
    text = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _can_write(text: str) -> bool:
    return _writable(text) == text
