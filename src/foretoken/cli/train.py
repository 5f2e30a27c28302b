"""`foretoken train`: a small network that drafts for one model."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretoken.cli import options
from foretoken.cli.common import load, say
from foretoken.cli.stoppable import telling_how_to_go_on
from foretoken.common.files import existing, expect_writable
from foretoken.common.pictures import expect_drawable
from foretoken.common.progress import many, size
from foretoken.common.source import EMBEDDED
from foretoken.errors import InputError, SettingError
from foretoken.settings.load import LoadSettings, expect_threads

if TYPE_CHECKING:
    from foretoken.training.drafter import Progress, Recipe
    from foretoken.training.kinds import Kind

train = typer.Typer(
    help="Train a small network that drafts for one model: moa, or block, which is made of it; the other kinds are "
    "there to compare with.",
    no_args_is_help=True,
)
_PRESETS = ("best", "paper")

Out = Annotated[
    Path | None,
    typer.Argument(
        help="The drafter's folder. --draft takes it.", show_default="TARGET-moa, where `foretoken recommend` looks"
    ),
]
OutOfStack = Annotated[Path, typer.Argument(help="The drafter's folder. --draft takes it.")]
Target = Annotated[
    str, typer.Option("--target", help="The model to draft for: a folder, a hub id or an embedded model.")
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        help="What to train on: files of text, or folders of such files; can be given several times. Text like "
        "what the model will write is best. Every twentieth file is held out, to measure the drafter. stdlib: "
        "the source files of Python's standard library on which the embedded models were trained.",
        show_default="stdlib",
    ),
]
Tokens = Annotated[
    int | None,
    typer.Option(
        help="How many tokens to train on. They are read in windows, which are drawn at random."
        " If you ask for more than the text has, it is read again.",
        min=1,
        show_default="as many as the text has",
    ),
]
Preset = Annotated[str, typer.Option(help="best: our losses and optimiser. paper: those of Zimmer et al. 2025.")]
Seed = Annotated[int, typer.Option(help="Seeds the first weights, and which windows of the text are drawn.")]
Device = Annotated[str, typer.Option(help="Where the drafter is trained: cpu, or cuda for a GPU that PyTorch sees.")]
Plot = Annotated[Path | None, typer.Option(help="Draw loss and acceptance by tokens into a file (.png, .svg).")]
Depth = Annotated[int, typer.Option(help="How many layers it has.", min=1, max=64)]


@dataclass(frozen=True)
class _Asked:
    """What all kinds of drafters are trained with."""

    out: Path
    target: str
    data: list[str] | None
    tokens: int | None
    preset: str
    seed: int
    threads: int | None
    device: str
    plot: Path | None


@train.command()
def moa(
    out: Out = None,
    target: Target = "stdlib-7m",
    data: Data = None,
    tokens: Tokens = None,
    tli: Annotated[
        int,
        typer.Option(
            help="How many of the model's last layers the drafter ends with (target layer inference). More tokens are "
            "accepted, and each draft token costs as much more as these layers do.",
            min=0,
            max=64,
        ),
    ] = 0,
    preset: Preset = "best",
    seed: Seed = 0,
    threads: options.Threads = None,
    device: Device = "cpu",
    plot: Plot = None,
) -> None:
    """Train a Mixture of Attentions: a network of two layers that drafts for one model, and sees the keys and values
    that the model has computed.

    An interrupted training goes on when the same command is given again: OUT.part holds its last state. OUT holds
    the best drafter so far: the one with the most tokens per check on held-out text. docs/drafters.md says more.
    """
    from foretoken.training.kinds import Kind

    out = _place_beside(target) if out is None else out
    _train(Kind("moa", inferred=tli), _Asked(out, target, data, tokens, preset, seed, threads, device, plot))


@train.command()
def block(
    out: Annotated[
        Path | None,
        typer.Argument(
            help="The drafter's folder. --draft takes it.",
            show_default="TARGET-block, where `foretoken recommend` looks",
        ),
    ] = None,
    target: Target = "stdlib-7m",
    data: Data = None,
    tokens: Tokens = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="A drafter that `train moa` wrote for this model (for stdlib-7m, moa is one). The block begins with "
            "its sizes and weights, and learns much sooner.",
            show_default="random weights",
        ),
    ] = None,
    block: Annotated[int, typer.Option(help="How many tokens it drafts in one pass.", min=2, max=64)] = 7,
    depth: Annotated[int, typer.Option(help="How many layers of its own it has.", min=2, max=64)] = 4,
    tli: Annotated[
        int,
        typer.Option(
            help="How many of the model's last layers it ends with; with --from, as many as that one.", min=0, max=64
        ),
    ] = 0,
    preset: Preset = "best",
    seed: Seed = 0,
    threads: options.Threads = None,
    device: Device = "cpu",
    plot: Plot = None,
) -> None:
    """Train a Mixture of Attentions that drafts several tokens in one pass, where one of `train moa` needs a pass for
    each.

    Fewer of its tokens are accepted, and they cost less. An interrupted training goes on when the same command is given
    again.
    """
    from foretoken.common.source import resolve
    from foretoken.trained.files import expect_trained
    from foretoken.training.kinds import Kind

    out = _place_beside(target, "block") if out is None else out
    begin = None if start is None else str(resolve(start, accept=expect_trained))
    kind = Kind("block", inferred=tli, depth=depth, block=block, start=begin)
    _train(kind, _Asked(out, target, data, tokens, preset, seed, threads, device, plot))


@train.command()
def eagle2(
    out: OutOfStack,
    target: Target = "stdlib-7m",
    data: Data = None,
    tokens: Tokens = None,
    depth: Depth = 1,
    preset: Preset = "best",
    seed: Seed = 0,
    threads: options.Threads = None,
    device: Device = "cpu",
    plot: Plot = None,
) -> None:
    """Train EAGLE-2's drafter, to compare with: one layer, which sees what the model's last layer puts out. Lookup
    cannot speed it up.

    With more layers, they share the parameters of one. An interrupted training goes on when the same command is given
    again.
    """
    from foretoken.training.kinds import Kind

    _train(Kind("eagle2", depth=depth), _Asked(out, target, data, tokens, preset, seed, threads, device, plot))


@train.command()
def eagle3(
    out: OutOfStack,
    target: Target = "stdlib-7m",
    data: Data = None,
    tokens: Tokens = None,
    preset: Preset = "best",
    seed: Seed = 0,
    threads: options.Threads = None,
    device: Device = "cpu",
    plot: Plot = None,
) -> None:
    """Train EAGLE-3's drafter, to compare with: one layer, which sees the inputs of three of the model's layers, and is
    trained to go on from its own states. A step takes several times as long as one of `train moa`. Lookup cannot speed
    it up.

    An interrupted training goes on when the same command is given again.
    """
    from foretoken.training.kinds import Kind

    _train(Kind("eagle3"), _Asked(out, target, data, tokens, preset, seed, threads, device, plot))


@train.command()
def independent(
    out: OutOfStack,
    target: Target = "stdlib-7m",
    data: Data = None,
    tokens: Tokens = None,
    depth: Depth = 1,
    preset: Preset = "best",
    seed: Seed = 0,
    threads: options.Threads = None,
    device: Device = "cpu",
    plot: Plot = None,
) -> None:
    """Train a drafter that sees tokens alone, to compare with: layers as large as the model's, with its embedding and
    output layer.

    An interrupted training goes on when the same command is given again.
    """
    from foretoken.training.kinds import Kind

    _train(Kind("independent", depth=depth), _Asked(out, target, data, tokens, preset, seed, threads, device, plot))


def _train(kind: Kind, asked: _Asked) -> None:
    out, target = asked.out, asked.target
    if asked.preset not in _PRESETS:
        raise SettingError(f"preset is {asked.preset!r}, expected {' or '.join(_PRESETS)}")
    LoadSettings(device=asked.device)
    expect_threads(asked.threads)
    if asked.plot is not None:
        expect_drawable(asked.plot)
    _expect_free(out)

    import torch

    from foretoken.api.checkpoint import expect_device
    from foretoken.trained.files import BESIDE, parameters_of
    from foretoken.training import data as texts
    from foretoken.training.drafter import Recipe, Training
    from foretoken.training.plots import draw

    expect_device(asked.device)
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    model = load(target, draft="none", threads=asked.threads)
    if model.tokenizer is None:
        raise InputError(f"{target} has no tokenizer, so no text can be read for it; add its files")
    streams = texts.read(asked.data or [texts.STDLIB], model.tokenizer)
    recipe = Recipe(asked.tokens or len(streams.learned), kind, preset=asked.preset, seed=asked.seed)
    training = Training(model, *streams, out, recipe, asked.device)
    say(
        f"{parameters_of(training.config) / 1e6:.2f} million parameters; {many(len(streams.learned), 'token')} of text "
        f"and {len(streams.heldout)} held out; {many(recipe.steps, 'step')}"
    )
    with training.alone():
        if training.resume():
            say(f"going on at step {training.progress.step}, from {training.part}")
        with _bar(recipe) as told, telling_how_to_go_on(partial(_how_to_go_on, training.part)):
            progress = training.run(told)
        training.finish()
    best = progress.best
    assert best is not None
    if asked.plot is not None:
        draw(asked.plot, progress.points, f"{target}, {asked.preset}, seed {asked.seed}")
    took = many(round(progress.seconds / 60), "minute")
    below = "" if training.config.follows else ",lookup"
    say(
        f"{out}: {best.acceptance:.2f} tokens a check on held-out text (plain decoding: 1), "
        f"{size(sum(file.stat().st_size for file in out.iterdir()))}, after {took}; "
        f"use it: foretoken generate --model {shlex.quote(target)} --draft {shlex.quote(_as_draft(out))}{below}"
    )
    if out.absolute() in (_beside(target, each) for each in BESIDE) and not training.config.follows:
        say(f"foretoken recommend {shlex.quote(target)} measures whether it is the fastest draft here")


def _how_to_go_on(part: Path) -> str:
    from foretoken.training.drafter import STATE

    kept = (part / STATE).exists()
    return f"the same command {f'goes on from {part}' if kept else 'begins anew: nothing was kept yet'}"


def _beside(target: str, kind: str = "moa") -> Path | None:
    """The place beside a model's folder; None if the model is no folder of the user's."""
    from foretoken.trained.files import place_beside

    folder = Path(target).expanduser()
    return None if target in EMBEDDED or not folder.is_dir() else place_beside(folder, kind)


def _place_beside(target: str, kind: str = "moa") -> Path:
    place = _beside(target, kind)
    if place is None:
        raise SettingError(
            f"{target} is no folder of yours, beside which its drafter could lie; give OUT, a new folder"
        )
    return place


def _as_draft(out: Path) -> str:
    """A folder as --draft takes it: a name without a slash could be that of another draft."""
    return str(out) if "/" in str(out) else f"./{out}"


def _expect_free(out: Path) -> None:
    from foretoken.trained.files import is_ours
    from foretoken.training.drafter import STATE

    if any(sign in str(out) for sign in ",:"):
        raise InputError(f"{out} has a comma or a colon, which have a meaning in --draft; name another folder")
    expect_writable(existing(out.absolute().parent), "name one elsewhere for the drafter")
    if out.exists() and not (out.is_dir() and is_ours(out)):
        raise InputError(f"{out} is there, and holds no drafter of ours; name a new folder")
    if out.exists() and not (out.with_name(f"{out.name}.part") / STATE).exists():
        raise InputError(f"{out} holds a trained drafter already; name a new folder, or remove it")


@contextmanager
def _bar(recipe: Recipe) -> Iterator[Callable[[Progress], None]]:
    """How far the training is: a bar on a terminal, else a line for each checkpoint."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    def line(progress: Progress) -> None:
        point = progress.points[-1]
        left = progress.seconds / progress.step * (recipe.steps - progress.step) / 60
        say(
            f"{point.tokens:,} tokens: loss {point.loss:.3f}, {100 * point.agreeing:.0f} % of the model's choices, "
            f"{point.acceptance:.2f} tokens a check; about {many(round(left), 'minute')} left"
        )

    told = 0

    def lines(progress: Progress) -> None:
        nonlocal told
        if len(progress.points) > told:
            told = len(progress.points)
            line(progress)

    if sys.stderr is None or not sys.stderr.isatty():
        yield lines
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=recipe.steps)

        def shown(progress: Progress) -> None:
            bar.update(task, completed=progress.step, description=f"loss {progress.loss:.3f}")
            lines(progress)

        yield shown
