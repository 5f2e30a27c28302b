"""`foretoken bench decode`: how fast each draft is, beside plain decoding."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretoken.cli import options
from foretoken.cli.common import say, saying
from foretoken.cli.time_left import TimeLeft
from foretoken.common.files import expect_new, expect_place, write_json
from foretoken.common.pictures import expect_drawable
from foretoken.settings.load import LoadSettings

if TYPE_CHECKING:
    from foretoken.bench.decode import Progress

_DRAFTS = ("none", "lookup", "mxfp4", "mxfp4,lookup")


@options.with_settings(without=("draft", "num_speculative_tokens", "rule"), generating=False)
def decode(
    loading: LoadSettings,
    model: options.Model = "stdlib-7m",
    draft: Annotated[
        list[str] | None,
        typer.Option(
            help="A draft, as `generate` takes it; can be given several times. Plain decoding is always among them.",
            show_default=", ".join(_DRAFTS),
        ),
    ] = None,
    prompts: options.Prompts = "heldout-20",
    num_prompts: Annotated[
        int | None, typer.Option(help="How many of them.", show_default="all of them", min=1)
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Of each prompt.", show_default="the suite's own", min=2)
    ] = None,
    temperature: Annotated[
        list[float] | None, typer.Option(help="0: greedily; can be given several times.", show_default="0")
    ] = None,
    repeats: Annotated[int, typer.Option(help="How often each prompt is generated with each draft.", min=1)] = 3,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after an end token.")] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write the record to a file. An interrupted measurement goes on where it ended."),
    ] = None,
    plot: options.Plot = None,
    answers: Annotated[
        Path | None,
        typer.Option(help="A folder for answers by draft, one JSON object a line, as Spec-Bench's scripts read them."),
    ] = None,
) -> None:
    """Generate prompts plainly and with each draft, in turn, and compare: speed, acceptance, whether a token differs.

    Takes all cores for itself: close what else is running. Exit code 1 if a token differs from plain decoding.
    """
    if json_file is not None:
        expect_new(json_file)
    if plot is not None:
        expect_drawable(plot)
    if answers is not None:  # a folder, which is made where it is not there
        expect_place(answers / "answers.jsonl" if os.path.lexists(answers) else answers, what="answers")

    from foretoken.bench import decode as bench
    from foretoken.bench.report import lines
    from foretoken.bench.samples import journal_of

    temperatures = temperature or [0.0]
    asked = bench.Asked(
        model, draft or _DRAFTS, prompts, num_prompts, max_new_tokens, repeats, loading, temperatures, ignore_eos
    )
    if json_file is not None:
        kept = journal_of(json_file)
        there = "goes on with" if kept.exists() else "is kept in"
        say(f"what is measured {there} {kept}: if it is interrupted, the same command goes on from there")
    with saying(), _bar(is_kept=json_file is not None) as progress:
        record, samples = bench.measure(asked, record=json_file, answers=answers is not None, progress=progress)
    if answers is not None:
        answers.mkdir(exist_ok=True)
        for place in bench.write_answers(answers, samples):
            say(f"answers: {place}")
    if plot is not None:
        from foretoken.bench.plots import draw

        draw(plot, record)
        say(f"picture: {plot}")
    if json_file is not None:
        write_json(json_file, record)
        kept.resolve().unlink(missing_ok=True)  # a link may have led to it
        kept.unlink(missing_ok=True)
        say(f"record: {json_file}")
    for line in lines(record):
        print(line)
    if not all(run["identical"] for run in record["runs"]):
        raise typer.Exit(1)


@contextmanager
def _bar(*, is_kept: bool) -> Iterator[Progress]:
    """How far it is, and how long it will still take; without a terminal, a line at every tenth."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if sys.stderr is None or not sys.stderr.isatty():
        yield _Lines(is_kept=is_kept)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


class _Lines:
    """A line on standard error at every tenth."""

    def __init__(self, *, is_kept: bool) -> None:
        self._left, self._is_kept = TimeLeft(), is_kept
        self._told = -1

    def __call__(self, what: str, done: int, total: int) -> None:
        if total <= 1:
            say(what)
            return
        if not self._is_kept and self._told < 0 and not done:
            say("without --json nothing is kept of it if it is interrupted")
        left = self._left("generations", done, total)  # from the first one on: warming up is none
        # soon after the beginning, so that who waits knows how long; then at every tenth
        if (left and self._told < 0) or 10 * done // total > max(self._told, 0):
            self._told = 10 * done // total
            say(f"{done} of {total} generations{left}")
