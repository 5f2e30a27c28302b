"""The recipe of trees: reads their options, and makes the drafter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from foretoken.drafters.decoders import DecoderRecipe
from foretoken.drafters.recipe import Context, Level
from foretoken.drafters.table import DrafterEntry
from foretoken.drafters.tree import TreeDrafter
from foretoken.errors import DraftSpecError
from foretoken.protocol.types import Budget
from foretoken.settings.load import MOST_DRAFT_TOKENS


@dataclass(frozen=True)
class Usual:
    """What a tree is if its options do not say it: that of fixed depth, and the best-first one."""

    width: int = 4
    depth: int = 6
    sharpness: float = 0.5
    sampled: float | None = None
    best_first: Mapping[str, Any] = field(default_factory=lambda: {"k": 4, "depth": 16, "nodes": 12, "least": 0.6})

    def of(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Shape, k, depth, nodes, least and sharpness of a tree with these options; `sampled` is the sharpness for
        sampled texts. A sharpness that is given holds for all texts."""
        usual = {"shape": "beam", "sharpness": self.sharpness, "sampled": self.sampled}
        one_sharpness = {"sampled": None} if "sharpness" in options else {}
        if options.get("shape") == "best-first":
            return {**usual, **self.best_first, **options, **one_sharpness}
        width, depth = options.get("k", self.width), options.get("depth", self.depth)
        size = {"nodes": width * depth, "k": width, "depth": depth}
        return {**usual, **size, **options, **one_sharpness, "least": 0.0}


class TreeRecipe(DecoderRecipe):
    """A tree, which lookup may speed up."""

    sizes = Usual()

    def level(self, name: str, entry: DrafterEntry, options: dict[str, Any]) -> Level:
        """The level for these options."""
        return Level(name, entry, options, self.sizes.of(options)["nodes"])

    def budget(self, level: Level) -> Budget:
        """The tree's nodes, depth and width, and where it ends."""
        its = self.sizes.of(level.options)
        return Budget(level.tokens, its["depth"], its["k"], its["least"])

    def free(self, level: Level) -> bool:
        """Whether a pace may choose how far the tree grows: a best-first tree, of which nothing else was said."""
        said = {"depth", "nodes", "least"} & level.options.keys()
        return self.sizes.of(level.options)["shape"] == "best-first" and not said

    def ends_itself(self, level: Level) -> bool:
        """Best-first trees do."""
        return bool(self.sizes.of(level.options)["shape"] == "best-first")

    def make(self, level: Level, context: Context) -> TreeDrafter:
        """Make the drafter."""
        loaded, common = self.loaded(level, context)
        its = self.sizes.of(level.options)
        return TreeDrafter(
            loaded.decoder,
            context.guessing,
            shape=its["shape"],
            sharpness=its["sharpness"],
            sampled=its["sampled"],
            pauses="pauses" in level.options,
            below=context.below(level),
            **common,
        )

    def expect_size(self, level: Level, spec: str) -> None:
        """Raise DraftSpecError for more draft tokens than a round may have, or than a beam can ever send."""
        its = self.sizes.of(level.options)
        width, depth = its["k"], its["depth"]
        size = max(level.tokens, width * depth)
        if size > MOST_DRAFT_TOKENS:
            what = "nodes" if size == level.tokens != width * depth else f"nodes, k = {width} times depth = {depth}"
            raise DraftSpecError(f"draft {spec!r} is a tree of {size} {what}; expected at most {MOST_DRAFT_TOKENS}")
        if its["shape"] == "beam" and level.tokens > width * depth:
            raise DraftSpecError(
                f"draft {spec!r} is to send {level.tokens} nodes, but a beam has {width * depth}, k = {width} times "
                f"depth = {depth}; give fewer nodes, or another shape"
            )

    def sped_up(self, level: Level, below: Level, spec: str) -> Level:
        """A best-first tree, by default one that ends where it is unsure. Raises DraftSpecError for another shape, and
        for a level below that needs passes of its own."""
        if below.has_decoder or level.options.get("shape", "best-first") != "best-first":
            what = "only by lookup" if below.has_decoder else "only if its shape is best-first"
            raise DraftSpecError(
                f"draft {spec!r}: {level.name!r} drafts a tree, which can be sped up {what}; leave {below.name!r} out"
            )
        options = {**level.options, "shape": "best-first"}
        return replace(level, options=options, tokens=self.sizes.of(options)["nodes"])

    def expect_rule(self, level: Level, rule: str, spec: str) -> None:
        """Raise DraftSpecError if the rule is rejection and sampled tokens decide the tree's form."""
        if rule == "rejection" and self.sizes.of(level.options)["shape"] != "full":
            raise DraftSpecError(
                f"draft {spec!r} grows a tree whose form depends on what is sampled, which the rejection rule cannot "
                "judge; use shape=full, or rule 'walk'"
            )


RECIPE = TreeRecipe()
