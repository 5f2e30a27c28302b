"""`foretoken serve`: a server with OpenAI's interface."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from foretoken.cli import options
from foretoken.cli.common import Far, needing_serve, say
from foretoken.common.source import DEFAULT_MODEL
from foretoken.errors import SettingError, quoted
from foretoken.settings.load import LoadSettings

_SERVER = "Server"


@options.with_settings(generating=False, without=("cache",))
def serve(
    loading: LoadSettings,
    model: Annotated[str, typer.Argument(help="A folder, a hub id or an embedded model.")] = DEFAULT_MODEL,
    host: Annotated[
        str, typer.Option(help="The address to listen at. 0.0.0.0: all.", rich_help_panel=_SERVER)
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535, rich_help_panel=_SERVER)] = 8000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with keys, one in each line. Requests must bring one of them.",
            show_default="no key",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            help="The model's name for clients. Can be given several times; answers say the first.",
            show_default="its own",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="The most tokens of prompt and output.",
            show_default="the model's context",
            min=2,
            rich_help_panel=_SERVER,
        ),
    ] = None,
    max_num_seqs: Annotated[
        int,
        typer.Option(help="The most texts that are generated at once. Others wait.", min=1, rich_help_panel=_SERVER),
    ] = 32,
    max_waiting: Annotated[
        int,
        typer.Option(
            help="The most requests that wait; the next ones are told to try later.", min=0, rich_help_panel=_SERVER
        ),
    ] = 256,
    prefix_cache: Annotated[
        bool,
        typer.Option(help="Keep what was read for requests that begin alike.", rich_help_panel=_SERVER),
    ] = True,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="The address of a web page elsewhere that may ask, such as http://localhost:3000. Can be given "
            "several times.",
            show_default="none",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name that leads to the server beside localhost, as behind a proxy on this machine. Can be given "
            "several times. Not needed with a key, or with --host 0.0.0.0.",
            show_default="none",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    metrics_prefix: Annotated[
        str, typer.Option(help="foretoken, or vllm, so that vLLM's dashboards work.", rich_help_panel=_SERVER)
    ] = "foretoken",
    log: Annotated[
        str,
        typer.Option(
            help="Lines on standard error, one for each request: text, json or none.", rich_help_panel=_SERVER
        ),
    ] = "text",
    drain: Annotated[
        int,
        typer.Option(
            help="Seconds in which texts under way may be finished when the server ends.",
            min=1,
            rich_help_panel=_SERVER,
        ),
    ] = 30,
    default_temperature: Annotated[
        float | None,
        typer.Option(
            help="For requests that name no temperature.", show_default="the model's, or 1", rich_help_panel=_SERVER
        ),
    ] = None,
    remote: options.Remote = None,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """Serve a model with OpenAI's interface, and a page at / that shows who drafted each token. Ctrl-C ends it.

    Programs take the address with /v1 as their base URL. docs/serve.md says what is served, and what is not.
    """
    with needing_serve("a server"):
        from foretoken.serve.limits import Limits
        from foretoken.serve.logs import FORMS, TEXT, logging_to_stderr
        from foretoken.serve.metrics import PREFIXES
        from foretoken.serve.pages import is_of_this_machine
        from foretoken.serve.server import Server, ServerSettings, keys_of, reserved
    from foretoken.settings.values import number, one_of

    one_of("--metrics-prefix", metrics_prefix, PREFIXES)
    one_of("--log", log, (*FORMS, "none"))
    if default_temperature is not None:
        number("--default-temperature", default_temperature, 0.0, 100.0)
    for origin in cors_origin or ():
        if not re.fullmatch(r"https?://[^/]+", origin):
            raise SettingError(f"--cors-origin is {quoted(origin)}, expected an address such as http://localhost:3000")
    for name in allow_host or ():
        if not re.fullmatch(r"[\w.-]+", name):
            raise SettingError(f"--allow-host is {quoted(name)}, expected a name such as chat.example.org")
    settings = ServerSettings(
        host,
        port,
        tuple(served_model_name or ()),
        keys_of(api_key_file),
        tuple(cors_origin or ()),
        tuple(name.lower() for name in allow_host or ()),
        {} if default_temperature is None else {"temperature": default_temperature},
        float(drain),
        metrics_prefix,
    )
    if remote is not None and model != DEFAULT_MODEL:
        raise SettingError("a model and --remote were both given; the host has the model: leave the model out")
    with reserved(host, port) as place:  # before the model is loaded, which may take a while
        loaded = Far(remote, token_file, ca).load(model, loading)
        limits = replace(Limits.of(loaded, max_num_seqs, max_waiting, max_model_len), prefixes=prefix_cache)
        server = Server(loaded, settings, limits)
        if not settings.keys and not is_of_this_machine(host):
            say("whoever reaches this address may use the model; give --api-key-file to ask for a key")

        def ready(url: str) -> None:
            which = f"{server.names[0]} with draft {loaded.draft}"
            say(f"{which}: the page is at {url}, the base URL for programs is {url}/v1")

        with logging_to_stderr(log if log in FORMS else TEXT, requests=log in FORMS):
            server.run(ready, say, place)
