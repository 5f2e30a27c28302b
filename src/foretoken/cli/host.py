"""`foretoken host`: a model that checks the drafts of clients elsewhere."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from foretoken.cli import options
from foretoken.cli.common import load, say
from foretoken.common.source import DEFAULT_MODEL
from foretoken.settings.load import LoadSettings

_LOOK = 0.2  # seconds
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_WITHOUT = ("draft", "num_speculative_tokens", "rule", "pace", "cache")
_ROWS = 64  # of drafts in a pass under a bound of memory: of so many, the plan has the logits, too


@options.with_settings(without=_WITHOUT, generating=False)
def host(
    loading: LoadSettings,
    model: Annotated[str, typer.Argument(help="A folder, a hub id or an embedded model.")] = DEFAULT_MODEL,
    listen: Annotated[str, typer.Option(help="Where clients come in.", metavar="HOST:PORT")] = "127.0.0.1:8443",
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with a token, which clients must know.", show_default="no token"),
    ] = None,
    tls: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Encrypt: PEM files with the certificate and its key.", show_default="not encrypted"),
    ] = None,
    unencrypted: Annotated[
        bool,
        typer.Option(
            "--unencrypted",
            help="Let others than this machine come in without --tls, because something in front of it encrypts.",
        ),
    ] = False,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="The folder of a trained drafter that clients may use. Can be given several times.",
            show_default="those that lie beside the model, or come with it",
        ),
    ] = None,
    sessions: Annotated[int, typer.Option(help="How many texts are generated at once, at most.", min=1)] = 64,
) -> None:
    """Check the drafts of clients over a network: of `generate` and `chat` with --remote. The texts are those that the
    model writes here, token for token. Ctrl-C ends it.

    On a network, a token and encryption are asked for. docs/remote.md says what travels, and what it reveals.
    """
    from foretoken.api.hosting import host as hosted
    from foretoken.errors import RemoteError
    from foretoken.remote.host import Listening
    from foretoken.remote.limits import Limits
    from foretoken.remote.link import token_of

    certificate, key = tls or (None, None)
    listening = Listening.at(listen, token=token_of(token_file), certificate=certificate, key=key, open=unencrypted)
    place = listening.reserve()  # whoever finds the port in use should not wait for a model first
    draft = "none" if loading.memory is None else f"lookup:tokens={_ROWS - 1}"  # memory is planned for a draft's rows
    try:
        loaded = load(model, **{**asdict(loading), "draft": draft})
        running = hosted(loaded, listening, Limits(sessions=sessions), drafter or (), place)
    except BaseException:
        place.socket.close()
        raise
    asked: list[int] = []
    before = {each: signal.signal(each, lambda number, _: asked.append(number)) for each in _SIGNALS}
    try:
        everywhere = listening.host in ("0.0.0.0", "::")  # no address by which others reach it
        there = running.url.replace(listening.host, "NAME") if everywhere else running.url
        if loaded.settings.memory is not None:
            longest = f"{loaded.target.config.context_length:,} tokens"
            say(f"within --memory: texts have up to {longest}, each client has one at a time, and no trained drafter")
        say(f"{loaded.name} listens at {running.url}; clients: foretoken generate --remote {there}")
        while not asked and not running.room.over.wait(_LOOK):
            pass
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        running.close()
    if running.room.error is not None:
        raise RemoteError(f"the host failed ({running.room.error}); please report this")
    say(f"ended after {running.room.passes:,} passes, which checked {running.room.checked:,} draft tokens")
