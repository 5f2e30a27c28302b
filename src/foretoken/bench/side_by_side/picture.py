"""Draws a record of `bench peers`: the speed of every engine and mode, on the same weights and prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretoken.bench.side_by_side.rows import OURS, PLAIN
from foretoken.common.pictures import COLOURS, FAINT, INK, new_figure, save
from foretoken.common.provenance import isa_of

_OTHERS, _LOSSY = "#b8bcc4", "#e4e6ea"


def draw(path: str | Path, record: dict[str, Any]) -> None:
    """Draw a record into a file, .png or .svg: a bar for each mode that ran, the fastest first."""
    rows = sorted((row for row in record["rows"] if row["why"] is None), key=lambda row: float(row["ms_per_token"]))
    figure = new_figure(10, 0.6 + 0.27 * len(rows))
    axes = figure.subplots()
    for place, row in enumerate(rows):
        speed, ours = row["tokens_per_second"], row["engine"] == OURS
        colour = COLOURS[1] if ours else _LOSSY if _has_other_weights(row) else _OTHERS
        axes.barh(-place, speed, height=0.72, color=colour)
        weight = "bold" if ours else "normal"
        axes.text(speed, -place, f" {speed:.1f}{_note(row)}", va="center", fontsize=8, color=INK, fontweight=weight)
    axes.set_yticks([-place for place in range(len(rows))], [f"{row['engine']}  {row['mode']}" for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row["engine"] == OURS else "normal")
    axes.set_xlabel("tokens a second, greedy")
    axes.set_xlim(0, 1.2 * max((row["tokens_per_second"] for row in rows), default=1))
    axes.grid(axis="x", color=FAINT, linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0, labelsize=8)
    machine = record["machine"]
    axes.set_title(
        f"{record['model']}, the same weights and prompts: {machine.get('processor')}, {machine.get('threads')} "
        f"threads, {isa_of(machine) or 'PyTorch'}",
        fontsize=9,
        color=INK,
    )
    save(figure, path)


def _has_other_weights(row: dict[str, Any]) -> bool:
    """Whether a row is plain decoding with other weights, such as llama.cpp's Q4_0."""
    return row["of"] is None and row["mode"] != PLAIN


def _note(row: dict[str, Any]) -> str:
    """A note on the output, if it was not the engine's own plain output."""
    if _has_other_weights(row):
        return "   other weights, another output"
    if row["of"] is None or row["equal_to_own_plain"] == row["prompts"]:
        return ""
    return f"   changed tokens in {row['prompts'] - row['equal_to_own_plain']} of {row['prompts']} prompts"
