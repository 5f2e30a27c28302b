"""`foretoken bench kernels`: how near to the speed of memory the kernels run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from foretoken.cli import options
from foretoken.common.files import expect_new, write_json
from foretoken.common.pictures import expect_drawable
from foretoken.settings.load import expect_threads


def kernels(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the record to a file.")] = None,
    isa: Annotated[
        str | None,
        typer.Option(
            "--isa",
            "--level",
            help="An instruction set: generic, avx2, avxvnni, avx512, avx512vnni, avx512bf16 or amx; on ARM generic, "
            "neon or dotprod.",
            show_default="the one in use: see doctor",
        ),
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="Weights: bf16, fp16, fp32, mxfp4, int8, int4, int3 or int2; can be given several times.",
            show_default="bf16, mxfp4, int8 and int4",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw two pictures into a file (.png, .svg): bandwidth by the number of tokens in a pass; a roofline."
        ),
    ] = None,
    threads: options.Threads = None,
    rounds: Annotated[int, typer.Option(help="How often each is measured; medians are given.", min=1, max=99)] = 5,
) -> None:
    """Measure how fast each kernel reads its weights. The figure is its share of this machine's highest read speed.

    It takes 2 GB of memory, all cores and a few minutes: close other programs.
    """
    expect_threads(threads)
    if json_file is not None:
        expect_new(json_file)
    if plot is not None:
        expect_drawable(plot)

    from rich.console import Console
    from rich.progress import Progress

    from foretoken.bench.kernels import bench as measure
    from foretoken.bench.roofline import draw, lines

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("measuring", total=1.0)
        record = measure(
            threads=threads,
            isa=isa,
            formats=tuple(format or ("bf16", "mxfp4", "int8", "int4")),
            rounds=rounds,
            progress=lambda share: bar.update(task, completed=share),
        )
    print("\n".join(lines(record)))
    if json_file is not None:
        write_json(json_file, record)
    if plot is not None:
        draw(plot, record)
