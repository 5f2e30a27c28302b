"""One file per drafting method. `DRAFTERS` is the table of those that a user can name.

A low-bit format is a draft too: a copy of the model in it. What is no name at all is a checkpoint. Both draft as
`CHAIN` or, with an option of `TREE`'s, as a tree.

To add one: write its file, add its row here, and every contract test in `tests/contracts` runs on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from foretoken.formats import FORMATS
from foretoken.settings import OptionKind
from foretoken.trees.grow import SHAPES
from foretoken.types import Drafter


@dataclass(frozen=True)
class DrafterEntry:
    """Where a drafter's class is, so that naming one does not import them all, and which options it takes."""

    module: str
    cls: str
    summary: str
    options: Mapping[str, OptionKind] = field(default_factory=dict)  # `tokens` is num_speculative_tokens
    num_speculative_tokens: int = 8  # most draft tokens a round, where the user names no number
    ladder: bool = False  # whether another draft may speed it up

    def make(self, *arguments: Any, **named: Any) -> Drafter:
        """A drafter of this class, from the arguments of its constructor."""
        drafter: Drafter = getattr(import_module(self.module), self.cls)(*arguments, **named)
        return drafter


DRAFTERS: dict[str, DrafterEntry] = {
    "none": DrafterEntry("foretoken.drafters.nothing", "NothingDrafter", "plain decoding"),
    "lookup": DrafterEntry(
        "foretoken.drafters.lookup",
        "LookupDrafter",
        "repeats what followed the longest earlier match in prompt and output",
        {"min_match": int, "tokens": int},
    ),
    "fractal": DrafterEntry(
        "foretoken.drafters.fractal",
        "FractalDrafter",
        "a low-bit copy, embedded before `n` layers of the model or before `layers` (counted from 0), guesses `w` "
        "tokens at once, and one more at each; `slots` says what the first guess is",
        {
            "n": int,
            "w": int,
            "layers": list,
            "format": tuple(FORMATS),
            "group": int,
            "inputs": ("int8", "bf16"),
            "slots": ("fixed", "lookup", "recycle"),
        },
    ),
}

FRACTAL = DRAFTERS["fractal"]
CHAIN = DrafterEntry(
    "foretoken.drafters.model",
    "ModelDrafter",
    "another checkpoint with the same tokenizer drafts a chain: a folder, a hub id or an embedded model",
    {"tokens": int},
    num_speculative_tokens=5,
    ladder=True,
)
TREE = DrafterEntry(
    "foretoken.drafters.tree",
    "TreeDrafter",
    "the same, drafting a tree: `k` nodes wide, `depth` deep, `nodes` sent; `sharpness` is the scale of its errors",
    {"k": int, "depth": int, "nodes": int, "shape": SHAPES, "sharpness": float},
)

COPY_OPTIONS: dict[str, OptionKind] = {"group": int, "inputs": ("int8", "bf16"), "own-cache": bool}
CHECKPOINT_OPTIONS: dict[str, OptionKind] = {"format": tuple(FORMATS), **COPY_OPTIONS}
