"""`foretoken batch`: many prompts without a server."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from foretoken.cli import options
from foretoken.cli.common import Far, needing_serve, say
from foretoken.cli.progress import bar
from foretoken.cli.stoppable import telling_how_to_go_on
from foretoken.common.files import readable
from foretoken.common.source import DEFAULT_MODEL
from foretoken.errors import SettingError
from foretoken.settings.generate import GenerateSettings
from foretoken.settings.load import LoadSettings

_STREAM = "-"


@options.with_settings(without=("cache", "n", "logprobs", "private_suffix"))
def batch(
    loading: LoadSettings,
    generating: GenerateSettings,
    requests: Annotated[
        str,
        typer.Argument(
            help="A file with a request in each line: OpenAI's (custom_id, method, url, body), or a JSON object with "
            "a prompt or messages. -: standard input."
        ),
    ],
    answers: Annotated[
        str,
        typer.Argument(
            help="The file that gets an answer in each line, as OpenAI's batches have them. If it is there, the "
            "command goes on where it ended. -: standard output."
        ),
    ],
    model: options.Model = DEFAULT_MODEL,
    at_once: Annotated[int, typer.Option(help="How many texts share a pass.", min=1)] = 8,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            help="The model's name in requests. Can be given several times; answers say the first.",
            show_default="its own",
        ),
    ] = None,
    remote: options.Remote = None,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """Answer the requests in a file, many at once and without a server, in the order in which they end.

    The options of length, sampling and form hold for fields that a request leaves out. So decoding is greedy unless a
    request or --temperature says otherwise. (From `foretoken serve`, such a request gets the temperature that the
    model's files recommend, or 1.) After Ctrl-C, or whatever ended it, the same command goes on: answers that are there
    are kept. The exit code is 1 if requests were refused or have failed. The same command tries again what has failed,
    and what was refused and is corrected. docs/serve.md says more.
    """
    with needing_serve("a batch"):
        from foretoken.serve.answering import name_for_clients, served_name
        from foretoken.serve.batch import Batch, Counts, told_names
        from foretoken.serve.batch_lines import Index, Lines, Usual
        from foretoken.serve.batch_output import File, Kept, Output, Printed

    far = Far(remote, token_file, ca)
    with _reading(requests, answers) as file:
        lines = Lines(file, requests, Usual.of(generating))
        index = Index(lines)
        output: Output = Printed() if answers == _STREAM else File(Path(answers))
        with closing(output):
            kept = output.keep(index, requests) if isinstance(output, File) else Kept(answers)
            counts = Counts(len(index), index.done, kept.refused)
            running = Batch(index.left(lines), output, counts)
            if remote is None and (Path(model).is_dir() or not Path(model).is_absolute()):
                # before the model is loaded, which it is not where nothing is left
                kept.expect_model((served_model_name or [name_for_clients(model)])[0])
            if counts.done < counts.total:
                loaded = far.load(model, loading)
                names = tuple(served_model_name or ()) or (served_name(loaded),)
                kept.expect_model(names[0])
                if generating.constraint is not None:  # a form that makes no sense would spoil every line
                    loaded.expect_possible(loaded.requests((0,), generating)[0])
                with (
                    telling_how_to_go_on(lambda: f"{counts}; {_how_to_go_on(requests, answers)}"),
                    bar(is_kept=True, units="lines", telling=True) as told,
                ):
                    running.run(
                        loaded,
                        names,
                        at_once,
                        lambda: told(f"{counts.speed:.1f} tokens/s", counts.done, counts.total),
                    )
    say(str(counts))
    if counts.unknown:
        say(f"fields that nobody knows changed nothing: {told_names(counts.unknown)}")
    if running.error is not None:
        say(f"{running.error}, so it was given up; their errors are in {answers}")
    if counts.all_refused:
        say(f"why requests were refused is in {'the answers' if answers == _STREAM else answers}")
    if counts.failed and answers != _STREAM:
        say("the same command tries again what failed")
    if counts.failed or counts.all_refused:
        raise typer.Exit(1)


def _how_to_go_on(requests: str, answers: str) -> str:
    if answers == _STREAM:
        return "name a file for the answers, and the same command goes on where it ended"
    again = ", with the same requests," if requests == _STREAM else ""
    return f"the same command{again} goes on from {answers}"


@contextmanager
def _reading(requests: str, answers: str) -> Iterator[BinaryIO]:
    """The requests in a file that can be read twice: what cannot be is first copied."""
    if requests == _STREAM:
        with _copied(sys.stdin.buffer) as copy:
            yield copy
        return
    with readable(requests, "name a file with a request in each line"):
        file = open(requests, "rb")  # noqa: SIM115
    with file:
        if answers != _STREAM and os.path.exists(answers) and os.path.samefile(requests, answers):
            raise SettingError(f"the requests and the answers are both {answers}; name another file for the answers")
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            yield file
        else:
            with _copied(file) as copy:
                yield copy


@contextmanager
def _copied(stream: BinaryIO) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(stream, copy)
        yield copy
