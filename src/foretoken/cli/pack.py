"""`foretoken pack`: what a client needs to draft with a trained drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretoken.cli.common import say
from foretoken.common.source import DEFAULT_MODEL


def pack(
    model: Annotated[str, typer.Argument(help="A folder, a hub id or an embedded model.")] = DEFAULT_MODEL,
    out: Annotated[Path | None, typer.Option(help="The folder to write.", show_default="MODEL-client here")] = None,
    drafter: Annotated[
        str | None,
        typer.Option(help="The folder of a drafter that was trained for the model.", show_default="the model's own"),
    ] = None,
) -> None:
    """Write what a client needs to draft with a trained drafter, while the model runs on a host (docs/remote.md): the
    drafter, and of the model its embedding and output layer. Copy the folder to the client, and name it there:
    `foretoken generate --remote ws://HOST:PORT --draft FOLDER`."""
    from foretoken.common.progress import size
    from foretoken.common.source import resolve
    from foretoken.drafters.packing import pack as packed
    from foretoken.drafters.trained import trained_for
    from foretoken.errors import InputError
    from foretoken.trained.files import expect_trained

    folder = resolve(model)
    name = drafter or next(iter(trained_for(folder)), None)
    if name is None:
        raise InputError(
            f"there is no drafter that was trained for {model}; train one: foretoken train moa --target {model}"
        )
    place = resolve(name)
    expect_trained(place)
    to = out or Path(f"{Path(model).name}-client")
    count = packed(folder, place, to)
    say(f"{to}: {size(count)}; on the client: foretoken generate --remote ws://HOST:PORT --draft {to.name}")
