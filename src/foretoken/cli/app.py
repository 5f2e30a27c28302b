"""The command `foretoken`. Heavy imports happen inside the commands, so that `--help` is instant."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn, TextIO

import typer

from foretoken import __version__
from foretoken.cli import (
    batch,
    bench,
    chat,
    demo,
    doctor,
    generate,
    host,
    pack,
    plan,
    quantize,
    recommend,
    rehearse,
    reproduce,
    serve,
    train,
    tune,
    verify,
)
from foretoken.errors import ForetokenError, one_line

_LONGEST = 400  # characters of a message; its end says what to do


def _version(asked: bool) -> None:
    if asked:
        print(f"foretoken {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="foretoken",
    help="Makes a language model answer faster. On the CPU, the model writes the same tokens as without a draft.",
    rich_markup_mode="markdown",  # which wraps lines of a docstring anew
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("verify")(verify.verify)
app.command("recommend")(recommend.recommend)
app.command("plan")(plan.plan)
app.command("quantize")(quantize.quantize)
app.command("rehearse")(rehearse.rehearse)
app.command("reproduce")(reproduce.reproduce)
app.command("host")(host.host)
app.command("pack")(pack.pack)
app.command("serve")(serve.serve)
app.command("batch")(batch.batch)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.add_typer(bench.bench, name="bench")
app.add_typer(train.train, name="train")
app.add_typer(tune.tune, name="tune")


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
    try:
        code = app(standalone_mode=False, args=sys.argv[1:] or ["--help"])
        if sys.stdout is not None:  # it was closed
            sys.stdout.flush()  # here, where it can be told that it fails
    except ForetokenError as error:
        _refuse(str(error))
    except _UsageError as error:
        message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        if message:  # else the help was shown instead
            context = getattr(error, "ctx", None)
            command = "foretoken" if context is None else context.command_path
            _refuse(f"{message}{'' if message.endswith('?') else '.'} See `{command} --help`.")
        sys.exit(2)
    except (BrokenPipeError, SystemExit) as stop:
        # whoever read went away, as `head` does: no error, and nobody to tell. Typer and rich make a SystemExit(1) of
        # it. SIGPIPE is not let loose instead: it would end the process without a word when a hub hangs up, too
        if not any(isinstance(reason, BrokenPipeError) for reason in (stop, stop.__context__)):
            raise
        _silence(sys.stdout, sys.stderr)
        sys.exit(141)  # what a shell says of a process that the signal ended
    except OSError as error:
        _silence(sys.stdout)
        _refuse(f"the output cannot be written ({error.strerror}); free some space, or write elsewhere")
    sys.exit(code or 0)


def _refuse(message: str) -> NoReturn:
    # what a file or an option holds may be in it, and nobody reads pages of that
    line = one_line(" ".join(message.split()))
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST * 2 // 3]} … {line[-_LONGEST // 3 :]}"
    print(f"foretoken: {line}", file=sys.stderr)
    sys.exit(2)


def _silence(*streams: TextIO | None) -> None:
    """Let streams lead nowhere, or the flush at the end would fail once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        if stream is not None:
            os.dup2(nowhere, stream.fileno())
