"""The command `foretoken`. Heavy imports happen inside the commands, so that `--help` is instant."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer

from foretoken.cli import demo, doctor, generate
from foretoken.errors import ForetokenError

app = typer.Typer(
    name="foretoken",
    help="Makes a language model answer faster, without changing one token of what it would have said.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("generate")(generate.generate)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)


# unknown options, values that are no numbers, ...: the class has no public name of its own in every version of typer
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main() -> None:
    """Run the command line. What cannot be used ends as one line on standard error and exit code 2."""
    try:
        code = app(standalone_mode=False, args=sys.argv[1:] or ["--help"])
    except ForetokenError as error:
        _refuse(str(error))
    except _UsageError as error:
        _refuse(f"{error.format_message()} See `foretoken COMMAND --help`.")  # type: ignore[attr-defined]
    except typer.Abort:  # Ctrl-C
        sys.exit(130)
    except BrokenPipeError:  # whoever read went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush would fail as well
        sys.exit(141)
    sys.exit(code or 0)


def _refuse(message: str) -> NoReturn:
    print(f"foretoken: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
