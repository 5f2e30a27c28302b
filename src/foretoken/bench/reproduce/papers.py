"""Which papers can be reproduced: a row each. A paper's file is imported when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from foretoken.bench.reproduce.parts import Paper
from foretoken.errors import SettingError, nearest, quoted


@dataclass(frozen=True)
class PaperEntry:
    """Where a paper's file is, and what it is called in a list."""

    module: str
    title: str
    summary: str


PAPERS: dict[str, PaperEntry] = {
    "fractal": PaperEntry(
        "foretoken.bench.reproduce.fractal",
        "FractalLLM: Lossless Self-Speculative Decoding with Layer Embedded Self-Compression (Kim et al. 2025)",
        "tables 1 to 5, figures 3 and 4; beside them cached decoding and plain low-bit chains",
    ),
}


def paper(name: str) -> Paper:
    """A paper by its name. Raises SettingError."""
    if name not in PAPERS:
        raise SettingError(f"there is no paper {quoted(name)} to reproduce{nearest(name, PAPERS)}")
    found: Paper = import_module(PAPERS[name].module).PAPER
    return found
