"""Drafts by looking up: the end of the text has often been there before, and what followed then may follow now.

The longest end of prompt and output that occurred earlier is found by a suffix automaton, in constant time a token,
and the tokens that followed it are proposed. Costs no model, and nothing where nothing repeats.

Sources: prompt lookup decoding (Saxena 2023) for the idea; SAM decoding (arXiv 2411.10666) for the automaton.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice

from foretoken.drafters.automaton import SuffixAutomaton
from foretoken.errors import DraftSpecError
from foretoken.trees.tree import merge
from foretoken.types import Draft, Needs, Request, Turn, Verdict, Work


class LookupDrafter:
    """min_match: shortest match, in tokens, that is worth following. branches: how many different continuations to
    propose, from longer matches to shorter ones, as a tree; 1 is a chain."""

    name = "lookup"
    needs = Needs()

    def __init__(self, min_match: int = 2, branches: int = 1) -> None:
        for key, value in (("min_match", min_match), ("branches", branches)):
            if value < 1:
                raise DraftSpecError(f"lookup: {key} is {value}, expected 1 or more")
        self._min_match = min_match
        self._branches = branches
        self._texts: dict[int, SuffixAutomaton] = {}

    def begin(self, requests: Sequence[Request]) -> None:
        """Index the prompts."""
        for request in requests:
            text = self._texts[request.sequence] = SuffixAutomaton()
            for token in request.prompt:
                text.append(token)

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        """For each turn the tokens that followed earlier matches, longest match first."""
        return [self._propose(turn) for turn in turns]

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """Index the new tokens."""
        for verdict in verdicts:
            text = self._texts[verdict.sequence]
            for token in verdict.tokens:
                text.append(token)

    def end(self, sequence: int) -> None:
        """Drop the index."""
        self._texts.pop(sequence, None)

    def _propose(self, turn: Turn) -> Draft:
        began = time.perf_counter()
        tokens, parents = merge(self._continuations(self._texts[turn.sequence], turn.depth), turn.rows)
        work = Work(self.name, seconds=time.perf_counter() - began, draft_tokens=len(tokens))
        return turn.tree(tokens, parents, self.name, (work,))

    def _continuations(self, text: SuffixAutomaton, depth: int) -> Iterator[list[int]]:
        firsts: set[int] = set()
        # a text that repeats one token has as many matches as tokens: look at a few per branch, not at all
        for _, end in islice(text.matches(self._min_match), 8 * self._branches):
            followed = text.text[end + 1 : end + 1 + depth]
            if followed and followed[0] not in firsts:
                firsts.add(followed[0])
                yield followed
                if len(firsts) == self._branches:
                    return
