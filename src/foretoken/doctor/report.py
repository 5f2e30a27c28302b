"""The doctor's report: styled on a terminal, plain text in a pipe, and a JSON object for programs."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from foretoken.common.progress import many
from foretoken.doctor.facts import Facts, Fit
from foretoken.doctor.findings import GOOD, NOTE, PROBLEM, STATUSES, WARNING, Finding
from foretoken.doctor.findings.finding import gigabytes
from foretoken.doctor.fits import CONTEXT, DRAFT
from foretoken.errors import one_line

_WIDTH = 110  # columns in a pipe, and at most on a terminal
_MARKS = {GOOD: ("✓", "green"), NOTE: ("·", "cyan"), WARNING: ("!", "yellow"), PROBLEM: ("✗", "red")}


def worst(findings: Iterable[Finding]) -> str:
    """The gravest status among the findings."""
    return max((finding.status for finding in findings), key=STATUSES.index, default=GOOD)


def summary(findings: list[Finding]) -> str:
    """One line that names the topics to act on."""
    topics = {status: [finding.topic for finding in findings if finding.status == status] for status in STATUSES}
    stops, things, notes = topics[PROBLEM], topics[WARNING], topics[NOTE]
    said = [f"Foretoken cannot run like this: see {', '.join(stops)}"] if stops else []
    if things:
        said.append(f"{'then ' if stops else ''}{many(len(things), 'thing')} to improve: {', '.join(things)}")
    said = said or ["Nothing to improve"]
    if notes:
        said.append(f"{many(len(notes), 'note')} ({', '.join(notes)})")
    return f"{'; '.join(said)}."


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
    """Print the report on standard output."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    # in a pipe, the report goes into memory first: the spaces that fill up rows are removed there
    target = sys.stdout if terminal else io.StringIO()
    console = Console(file=target, highlight=False, markup=False, emoji=False)
    console.width = min(console.width, _WIDTH) if terminal else _WIDTH
    every = "".join(mark for mark, _ in _MARKS.values())
    _print(console, facts, groups, marks=terminal and _writable(every) == every)
    if isinstance(target, io.StringIO):
        print("\n".join(line.rstrip() for line in target.getvalue().splitlines()))


def _print(console: Console, facts: Facts, groups: dict[str, list[Finding]], *, marks: bool) -> None:
    console.print(f"Foretoken {facts.versions['foretoken'] or ''}".rstrip(), style="bold")
    console.print(summary([finding for group in groups.values() for finding in group]))
    for title, some in groups.items():
        console.print(f"\n{title}", style="bold")
        console.print(_lines(some, marks))
    if facts.fits:
        _print_fits(console, facts)


def _lines(findings: list[Finding], marks: bool) -> Table:
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
    """Print a row per model and a column per format; where the width is too small, a row per model and format. A cell
    has the size, the highest speed and whether the model fits."""
    available, models = facts.machine.memory_available, facts.fits
    speeds = any(fit.tokens_per_second is not None for fit in models[0].formats)
    heads = [f"{fit.format:>7}{' tok/s' if speeds else ''}" for fit in models[0].formats]
    across = _table("  model", *heads)
    down = _table("  model", "format", "")
    for model in models:
        name = f"  {_writable(model.name)}"
        across.add_row(name, *map(_cell, model.formats))
        for number, fit in enumerate(model.formats):
            down.add_row(name if number == 0 else "", fit.format, _cell(fit))
    console.print(f"\nWhat fits{'' if available is None else f' into {gigabytes(available)}'}", style="bold")
    wide = console.measure(across, options=console.options.update(width=1000)).maximum
    console.print(across if wide <= console.width else down)
    for line in _legend([fit for model in models for fit in model.formats]):
        console.print(Padding(line, (0, 0, 0, 2), style="dim"))


def _table(*heads: str) -> Table:
    columns = (Column(head, no_wrap=True) for head in heads)
    return Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def _cell(fit: Fit) -> Text:
    mark, speed = {"no": "-", "without a draft copy": "*"}.get(fit.fits or "", " "), ""
    if (rate := fit.tokens_per_second) is not None:
        digits = 0 if rate >= 10 else 1 if rate >= 1 else 2
        speed = f" {f'{rate:.{digits}f}':>4}"
    return Text(f"{gigabytes(fit.size):>7}{speed}{mark}", style="dim" if fit.fits == "no" else "")


def _legend(fits: list[Fit]) -> Iterable[str]:
    if any(fit.tokens_per_second is not None for fit in fits):
        yield "tok/s: the most tokens a second of plain decoding at this memory speed. Drafting can be faster."
    if any(fit.fits == "without a draft copy" for fit in fits):
        yield f"* fits into memory with the keys and values of {CONTEXT} tokens, but with no room for an {DRAFT} copy."
    if any(fit.fits == "no" for fit in fits):
        slow = ", so the disk limits the speed" if any(f.fits == "no" and f.tokens_per_second for f in fits) else ""
        yield f"- does not fit into memory with the keys and values of {CONTEXT} tokens{slow}."


def _writable(text: str) -> str:
    """Escape what standard output cannot write, such as half a character in a folder's name, and what a terminal would
    obey, such as control characters in a checkpoint's file."""
    encoding = (sys.stdout and sys.stdout.encoding) or "utf-8"
    return one_line(text).encode(encoding, "backslashreplace").decode(encoding)
