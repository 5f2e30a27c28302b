"""A picture of a training: loss, and tokens a check on held-out text, by tokens that were read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foretoken.common.pictures import COLOURS, FAINT, new_figure, save

if TYPE_CHECKING:
    from foretoken.training.drafter import Point


def draw(path: str | Path, points: Sequence[Point], title: str) -> None:
    """Draw the checkpoints of a training into a file, .png or .svg."""
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2)
    read = [point.tokens / 1e6 for point in points]
    left.plot(read, [point.loss for point in points], color=COLOURS[1], marker="o")
    left.set(xlabel="million tokens read", ylabel="loss", title="Loss on the text of the training")
    right.plot(read, [point.acceptance for point in points], color=COLOURS[2], marker="o")
    right.axhline(1, color=FAINT, linestyle="--", linewidth=1)
    right.set(xlabel="million tokens read", ylabel="tokens a check", title="Held-out text, greedy, chains of 6")
    figure.suptitle(title, fontsize=10)
    save(figure, path)
