"""`foretoken tune`: which options of a draft are fastest for a model on this machine."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from foretoken.cli import options
from foretoken.cli.common import say, saying
from foretoken.common.files import expect_new, write_json
from foretoken.common.pictures import expect_drawable
from foretoken.settings.load import LoadSettings

tune = typer.Typer(help="Find the options of a draft that are fastest for a model here.", no_args_is_help=True)

_FORMATS, _SLOTS, _WINDOWS = ("mxfp4", "int8"), ("lookup", "recycle"), (4, 1, 2, 8)  # as in bench/tuning/asked.py
_WIDTH = 120  # of tables where no terminal ends


@options.with_settings(without=("draft", "num_speculative_tokens", "rule", "cache"), generating=False)
def fractal(
    loading: LoadSettings,
    model: Annotated[str, typer.Argument(help="A folder, a hub id (owner/name) or an embedded model.")] = "stdlib-7m",
    format: Annotated[
        list[str] | None,
        typer.Option(help="A low-bit format of the copy; may come again.", show_default=", ".join(_FORMATS)),
    ] = None,
    slots: Annotated[
        list[str] | None,
        typer.Option(
            help="What the first guess is: fixed, lookup or recycle; may come again.", show_default=", ".join(_SLOTS)
        ),
    ] = None,
    window: Annotated[
        list[int] | None,
        typer.Option(
            help="Tokens of the first guess; may come again. The search begins with the first one.",
            show_default=", ".join(map(str, _WINDOWS)),
        ),
    ] = None,
    prompts: Annotated[
        str, typer.Option(help="A suite's name, or a file of prompts (.txt, .jsonl, Spec-Bench's question.jsonl).")
    ] = "heldout-20",
    num_prompts: Annotated[
        int, typer.Option(help="How many of them: half of them choose, the other half is measured on.", min=1)
    ] = 8,
    max_new_tokens: Annotated[int, typer.Option(help="Of each prompt.", min=2)] = 48,
    minutes: Annotated[
        float, typer.Option(help="About how long it may take, after loading. What there was no time for is said.")
    ] = 5.0,
    repeats: Annotated[int, typer.Option(help="How often the best drafts are measured.", min=1)] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the record to a file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into a file (.png, .svg).")] = None,
) -> None:
    """Find the fractal draft that is fastest for a model here, and whether a chain of its low-bit copy, or lookup, is
    faster.

    Drafts run on prompts, which says how much of them is accepted, and passes are measured, which says what that costs:
    layers are added one after the other, each where that predicts the most. The best are then measured beside plain
    decoding. Greedily; takes all cores for itself: close what else is running. Exit code 1 if a token differs from
    plain decoding.
    """
    if json_file is not None:
        expect_new(json_file)
    if plot is not None:
        expect_drawable(plot)

    from foretoken.bench.tuning.asked import Asked
    from foretoken.bench.tuning.fractal import tune as search
    from foretoken.bench.tuning.report import verdict

    asked = Asked(
        model,
        tuple(format or _FORMATS),
        tuple(slots or _SLOTS),
        tuple(window or _WINDOWS),
        prompts,
        num_prompts,
        max_new_tokens,
        minutes,
        repeats,
        loading,
    )
    with saying():
        record = search(asked, progress=_Lines(minutes))
    if json_file is not None:
        write_json(json_file, record)
        say(f"record: {json_file}")
    if plot is not None:
        from foretoken.bench.tuning.drawing import draw

        draw(plot, record)
        say(f"picture: {plot}")
    _show(record)
    for line in verdict(record):
        print(line)
    if record["differing_tokens"]:
        raise typer.Exit(1)


tune.command("fractal")(fractal)


@tune.callback()
def _group() -> None:
    # a group that has one command would else be that command
    pass


class _Lines:
    """What comes next, a line each on standard error, with the drafts that were tried and the time that was used."""

    def __init__(self, minutes: float) -> None:
        self._began, self._minutes = perf_counter(), minutes

    def __call__(self, what: str, done: int, total: int) -> None:
        tried = "" if what.startswith("measuring") else f"{done} tried, "
        used = (perf_counter() - self._began) / 60
        say(f"{what} ({tried}{used:.1f} of {self._minutes:g} minutes)")


def _show(record: dict[str, Any]) -> None:
    """Three tables on standard output: the search, other drafts, what was measured."""
    from foretoken.bench.tuning import report

    print(report.where(record))
    _table(
        "fractal layers, one after the other",
        ["n", "varied", "tried", "best", "accepted a check", "speed-up, predicted"],
        report.steps(record),
    )
    _table("other drafts", ["draft", "accepted a check", "speed-up, predicted"], report.beside(record))
    _table(
        "measured beside plain decoding",
        ["draft", "tokens/s", "speed-up", "predicted", "accepted a check", "identical"],
        report.measured(record),
    )


def _table(title: str, head: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in head:
        table.add_column(name, justify="left" if name in ("varied", "best", "draft") else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    terminal = sys.stdout is not None and sys.stdout.isatty()
    # in a pipe, into memory first: rows are filled up with spaces, which nobody wants there
    target = sys.stdout if terminal else io.StringIO()
    console = Console(file=target, markup=False, highlight=False, emoji=False)
    if not terminal:
        console.width = _WIDTH
    console.print(f"\n{title}", style="bold")
    console.print(table)
    if isinstance(target, io.StringIO):
        print("\n".join(line.rstrip() for line in target.getvalue().splitlines()))
