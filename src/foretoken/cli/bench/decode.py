"""`foretoken bench decode`: how fast each draft is, beside plain decoding."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from foretoken.cli import options
from foretoken.cli.common import say, saying
from foretoken.cli.progress import bar
from foretoken.common.files import expect_new, expect_place, write_json
from foretoken.common.pictures import expect_drawable
from foretoken.errors import InputError
from foretoken.settings.load import LoadSettings

_DRAFTS = ("none", "lookup", "mxfp4,lookup", "mxfp4:k=2,lookup")


@options.with_settings(without=("draft", "num_speculative_tokens", "rule"), generating=False)
def decode(
    loading: LoadSettings,
    model: options.Model = "stdlib-7m",
    draft: Annotated[
        list[str] | None,
        typer.Option(
            help="A draft, as `generate` takes it; can be given several times. Plain decoding is always among them.",
            show_default="; ".join(_DRAFTS),
        ),
    ] = None,
    prompts: options.Prompts = "auto",
    num_prompts: Annotated[
        int | None, typer.Option(help="How many of the prompts are used.", show_default="all of them", min=1)
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens", "-n", help="The most new tokens for each prompt.", show_default="the suite's own", min=2
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None, typer.Option(help="0: greedily; can be given several times.", show_default="0")
    ] = None,
    repeats: Annotated[int, typer.Option(help="How often each prompt is completed with each draft.", min=1)] = 3,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Continue after an end token.")] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            help="Write the record to this file when it is complete. Until then the samples are in FILE.part, and the "
            "same command continues an interrupted measurement.",
        ),
    ] = None,
    plot: options.Plot = None,
    answers: Annotated[
        Path | None,
        typer.Option(help="Write the texts into this folder: a file for each draft, for Spec-Bench's scripts."),
    ] = None,
) -> None:
    """Complete each prompt without a draft and with each draft, in turn, and compare them.

    The table shows the speed of each draft, how much of it was accepted, and whether any token differs. The command
    takes all cores: close other programs.
    Exit code 1 if a token differs from plain decoding.
    """
    if json_file is not None:
        expect_new(json_file)
    if plot is not None:
        expect_drawable(plot)
    if answers is not None:  # a folder, which is made where it is not there
        expect_place(answers / "answers.jsonl" if os.path.lexists(answers) else answers, what="answers")
        if answers.is_dir() and any(answers.iterdir()):
            raise InputError(f"{answers} holds files already; name another folder for the answers, or empty it")

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
    with saying(), bar(is_kept=json_file is not None) as progress:
        record, samples = bench.measure(asked, record=json_file, answers=answers is not None, progress=progress)
    if answers is not None:
        answers.mkdir(parents=True, exist_ok=True)
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
