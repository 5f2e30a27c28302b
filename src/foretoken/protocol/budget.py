"""How much a level of a draft may propose in a round."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that one level of a draft may propose in one round: `rows` tokens, of which at most `depth` on one path.
    `width` is the width of a tree (`foretoken.trees.grow`). A level with 0 rows is left out.

    `least` and `dues` are for trees that end themselves, best-first. Both are in accepted tokens. A tree grows no
    further once another pass would add fewer than `least`. `dues[n]` is what sending n tokens must add: of all numbers
    of tokens, the one with the largest difference is sent. Without dues, `rows` alone bounds them.
    """

    rows: int
    depth: int
    width: int = 1
    least: float = 0.0
    dues: tuple[float, ...] = ()

    @property
    def longest(self) -> int:
        """The most tokens on one path."""
        return min(self.rows, self.depth)

    def within(self, depth: int) -> Budget:
        """This budget, cut so that no path is longer than `depth`."""
        if self.depth <= depth:
            return self
        return replace(self, rows=self.rows if depth > 0 else 0, depth=max(0, depth))
