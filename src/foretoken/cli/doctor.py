"""`foretoken doctor`: what runs on this machine, how fast it can be, and how to mend what slows it."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer


def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Look at this model too: a folder, a hub id or an embedded one.",
            show_default="none; models of usual sizes are shown",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the speeds of memory and disk.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what runs on this machine, how fast it can be, and how to mend what slows it.

    Takes some seconds, and for a moment up to 2 GB of memory and 0.25 GB of disk; with --quick, a second or two. Exit
    code 1 if something keeps Foretoken from running, 2 if the command itself cannot be carried out, else 0.
    """
    from foretoken.doctor.findings import PROBLEM, judge
    from foretoken.doctor.gather import gather
    from foretoken.doctor.report import as_json as object_of
    from foretoken.doctor.report import print_report, worst

    try:
        facts = gather(model=model, quick=quick, saying=_say)
    finally:
        _say("")
    groups = judge(facts)
    if as_json:
        print(json.dumps(object_of(facts, groups), indent=1))
    else:
        print_report(facts, groups)
    if worst(finding for group in groups.values() for finding in group) == PROBLEM:
        raise typer.Exit(1)


def _say(what: str) -> None:
    """On a terminal, what is being done, in a line that the next one replaces."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"\r\x1b[K{f'{what} ...' if what else ''}", end="", file=sys.stderr, flush=True)
