"""`foretoken rehearse`: a checkpoint that costs what a large model costs and has the output of a small one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretoken.cli.common import say
from foretoken.cli.stoppable import stoppable
from foretoken.common.progress import size
from foretoken.common.source import DEFAULT_MODEL, EMBEDDED, resolve
from foretoken.errors import InputError
from foretoken.rehearsal.shapes import SHAPES, shape_of

if TYPE_CHECKING:
    from foretoken.rehearsal.drafter import PaddedDrafter
    from foretoken.rehearsal.write import RehearsalPlan


def rehearse(
    out: Annotated[Path, typer.Argument(help="The rehearsal's folder, a new one.", show_default=False)],
    shape: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(SHAPES)}; or numbers: hidden=2048,layers=16,heads=32,kv-heads=8,intermediate=8192,"
            "vocab=4096[,head-dim=64][,tied=yes][,type=qwen2].",
            show_default=False,
        ),
    ],
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="The small model: a folder, a hub id (owner/name) or an embedded model."),
    ] = DEFAULT_MODEL,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            help="The size of the vocabulary. To use the rehearsal as a draft for another model, give "
            "that model's vocabulary size. To compare with other engines, give the small model's.",
            show_default="the shape's",
        ),
    ] = None,
    num_layers: Annotated[int | None, typer.Option(help="The number of layers.", show_default="the shape's")] = None,
    placement: Annotated[
        str, typer.Option(help="Which layers do the small model's work. spread: evenly spaced ones. first: the first.")
    ] = "spread",
    drafter: Annotated[
        str | None,
        typer.Option(
            help="A drafter that `foretoken train` made for the small model, of any kind: a folder, or moa. It is "
            "written beside the rehearsal, as OUT-moa or OUT-block, as large as a drafter for a model of this shape.",
            show_default="none",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the random weights. They do not change the output.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing rehearsal.")] = False,
    revision: Annotated[
        str | None,
        typer.Option(help="Branch, tag or commit of a hub model.", show_default="the hub's main branch"),
    ] = None,
) -> None:
    """Write a checkpoint that has the size of a large model and the output of a small one. Before you download the
    large model, the checkpoint shows what passes of that model cost on this machine, and how fast drafting would be
    if the large model accepted as many draft tokens as the small one does.

    Running the checkpoint takes as much time and memory as running the large model. Its text is the small model's, and
    so is the share of draft tokens that is accepted. docs/rehearsals.md says what a rehearsal can show.
    """
    chosen = shape_of(shape, vocab_size=vocab_size, num_layers=num_layers)

    from foretoken.copies import place
    from foretoken.copies.checkpoint import FILES
    from foretoken.rehearsal import write

    place.tidy(out)
    place.expect_place(out, replace=force, ours=FILES, kind=write.REHEARSAL)  # before a download
    folder = resolve(model, revision, accept=lambda folder: write.expect_small(folder, chosen, model))
    local = model not in EMBEDDED and Path(model).expanduser().is_dir()
    name = folder.resolve().name if local else model
    with stoppable():
        made = write.plan(folder, out, write.Asked(chosen, name, placement, seed), replace=force)
        beside = None if drafter is None else _padded(drafter, made)
        _describe(made)
        seconds = write.write(made)
        if beside is not None:
            beside.write()
    say(f"written in {seconds:.1f} s, {made.bytes / seconds / 1e9:.2g} GB/s. What next:")
    place_of_it = shlex.quote(str(out))
    also = "" if beside is None else f" --draft {shlex.quote(str(beside.out))}"
    for line in (
        f'foretoken generate --model {place_of_it} --stats "def add("  # the output of {name}, at this size\'s speed',
        f"foretoken quantize {place_of_it} --format mxfp4  # its copy, which drafts for it",
        f"foretoken bench decode --model {place_of_it} --draft mxfp4,lookup{also}",
    ):
        say(f"  {line}")


def _padded(drafter: str, made: RehearsalPlan) -> PaddedDrafter:
    from foretoken.rehearsal.drafter import padded
    from foretoken.trained.files import BESIDE, expect_trained, place_beside, read_trained_config

    folder = resolve(drafter, accept=expect_trained)
    its, _ = read_trained_config(folder)
    out = place_beside(made.out, its.command if its.command in BESIDE else BESIDE[0])
    if out.exists() and not made.replace:
        raise InputError(f"{out} is there already; --force replaces it")
    return padded(folder, made, out)


def _describe(made: RehearsalPlan) -> None:
    fit, about = made.fit, made.about
    say(
        f"{about.source_name}, {_count(made.small_parameters)} parameters, in the shape of {about.shape}: "
        f"{_count(made.parameters)} parameters, {size(made.bytes)} to {made.out}, where {size(made.free)} are free"
    )
    small, shape = fit.small, fit.shape
    say(
        f"its {small.num_layers} layers are {_listed(fit.layers)} of {shape.num_layers}, its {small.hidden_size} "
        f"channels the first of {shape.hidden_size}, its {small.vocab_size} tokens the first of {shape.vocab_size}; "
        f"positions go to {made.config.context_length}, as in {about.source_name}"
    )
    if shape.tied and not fit.tied:
        say(f"{about.source_name} has an output layer of its own, and so has the rehearsal; a pass reads as much")


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"


def _listed(layers: tuple[int, ...]) -> str:
    """Numbers of layers: a few of them, or the first and the last."""
    if len(layers) <= 8:
        return ", ".join(map(str, layers))
    return f"{layers[0]}, {layers[1]}, ... {layers[-1]}"
