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
        str | None,
        typer.Option(
            "--model", "-m", help="The checkpoint, a folder or a hub id.", show_default="where the record says"
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            help="What proposes tokens. Under the promise exact, every draft gives the same result.",
            show_default="the draft that the record names",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="The most memory that the process may use, such as 8GiB.", show_default="no bound"),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            "-t",
            help="Threads for the arithmetic.",
            show_default="as many as PyTorch takes; for a record of the PyTorch engine, as many as it names",
        ),
    ] = None,
) -> None:
    """Repeat a recorded generation on this machine, and check that its tokens and logits are the same, bit for bit.

    Needs the same model, the same engine (native or PyTorch) and, with the native engine, the same processor
    architecture (such as x86-64). The PyTorch engine is only sure to repeat its bits with the same version of PyTorch,
    number of threads and processor. If model, engine or architecture differ, it says which, with exit code 2. If the
    output differs, it says where, with exit code 1.
    """
    from foretoken.transcript import verify as transcript

    found = transcript.verify(file, model, draft=draft, threads=threads, memory=memory)
    if not found.verified:
        print(f"differs: {found.difference}")
        raise typer.Exit(1)
    print(f"verified: {found.compared_tokens} tokens and their logits, bit for bit")
