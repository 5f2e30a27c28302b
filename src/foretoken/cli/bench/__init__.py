"""`foretoken bench`: measurements of this machine, one file each."""

from __future__ import annotations

import typer

from foretoken.cli.bench import kernels

bench = typer.Typer(help="Measure what this machine can do.", no_args_is_help=True)
bench.command("kernels")(kernels.kernels)
