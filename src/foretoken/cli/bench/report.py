"""`foretoken bench report`: records of measurements, for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretoken.cli.common import say
from foretoken.common.files import expect_place, write_bytes
from foretoken.common.pictures import expect_drawable
from foretoken.common.progress import many
from foretoken.errors import InputError


def report(
    files: Annotated[
        list[Path], typer.Argument(help="Records that `bench decode` or `bench peers` wrote.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the report to this file, and pictures beside it.", show_default="standard output, no pictures"
        ),
    ] = None,
) -> None:
    """Write records as Markdown: a section for each model, with tables and pictures.

    Records of different machines or commits are refused, because a difference could come from the machine or the commit
    rather than from the draft.
    """
    from foretoken.bench import records
    from foretoken.bench import report as reports
    from foretoken.bench.runs import KIND

    if out is not None:
        expect_place(out, what="report", is_one=lambda start: start.startswith(reports.TITLE.encode()))
    read = sorted(((path, records.read(path)) for path in files), key=lambda each: str(each[1]["model"]))
    if out is None:
        print("\n".join(reports.report(read)).rstrip())
        return
    pictures = {path: _picture(out, path) for path, record in read if record["kind"] == KIND}
    text = "\n".join(reports.report(read, {path: picture.name for path, picture in pictures.items()}))
    for path, picture in pictures.items():
        expect_drawable(picture)
        same = next((other for other in pictures if other != path and pictures[other] == picture), None)
        if same is not None:
            raise InputError(f"the pictures of {path} and {same} would both be {picture}; rename one of them")

    from foretoken.bench.plots import draw

    for path, record in read:
        if path in pictures:
            draw(pictures[path], record)
    write_bytes(out, (text.rstrip() + "\n").encode(), what="report")
    say(f"report: {out}, with {many(len(pictures), 'picture')}")


def _picture(out: Path, record: Path) -> Path:
    """Beside the report, with its name before the record's, if that does not begin with it."""
    name = record.stem if record.stem.startswith(out.stem) else f"{out.stem}-{record.stem}"
    return out.with_name(f"{name}.png")
