"""`foretoken tune`: which options of a draft are fastest for a model on this machine."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from foretoken.bench.tuning.asked import Asked
from foretoken.cli import options
from foretoken.cli.common import say, saying
from foretoken.common.files import expect_new, write_json
from foretoken.common.pictures import expect_drawable
from foretoken.settings.load import LoadSettings

tune = typer.Typer(help="Find the fastest options of a draft for a model on this machine.", no_args_is_help=True)


@options.with_settings(without=("draft", "num_speculative_tokens", "rule", "cache"), generating=False)
def fractal(
    loading: LoadSettings,
    model: Annotated[str, typer.Argument(help="A folder, a hub id (owner/name) or an embedded model.")] = "stdlib-7m",
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="A low-bit format of the copy; can be given several times.", show_default=", ".join(Asked.formats)
        ),
    ] = None,
    slots: Annotated[
        list[str] | None,
        typer.Option(
            help="The first guess, which a fractal draft improves. fixed: one token, repeated. lookup: what lookup "
            "finds in the text. recycle: those tokens of the last draft that lie "
            "beyond the end of the text. Can be given several times.",
            show_default=", ".join(Asked.slots),
        ),
    ] = None,
    window: Annotated[
        list[int] | None,
        typer.Option(
            help="With how many guessed tokens a draft starts; can be given several times. The search begins with "
            "the first number.",
            show_default=", ".join(map(str, Asked.windows)),
        ),
    ] = None,
    prompts: options.Prompts = Asked.prompts,
    num_prompts: Annotated[
        int,
        typer.Option(help="How many prompts. Half are used to choose the draft, the other half to measure it.", min=1),
    ] = Asked.num_prompts,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="The most new tokens for each prompt.", min=2)
    ] = Asked.max_new_tokens,
    minutes: Annotated[
        float,
        typer.Option(help="About how long it may take, after loading. The output lists what there was no time for."),
    ] = Asked.minutes,
    repeats: Annotated[int, typer.Option(help="How often the best drafts are measured.", min=1)] = Asked.repeats,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the record to a file.")] = None,
    plot: options.Plot = None,
) -> None:
    """Find the fastest fractal draft for a model on this machine, and compare it with two simpler drafts: the model's
    low-bit copy, and lookup.

    It completes prompts with drafts to learn how many tokens are accepted, and measures passes to learn their cost.
    From both it predicts speeds. In a fractal draft, the model's pass pauses before certain layers, the fractal
    layers, and a low-bit copy corrects the guessed tokens there. The command chooses these layers one at a time: each
    time it adds the layer with the best predicted speed. Then it measures the
    best drafts beside plain decoding. All decoding is greedy. It takes all cores: close other programs. Exit code 1 if
    a token differs from plain decoding.
    """
    if json_file is not None:
        expect_new(json_file)
    if plot is not None:
        expect_drawable(plot)

    from foretoken.bench.tuning.fractal import tune as search
    from foretoken.bench.tuning.report import draw, report

    formats, windows = format or Asked.formats, window or Asked.windows
    asked = Asked(
        model, formats, slots or Asked.slots, windows, prompts, num_prompts, max_new_tokens, minutes, repeats, loading
    )
    began = perf_counter()

    def progress(what: str, done: int, total: int) -> None:
        """What comes next, a line each, with the drafts that were tried and the time that was used."""
        tried = "" if what.startswith("measuring") else f"{done} tried, "
        say(f"{what} ({tried}{(perf_counter() - began) / 60:.1f} of {minutes:g} minutes)")

    with saying():
        record = search(asked, progress)
    if json_file is not None:
        write_json(json_file, record)
        say(f"record: {json_file}")
    if plot is not None:
        draw(plot, record)
        say(f"picture: {plot}")
    print("\n".join(report(record)))
    if record["differing_tokens"]:
        raise typer.Exit(1)


tune.command("fractal")(fractal)


@tune.callback()
def _group() -> None:
    # a group that has one command would else be that command
    pass
