"""The command `foretoken`. Heavy imports happen inside the commands, so that `--help` is instant."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, NoReturn

import typer

from foretoken import __version__
from foretoken.cli import bench, demo, doctor, generate, verify
from foretoken.errors import ForetokenError


def _version(asked: bool) -> None:
    if asked:
        print(f"foretoken {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="foretoken",
    help="Makes a language model answer faster, without changing one token of what it would have said.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("generate")(generate.generate)
app.command("verify")(verify.verify)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.add_typer(bench.bench, name="bench")


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


# unknown options, values that are no numbers, ...: the class has no public name of its own in every version of typer
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main() -> None:
    """Run the command line. What cannot be used ends as one line on standard error and exit code 2."""
    # Ctrl-C ends the process at once: nothing is ever half-written, and libraries that are just being imported take
    # Python's own way of telling for a failure of theirs
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    # whoever read the output may go away, as `head` does: that ends the process, as it does any other of the kind
    pipe = signal.signal(signal.SIGPIPE, signal.SIG_DFL) if hasattr(signal, "SIGPIPE") else None
    try:
        code = app(standalone_mode=False, args=sys.argv[1:] or ["--help"])
    except ForetokenError as error:
        _refuse(str(error))
    except _UsageError as error:
        _refuse(f"{error.format_message().rstrip('.')}. See `foretoken COMMAND --help`.")  # type: ignore[attr-defined]
    except BrokenPipeError:  # whoever read went away, as `head` does
        _silence_output()
        sys.exit(141)
    except OSError as error:
        _silence_output()
        _refuse(f"the output cannot be written ({error.strerror}); free some space, or write elsewhere")
    finally:
        signal.signal(signal.SIGINT, before)
        if pipe is not None:
            signal.signal(signal.SIGPIPE, pipe)
    sys.exit(code or 0)


def _refuse(message: str) -> NoReturn:
    print(f"foretoken: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _silence_output() -> None:
    """Let standard output lead nowhere, or the flush at the end would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
