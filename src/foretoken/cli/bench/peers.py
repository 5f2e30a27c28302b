"""`foretoken bench peers`: other engines on the same weights and prompts."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from foretoken.cli import options
from foretoken.cli.common import say, saying
from foretoken.cli.stoppable import stoppable
from foretoken.cli.time_left import Lines
from foretoken.common.files import expect_new, write_json
from foretoken.errors import InputError
from foretoken.settings.load import LoadSettings

peers = typer.Typer(
    help="Measure other engines beside this one, on the same weights and prompts.", no_args_is_help=True
)
_Into = Annotated[
    Path | None,
    typer.Option(
        help="The folder of the environments in which the peers are installed.", show_default="~/.cache/foretoken/peers"
    ),
]
_Names = Annotated[
    list[str] | None,
    typer.Argument(help="A peer: llamacpp, openvino or vllm. Without any: all three.", show_default=False),
]
_DRAFTS = ("lookup", "mxfp4,lookup", "mxfp4:k=2,lookup")


@peers.command("install")
def install(
    name: _Names = None,
    peer: Annotated[list[str] | None, typer.Option(help="The same as NAME; can be given several times.")] = None,
    into: _Into = None,
) -> None:
    """Install peers, the other engines that `peers run` measures. Each gets a virtual environment with fixed versions
    of its packages. (transformers is there already: Foretoken needs it.)

    Some gigabytes are downloaded, and llama.cpp is compiled, which takes minutes. An interrupted installation goes on
    where it stopped.
    """
    from foretoken.bench.side_by_side import environments
    from foretoken.bench.side_by_side.peers import PEERS, named

    for each in [named(one).name for one in [*(name or ()), *(peer or ())] or PEERS]:
        environments.install(each, into or environments.default_place(), say=say)


@peers.command("list")
def list_peers(into: _Into = None) -> None:
    """Say which peers are there, and in which versions."""
    from foretoken.bench.side_by_side import environments

    for found in environments.environments(into or environments.default_place()):
        if not found.peer.packages:
            state = "in Foretoken's own environment"
        elif found.installed is None:
            state = "not installed"
        elif not found.is_ready:
            state = f"other versions ({', '.join(found.installed)}): install it again"
        else:
            state = f"installed: {', '.join(found.installed)}"
        print(f"{found.peer.name:14}{state}")


@peers.command("run")
@options.with_settings(
    without=("draft", "num_speculative_tokens", "rule", "dtype", "device", "cache"), generating=False
)
def run(
    loading: LoadSettings,
    model: options.Model = "stdlib-7m",
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="transformers, llamacpp, openvino or vllm; can be given several times.",
            show_default="all that are installed",
        ),
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(help="One of our drafts; can be given several times.", show_default="; ".join(_DRAFTS)),
    ] = None,
    peer_draft: Annotated[
        str | None,
        typer.Option(help="A second checkpoint, which drafts for the peers that can use one.", show_default="none"),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            help="A mode of the peers, such as lookup (docs/peers.md lists them); can be given several times. Plain "
            "decoding is always measured.",
            show_default="all",
        ),
    ] = None,
    prompts: options.Prompts = "auto",
    num_prompts: Annotated[
        int, typer.Option("--num-prompts", "--count", help="How many of the prompts are used.", min=1)
    ] = 10,
    max_new_tokens: Annotated[
        int, typer.Option(help="New tokens for each prompt; generation goes on after end tokens.", min=2)
    ] = 64,
    repeats: Annotated[int, typer.Option(help="How often each prompt is decoded in each mode.", min=1)] = 3,
    work: Annotated[
        Path | None,
        typer.Option(
            help="A folder for the model in the peers' formats, and for their logs. What is there is used again.",
            show_default="a temporary folder",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(help="Stop waiting for a peer that prints nothing for this many seconds."),
    ] = 1800,
    into: _Into = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the record to a file, anew after each peer.")
    ] = None,
) -> None:
    """Decode the same prompts greedily with other engines (peers) and with Foretoken, in turn. Compare the times, and
    whether speculation changed a token.

    Takes all cores for itself: close what else is running. Exit code 1 if our own drafting changed a token.
    """
    if json_file is not None:
        expect_new(json_file)
    if work is not None:
        try:
            work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"no folder {work} for what peers convert can be made ({error.strerror}); name another"
            ) from None

    from foretoken.bench.side_by_side import environments, measuring
    from foretoken.bench.side_by_side.rows import OURS
    from foretoken.bench.side_by_side.tables import table

    place = into or environments.default_place()
    if peer is None:
        ready = [found for found in environments.environments(place) if found.is_ready]
    else:
        ready = [environments.expect_ready(name, place) for name in dict.fromkeys(peer)]

    keep = None if json_file is None else partial(write_json, json_file)
    with (
        stoppable(),  # peers and what they converted are taken away
        saying(),
        tempfile.TemporaryDirectory(prefix="foretoken-peers-") if work is None else nullcontext(work) as folder,
    ):
        asked = measuring.Asked(
            model,
            _DRAFTS if draft is None else draft,
            prompts,
            num_prompts,
            max_new_tokens=max_new_tokens,
            repeats=repeats,
            peers=ready,
            work=Path(folder),
            peer_draft=peer_draft,
            modes=mode,
            timeout=timeout,
            loading=loading,
        )
        record = measuring.measure(asked, progress=Lines(), keep=keep)
    print(table(record), end="")
    if any(row["engine"] == OURS and row["identical_to_own_plain"] is False for row in record["rows"]):
        raise typer.Exit(1)
