"""A drafter of somebody's own: it says that the last token comes again. For the test that adds it to the table."""

from __future__ import annotations

import time
from collections.abc import Sequence

from foretoken.drafters.recipe import Context, Level, Recipe
from foretoken.drafters.table import DrafterEntry
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Draft, Needs, Request, Turn, Verdict

ENTRY = DrafterEntry("tests.ladder.toy", "says the last token again, `times` times", {"times": int, "tokens": int}, 3)


class ToyDrafter:
    """Repeats the last token."""

    name = "toy"
    needs = Needs()

    def __init__(self, times: int) -> None:
        self.times = times
        self._texts: dict[int, list[int]] = {}

    def begin(self, requests: Sequence[Request]) -> None:
        self._texts.update((request.sequence, list(request.prompt)) for request in requests)

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        return [self._draft(turn) for turn in turns]

    def _draft(self, turn: Turn) -> Draft:
        began = time.perf_counter()
        tokens = self._texts[turn.sequence][-1:] * min(self.times, turn.rows, turn.depth)
        work = Work(self.name, 0, began, time.perf_counter() - began, len(tokens))
        return turn.chain(tokens, self.name, (work,))

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            self._texts[verdict.sequence] += verdict.tokens

    def rewind(self, sequence: int, position: int) -> None:
        del self._texts[sequence][position:]

    def forget(self, conversation: int) -> None:
        pass

    def end(self, sequence: int) -> None:
        self._texts.pop(sequence, None)


class ToyRecipe(Recipe):
    """A chain without a decoder."""

    def make(self, level: Level, context: Context) -> ToyDrafter:
        return ToyDrafter(level.options.get("times", 2))


RECIPE = ToyRecipe()
