"""`foretoken verify`: prove a record of a generation again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(
    file: Annotated[Path, typer.Argument(help="A record that `generate --record` wrote.", show_default=False)],
    model: Annotated[
        str | None, typer.Option(help="The checkpoint, if it is not where the record says: a folder or a hub id.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(help="What drafts, if not what drafted then: it proves the same.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of arithmetic.")] = None,
) -> None:
    """Generate again what a record says, on this machine, and compare tokens and logits, bit for bit.

    Refuses a record of other files, or of another engine. Exit code 1 if something differs.
    """
    from foretoken.transcript import verify as transcript

    found = transcript.verify(file, model, draft=draft, threads=threads)
    if not found.verified:
        print(f"differs: {found.difference}")
        raise typer.Exit(1)
    print(f"verified: {found.compared_tokens} tokens and their logits, bit for bit")
