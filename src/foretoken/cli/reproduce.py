"""`foretoken reproduce`: a paper's tables and figures, measured here, beside the paper's own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretoken.cli import options
from foretoken.cli.common import say, saying
from foretoken.cli.stoppable import stoppable
from foretoken.cli.time_left import Lines
from foretoken.settings.load import LoadSettings

_WITHOUT = ("draft", "num_speculative_tokens", "rule", "revision", "cache")


@options.with_settings(without=_WITHOUT, generating=False)
def reproduce(
    loading: LoadSettings,
    paper: Annotated[
        str | None, typer.Argument(help="The paper. Without it, the command lists the papers.", show_default=False)
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="What is measured. embedded: the embedded model, which takes seconds, or minutes where drafters are "
            "trained first. rehearsal: a checkpoint of a large model's size, made from the embedded one: minutes. "
            "geometry: such checkpoints with as many layers as the paper's models have: an hour. paper: the paper's "
            "own checkpoints and data sets: hours to days."
        ),
    ] = "rehearsal",
    only: Annotated[
        list[str] | None,
        typer.Option(help="A table or figure, such as table1; can be given several times.", show_default="all of them"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="At the scales other than paper: a model to take in place of the embedded one; a folder or a hub id.",
            show_default="stdlib-7m",
        ),
    ] = None,
    models: Annotated[
        list[Path] | None,
        typer.Option(
            help="With `--scale paper`: a folder that holds the paper's checkpoints, in subfolders OWNER/NAME or NAME; "
            "can be given several times. What is not there is left out.",
            show_default="from the hub",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            "--prompts",
            help="With `--scale paper`: NAME=FOLDER_OR_FILE, a data set of the paper that you have; can be "
            "given several times. At the other scales: a suite to measure on.",
            show_default="from the hub; heldout-20",
        ),
    ] = None,
    layers: Annotated[
        list[int] | None,
        typer.Option(
            help="At the scales rehearsal and geometry: measure only rehearsals with this number of layers; can be "
            "given several times.",
            show_default="all of the scale",
        ),
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option(help="How many prompts of each data set.", show_default="the scale's", min=1)
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens", "-n", help="The most new tokens for each prompt.", show_default="the scale's", min=2
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for record, report and pictures.")] = Path(),
    work: Annotated[
        Path | None,
        typer.Option(
            help="The folder for rehearsals, which are used again.", show_default="~/.cache/foretoken/rehearsals"
        ),
    ] = None,
) -> None:
    """Measure a paper's tables and figures here, and write them down beside the paper's own numbers: a record, a report
    and pictures.

    Every text is compared with plain decoding, token for token; exit code 1 if one differs. Results are saved as they
    are measured: run the same command again to go on after an interruption. It takes all cores: close other programs.
    """
    if paper is None:
        from foretoken.bench.reproduce.papers import PAPERS
        from foretoken.bench.reproduce.papers import paper as named

        for name in PAPERS:
            print(f"{name:12}{named(name).cited}\n{'':12}{named(name).summary}")
        print("\nforetoken reproduce PAPER --scale embedded|rehearsal|geometry|paper")
        return
    from foretoken.bench.reproduce.asked import Asked
    from foretoken.bench.reproduce.report import identity, report
    from foretoken.bench.reproduce.running import reproduce

    asked = Asked(
        paper,
        scale,
        only or (),
        model,
        models or (),
        data or (),
        layers or (),
        num_prompts,
        max_new_tokens,
        out,
        work,
        loading,
    )
    with stoppable(), saying():  # a rehearsal that was begun is taken away
        done = reproduce(asked, Lines())
    print("\n".join(report(done.record, {})))
    for what, place in (("record", done.place), ("report", done.page), *(("picture", p) for p in done.pictures)):
        say(f"{what}: {place}")
    if done.record["differing_tokens"]:
        say(identity(done.record))
        raise typer.Exit(1)
