"""`foretoken bench kernels`: how near to the speed of memory the kernels run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from foretoken.common.files import expect_place, write_json
from foretoken.common.pictures import expect_drawable
from foretoken.settings.load import expect_threads


def kernels(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the record to a file.")] = None,
    isa: Annotated[
        str | None,
        typer.Option(
            "--isa",
            "--level",
            help="An instruction set: generic, avx2, avxvnni, avx512, avx512vnni, avx512bf16 or amx.",
            show_default="the one in use: see doctor",
        ),
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="Weights: bf16, fp16, fp32, mxfp4, int8, int4, int3 or int2; may come again.",
            show_default="bf16, mxfp4, int8 and int4",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw bandwidth by rows, and a roofline, into a file (.png, .svg).")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of arithmetic.", show_default="as many as PyTorch takes")
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often each is measured; medians are given.", min=1, max=99)] = 5,
) -> None:
    """How near to the speed of memory the kernels run: a share of the read bandwidth, measured beside each.

    Takes two gigabytes of memory and all cores for itself: close what else is running. Some minutes by default.
    """
    expect_threads(threads)
    if json_file is not None:
        expect_place(json_file)
    if plot is not None:
        expect_drawable(plot)

    from rich.console import Console
    from rich.progress import Progress

    from foretoken.bench.kernels import bench as measure
    from foretoken.bench.roofline import draw

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("measuring", total=1.0)
        record = measure(
            threads=threads,
            isa=isa,
            formats=tuple(format or ("bf16", "mxfp4", "int8", "int4")),
            rounds=rounds,
            progress=lambda share: bar.update(task, completed=share),
        )
    _show(record)
    if json_file is not None:
        write_json(json_file, record)
    if plot is not None:
        draw(plot, record)


def _show(record: dict[str, Any]) -> None:
    """A table: kernels and shapes down, rows across, the share of the bandwidth in each place."""
    from rich.console import Console
    from rich.table import Table

    from foretoken.common.provenance import isa_of

    machine, low_high = record["machine"], record["read_bandwidth_range_gb_per_s"]
    threads = f"{machine['threads']} thread" + ("s" if machine["threads"] > 1 else "")
    speed = f"{record['read_bandwidth_gb_per_s']} GB/s ({low_high[0]} to {low_high[1]})"
    print(f"{machine['processor']}, {threads}, {isa_of(machine)}: memory is read at {speed}")
    rows = sorted({result["n"] for result in record["results"]})
    table = Table(
        "kernel",
        "outputs x inputs",
        *(f"N = {n}" for n in rows),
        title="share of the read bandwidth (GFLOP/s), by rows N of a pass",
    )
    lines: dict[tuple[str, str], dict[int, str]] = {}
    for result in record["results"]:
        line = lines.setdefault((result["kernel"], f"{result['m']} x {result['k']}"), {})
        line[result["n"]] = f"{result['fraction_of_bandwidth']:.2f} ({result['gflops']:.0f})"
    for (kernel, shape), line in lines.items():
        table.add_row(kernel, shape, *(line.get(n, "") for n in rows))
    Console(width=None if sys.stdout and sys.stdout.isatty() else 120).print(table)
