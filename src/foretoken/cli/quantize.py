"""`foretoken quantize`: a low-bit copy of a model, in a folder of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from foretoken.cli.common import say
from foretoken.cli.stoppable import stoppable
from foretoken.common.progress import size
from foretoken.common.source import EMBEDDED, resolve
from foretoken.errors import SettingError
from foretoken.formats import FORMATS, format_of
from foretoken.settings.load import expect_threads

if TYPE_CHECKING:
    from foretoken.formats.quantiser import Quantiser


def quantize(
    model: Annotated[
        str, typer.Argument(help="A folder, a hub id (owner/name) or an embedded model.", show_default=False)
    ],
    format: Annotated[
        str,
        typer.Option(help=f"{', '.join(FORMATS)}. A name such as int4-g128 also gives --group.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Argument(
            help="The copy's folder. If not given: MODEL-FORMAT beside the model's folder, where --draft finds it.",
            show_default="MODEL-FORMAT",
        ),
    ] = None,
    group: Annotated[
        int | None,
        typer.Option(help="For int4, int3 and int2: how many inputs share a scale (32, 64 or 128).", show_default="64"),
    ] = None,
    quantizer: Annotated[
        str,
        typer.Option(
            help="direct: only round the weights. hqq (int4, int3 and int2 only): also search for better zero "
            "points, which is slower."
        ),
    ] = "direct",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing copy.")] = False,
    threads: Annotated[
        int | None, typer.Option(help="Threads of arithmetic.", show_default="as many as PyTorch takes")
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(help="Branch, tag or commit of a hub model.", show_default="the hub's main branch"),
    ] = None,
) -> None:
    """Write a low-bit copy of a model, in which linear layers and the head have 2 to 8 bits a weight.

    The copy is a checkpoint. It can draft for the original model, or be used alone: `--model` takes its folder. If
    MODEL-int4-g64 (int4, groups of 64) lies beside the original's folder, `--draft int4` reads it. Otherwise,
    `--draft int4` rounds the weights each time the model is loaded.
    """
    chosen = format_of(format, group)
    expect_threads(threads)
    if out is None and (model in EMBEDDED or not os.path.isdir(os.path.expanduser(model))):
        raise SettingError(
            f"there is no folder {model!r:.80} that a copy could lie beside; check the name, or give the "
            "copy's folder, OUT"
        )

    from foretoken.copies import place, quantise
    from foretoken.copies.beside import place_beside
    from foretoken.copies.checkpoint import FILES
    from foretoken.formats.quantiser import expect_quantiser

    expect_quantiser(chosen, quantizer)  # before a download
    if out is not None:
        place.tidy(out)
        place.expect_place(out, replace=force, ours=FILES)
    folder = resolve(model, revision, accept=quantise.expect_original)
    out = place_beside(folder, chosen) if out is None else out
    with stoppable():
        made = quantise.plan(folder, out, chosen, quantiser=cast("Quantiser", quantizer), replace=force)
        say(f"{chosen.label}, {size(made.bytes_after)} to {out}, where {size(made.free)} are free")
        spent = quantise.write(made, threads=threads)
    how = "" if quantizer == "direct" else f" ({spent.quantiser_seconds:.1f} s of them {quantizer})"
    say(
        f"{size(made.bytes_before)} became {size(made.bytes_after)}, {made.bits:.2f} bits a weight in linear layers, "
        f"in {spent.seconds:.1f} s{how}, {spent.bytes_read / spent.seconds / 1e9:.2g} GB/s"
    )
