"""`foretoken chat`: a conversation with a model, turn by turn."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretoken.cli import options
from foretoken.cli.asking import escape_in, taken_as_typed, with_escapes
from foretoken.cli.common import Far, say
from foretoken.cli.typing_lines import piped, typed
from foretoken.common.source import DEFAULT_MODEL
from foretoken.errors import InputError, PromptError, RemoteError, TranscriptError
from foretoken.settings.generate import GenerateSettings, expect_repeatable
from foretoken.settings.load import LoadSettings

if TYPE_CHECKING:
    from foretoken.api.model import Model


@options.with_settings(without=("n", "logprobs", "cache", "private_suffix"), max_new_tokens=1024)
def chat(
    loading: LoadSettings,
    generating: GenerateSettings,
    model: options.Model = DEFAULT_MODEL,
    system: Annotated[
        str | None,
        typer.Option(help="A system message, before the conversation.", metavar="TEXT", show_default="nothing"),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="Use no chat template: the model continues your text, and your next line continues the model's.",
        ),
    ] = False,
    prompt_file: Annotated[Path | None, typer.Option(help="Read your messages from a file, one a line.")] = None,
    escapes: Annotated[
        bool, typer.Option("--escapes", "-e", help=r"In --stop, read \n as a line break and \t as a tab.")
    ] = False,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Decode each reply again without a draft and compare. Exit code 1 if a token differs.",
        ),
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            help="When you leave, write a record of the last reply that was not interrupted. `foretoken verify` can "
            "check it, and --pace replay:FILE can use it. An existing file is replaced only if it is a record."
        ),
    ] = None,
    remote: options.Remote = None,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
    offline: options.Offline = "stop",
    stats: Annotated[
        bool,
        typer.Option("--stats", help="After each reply, print what each draft did, and how long that took."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each reply, on a line of its own.")
    ] = False,
) -> None:
    """Converse with a model. Each line that you type is a message. The replies stream to standard output.

    The model keeps what it has read, so each turn reads only what is new. Ctrl-C ends a reply, and the conversation
    goes on; Ctrl-D, exit or /exit ends the conversation; /help lists the commands. Several lines pasted at once are
    one message, and a backslash at the end of a line continues it. Lines can also come from a pipe or a
    file. Then each line is a message or a command of the conversation, standard output has nothing but replies, and
    Ctrl-C ends the program.
    """
    recording = record is not None
    holding = offline == "hold"
    provisional = holding and not as_json and sys.stdout is not None and sys.stdout.isatty()  # a person reads it
    far = Far(remote, token_file, ca, "stop" if holding and remote is not None and not provisional else offline)
    far.expect(record=record, audit=audit)
    if not escapes and not as_json and (escape := escape_in(*generating.stops)) is not None:
        say(taken_as_typed(escape))
    generating = with_escapes(generating) if escapes else generating
    generating = replace(generating, audit=audit, hash_logits=recording, keep_rounds=recording)
    if audit:
        expect_repeatable(loading.rule, generating, "an audit")

    from foretoken.cli.conversing import Conversation
    from foretoken.cli.holding import Waiting
    from foretoken.transcript import record as transcript

    if record is not None:
        transcript.expect_provable(loading.rule, generating)
        transcript.expect_place(record)
    interactive = prompt_file is None and sys.stdin is not None and sys.stdin.isatty()
    messages = typed() if interactive else piped(prompt_file)
    loaded = far.load(model, loading)
    if record is not None:
        _expect_recordable(loaded)
    conversation = Conversation(
        loaded,
        loaded.chat(system, plain=plain),
        generating,
        interactive=interactive,
        as_json=as_json,
        stats=stats,
        waiting=Waiting(provisional) if holding else None,
    )
    if interactive:
        say(f"{loaded.name}, draft {loaded.draft}; Ctrl-D or exit ends the conversation, /help tells more")
    try:
        for line in messages:
            try:
                if not conversation.take(line):
                    break
            except (InputError, RemoteError) as error:
                if not interactive:
                    raise
                say(f"{error}; {conversation.way_out}" if isinstance(error, PromptError) else str(error))
    finally:  # also where a line of a file cannot be read: the replies before it stand
        if record is not None:
            conversation.record(record)
    if conversation.differs or conversation.cut_off:
        raise typer.Exit(1)


def _expect_recordable(model: Model) -> None:
    """Refuse, before anything is said, what could not be proven of a conversation: a proof reads the whole of it at
    once, and the model has read it turn by turn."""
    from foretoken.transcript import record as transcript

    if model.promise != "exact":
        raise TranscriptError(
            f"the promise is {model.promise!r}, where bits may depend on what earlier turns have read, and a record of "
            "a conversation needs 'exact'; leave --record out, or record one prompt with `generate --chat --record`"
        )
    transcript.expect_as_loaded(model)
