"""The drafter that proposes nothing. With it the loop is plain decoding, the baseline of every comparison."""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.drafters.recipe import Context, Level, Recipe
from foretoken.errors import DraftSpecError
from foretoken.protocol.types import Draft, Needs, Request, Turn, Verdict


class NothingDrafter:
    """Plain decoding."""

    name = "none"
    needs = Needs()

    def begin(self, requests: Sequence[Request]) -> None:
        """Nothing to prepare."""

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        """Nothing."""
        return []

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """Nothing to learn."""

    def rewind(self, sequence: int, position: int) -> None:
        """Nothing to unlearn."""

    def end(self, sequence: int) -> None:
        """Nothing to forget."""

    def forget(self, conversation: int) -> None:
        """Nothing to forget."""


class NothingRecipe(Recipe):
    """No draft."""

    def make(self, level: Level, context: Context) -> NothingDrafter:
        """Make the drafter."""
        return NothingDrafter()

    def speeding_up(self, level: Level, above: Level, spec: str) -> Level:
        """Raises DraftSpecError: there is nothing to speed up a level with."""
        raise DraftSpecError(f"draft {spec!r}: 'none' speeds nothing up; leave it out")


RECIPE = NothingRecipe()
