"""`foretoken bench`: measurements of this machine, one file each."""

from __future__ import annotations

import typer

from foretoken.cli.bench import decode, kernels, peers, report

bench = typer.Typer(help="Measure drafts, kernels and other engines on this machine.", no_args_is_help=True)
bench.command("kernels")(kernels.kernels)
bench.command("decode")(decode.decode)
bench.command("report")(report.report)
bench.add_typer(peers.peers, name="peers")
