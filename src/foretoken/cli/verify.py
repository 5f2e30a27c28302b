"""`foretoken verify`: prove a record of a generation again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(
    file: Annotated[
        Path, typer.Argument(help="A record that `generate --record` or `chat --record` wrote.", show_default=False)
    ],
    model: Annotated[
        str | None, typer.Option(help="The checkpoint, a folder or a hub id.", show_default="where the record says")
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(help="What drafts; whatever it is, it proves the same.", show_default="what drafted then"),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            help="Threads of arithmetic.", show_default="as many as PyTorch takes, or then, where bits need it"
        ),
    ] = None,
) -> None:
    """Generate a record again on this machine, and compare tokens and logits, bit for bit.

    Needs the model of the record, on a machine of the same architecture and with the same engine (native or PyTorch);
    exit code 2, and which of them is another, otherwise. Exit code 1, and where, if something differs.
    """
    from foretoken.transcript import verify as transcript

    found = transcript.verify(file, model, draft=draft, threads=threads)
    if not found.verified:
        print(f"differs: {found.difference}")
        raise typer.Exit(1)
    print(f"verified: {found.compared_tokens} tokens and their logits, bit for bit")
