"""The table of drafters that a user can name, one row each, with the options that they take.

The name of a low-bit format is a draft too: a copy of the model in that format. Any other name is a checkpoint. Both
draft as `CHAIN` or, with an option of `TREE`, as a tree. Reading a row imports no drafter.

To add a drafter, write its file, which ends with its recipe (foretoken.drafters.recipe), and add its row here. See
ARCHITECTURE.md, "What to touch to add".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from foretoken.formats import FORMATS
from foretoken.settings.drafts import OptionKind
from foretoken.trees.grow import SHAPES


@dataclass(frozen=True)
class DrafterEntry:
    """A row: the module of a drafter and its recipe, a summary, and the options."""

    module: str
    summary: str
    options: Mapping[str, OptionKind] = field(default_factory=dict)  # `tokens` is num_speculative_tokens
    num_speculative_tokens: int = 8  # most draft tokens a round, if the user names no number


_INPUTS = ("fastest", "int8", "bf16")  # what rows are rounded to before they meet low-bit weights
KV = "kv"  # how a copy reads the model's old keys and values
_KV = ("int8", "full")
_TREE_OPTIONS: dict[str, OptionKind] = {
    "k": int,
    "depth": int,
    "nodes": int,
    "shape": SHAPES,
    "sharpness": float,
    "least": float,
}
DRAFTERS: dict[str, DrafterEntry] = {
    "none": DrafterEntry("foretoken.drafters.nothing", "plain decoding"),
    "lookup": DrafterEntry(
        "foretoken.drafters.lookup",
        "repeats what followed the longest earlier match in prompt and output; with `from=FOLDER_OR_FILE`, also in "
        "your files; with `earlier`, also in earlier outputs of the same loaded model",
        {"min_match": int, "tokens": int, "from": Path, "earlier": bool},
    ),
    "fractal": DrafterEntry(
        "foretoken.drafters.fractal_recipe",
        "a low-bit copy that runs inside the model's own pass: the draft begins with up to `w` guessed tokens; the "
        "pass pauses `n` times, each time before another layer (`layers` names them, counted from 0); at each pause "
        "the copy corrects the guessed tokens and adds one; `slots` chooses the first guess",
        {
            "n": int,
            "w": int,
            "layers": list,
            "format": tuple(FORMATS),
            "group": int,
            "inputs": _INPUTS,
            KV: _KV,
            "slots": ("fixed", "lookup", "recycle"),
        },
    ),
    "subspec": DrafterEntry(
        "foretoken.drafters.subspec",
        "for a model that is larger than `--memory`: low-bit substitutes stand in for the layers that are read from "
        "the disk, and draft a deep tree; one pass of the model checks it. With `subspec,lookup` the "
        "tree grows further while that pass waits for the disk; the option `pauses` turns this off",
        {"format": tuple(FORMATS), "group": int, "inputs": _INPUTS, **_TREE_OPTIONS, "pauses": bool},
    ),
}

FRACTAL = DRAFTERS["fractal"]
CHAIN = DrafterEntry(
    "foretoken.drafters.chain_recipe",
    "another checkpoint drafts a chain: a folder, a hub id or an embedded model, best with the same tokenizer; with "
    "`confidence=0.4` a chain ends after the first token that the draft gives a probability below 0.4",
    {"tokens": int, "confidence": float},
    num_speculative_tokens=5,
)
TREE = DrafterEntry(
    "foretoken.drafters.tree_recipe",
    "the same, drafting a tree: `k` nodes wide and `depth` deep, of which at most `nodes` are sent to the model; "
    "`sharpness` is the temperature at which the draft's scores become probabilities; with `shape=best-first`, "
    "`least=0.6` ends a tree as soon as another pass would add less than 0.6 accepted tokens",
    _TREE_OPTIONS,
)

# a folder that `foretoken train` has written; its config.json says so
TRAINED = DrafterEntry("foretoken.drafters.trained_recipe", CHAIN.summary, CHAIN.options, CHAIN.num_speculative_tokens)
TRAINED_TREE = DrafterEntry("foretoken.drafters.trained_tree_recipe", TREE.summary, TREE.options)

COPY_OPTIONS: dict[str, OptionKind] = {
    "group": int,
    "inputs": (*_INPUTS, "fp32"),
    KV: _KV,
    "own-cache": bool,
    "own-layers": list,
    "own-head": bool,
}
OF_COPIES = (KV, "own-cache", "own-layers", "own-head")  # what no other checkpoint can be told
NOT_CAST = "bf16"  # in place of a format: the checkpoint is taken as it is, in whatever type
CHECKPOINT_OPTIONS: dict[str, OptionKind] = {"format": (NOT_CAST, *FORMATS), **COPY_OPTIONS}
