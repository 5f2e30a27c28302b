"""The command `foretoken`. Heavy imports happen inside the commands, so that `--help` is instant."""

from __future__ import annotations

import sys

import typer

from foretoken.cli import demo, doctor, generate
from foretoken.errors import ForetokenError

app = typer.Typer(
    name="foretoken",
    help="Makes a language model answer faster, without changing one token of what it would have said.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("generate")(generate.generate)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Run the command line. What Foretoken refuses ends as one line on stderr and exit code 2."""
    try:
        app()
    except ForetokenError as error:
        print(f"foretoken: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
