"""Drafts by lookup: the end of the text has often occurred before, and the tokens that followed then may follow now.

A suffix automaton finds the longest end of prompt and output that occurred earlier, in constant time a token. The
tokens that followed it are proposed. Lookup needs no model, and drafts nothing where nothing repeats.

Sources: prompt lookup decoding (Saxena 2023) for the idea; SAM decoding (arXiv 2411.10666) for the automaton.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from foretoken.drafters.automaton import SuffixAutomaton
from foretoken.drafters.recipe import Context, Level, Recipe
from foretoken.errors import DraftSpecError
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Draft, Needs, Request, Turn, Verdict


class LookupDrafter:
    """Drafts by lookup. min_match: the shortest match, in tokens, that is followed. Raises DraftSpecError below 1."""

    name = "lookup"
    needs = Needs()

    def __init__(self, min_match: int = 2) -> None:
        if min_match < 1:
            raise DraftSpecError(f"lookup: min_match is {min_match}, expected 1 or more")
        self._min_match = min_match
        self._texts: dict[int, SuffixAutomaton] = {}

    def begin(self, requests: Sequence[Request]) -> None:
        """Index the prompts."""
        for request in requests:
            text = self._texts[request.sequence] = SuffixAutomaton()
            for token in request.prompt:
                text.append(token)
            text.settle()

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        """For each turn, the tokens that followed the longest earlier match of the text's end."""
        return [self._propose(turn) for turn in turns]

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """Index the new tokens."""
        for verdict in verdicts:
            text = self._texts[verdict.sequence]
            for token in verdict.tokens:
                text.append(token)

    def rewind(self, sequence: int, position: int) -> None:
        """Take the last tokens out of the index."""
        self._texts[sequence].truncate(position)

    def matched(self, sequence: int) -> int:
        """How long the longest earlier match of a text's end is, in tokens."""
        return self._texts[sequence].longest_match()[0] if sequence in self._texts else 0

    def end(self, sequence: int) -> None:
        """Drop the index."""
        self._texts.pop(sequence, None)

    def _propose(self, turn: Turn) -> Draft:
        began = time.perf_counter()
        text = self._texts[turn.sequence]
        length, end = text.longest_match()
        count = min(turn.rows, turn.depth) if length >= self._min_match else 0
        followed = text.text[end + 1 : end + 1 + count]
        period = len(text.text) - 1 - end
        while len(followed) < count:  # the copied tokens reach the text's end: the text repeats, so go on repeating
            followed.append(followed[-period])
        work = Work(self.name, began=began, seconds=time.perf_counter() - began, draft_tokens=len(followed))
        return turn.chain(followed, self.name, (work,))


class LookupRecipe(Recipe):
    """A chain that costs nothing."""

    paced = True
    usual = (0.02, 0.4, 0.6, 0.75, 0.85)

    def make(self, level: Level, context: Context) -> LookupDrafter:
        """Make the drafter."""
        return LookupDrafter(**{name: value for name, value in level.options.items() if name != "tokens"})


RECIPE = LookupRecipe()
