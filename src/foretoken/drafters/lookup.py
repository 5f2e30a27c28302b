"""Drafts by lookup: the end of the text has often occurred before, and the tokens that followed then may follow now.

A suffix automaton finds the longest end of prompt and output that occurred earlier, in constant time a token. The
tokens that followed it are proposed. Lookup needs no model, and drafts nothing where nothing repeats. It can also look
into earlier outputs and into files of the user's, and follows a longer match there.

Sources: prompt lookup decoding (Saxena 2023) for the idea; SAM decoding (arXiv 2411.10666) for the automaton, and for
taking the longer of two matches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from foretoken.drafters.automaton import SuffixAutomaton
from foretoken.drafters.earlier import EarlierTexts
from foretoken.drafters.own_files import OwnFiles
from foretoken.drafters.recipe import Context, Level, Recipe
from foretoken.drafters.suffixes import REACH, Match
from foretoken.errors import DraftSpecError
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Draft, Needs, Request, Turn, Verdict

PREDICTION = "prediction"  # the origin of tokens from a text that the request predicts
_FOR_A_LEVEL = 2  # the shortest match that is followed for another draft, rather than for the model
_LEAST_SHARE = 0.25  # of its places that go on as the draft does: less is hardly ever accepted (LOG)


class Index(Protocol):
    """Where which runs of tokens occur in some texts. See `SuffixArray`."""

    def longest(self, end: Sequence[int], least: int) -> Match | None:
        """The longest end of some tokens that occurs."""

    def following(self, match: Match, count: int, least: float = 0.0) -> list[int]:
        """The tokens that follow it."""


class Elsewhere(Protocol):
    """Texts beside those that are generated."""

    @property
    def index(self) -> Index | None:
        """Where what occurs in them; None before it is known."""

    def wait(self) -> None:
        """Return when the index is there."""


class LookupDrafter:
    """Drafts by lookup. min_match: the shortest match, in tokens, that is followed. files: where else to look.
    patient: whether to wait for the index of the files, which makes drafts the same each time. earlier: the outputs of
    sequences that have ended, if they are looked at, too. A text that a request predicts is looked at as well. Raises
    DraftSpecError for a min_match below 1."""

    name = "lookup"
    needs = Needs()

    def __init__(
        self,
        min_match: int = 1,
        files: Elsewhere | None = None,
        *,
        patient: bool = False,
        earlier: EarlierTexts | None = None,
    ) -> None:
        if min_match < 1:
            raise DraftSpecError(f"lookup: min_match is {min_match}, expected 1 or more")
        self._min_match = min_match
        self._texts: dict[int, SuffixAutomaton] = {}
        self._files, self._patient = files, patient
        self._earlier = earlier
        self._prompts: dict[int, int] = {}  # by sequence: tokens of its prompt
        self._predicted: dict[int, EarlierTexts] = {}  # by sequence: what its request predicts

    def begin(self, requests: Sequence[Request]) -> None:
        """Index the prompts."""
        if self._files is not None and self._patient:
            self._files.wait()
        for request in requests:
            text = self._texts[request.sequence] = SuffixAutomaton()
            for token in request.prompt:
                text.append(token)
            text.settle()
            self._prompts[request.sequence] = len(request.prompt)
            if request.predicted:
                self._predicted[request.sequence] = self._indexed(request)

    def _indexed(self, request: Request) -> EarlierTexts:
        """What a request predicts, behind the end of its prompt, which tells where it begins. Completions of one prompt
        share it."""
        shared = None if request.prompt_of is None else self._predicted.get(request.prompt_of)
        if shared is not None:
            return shared
        predicted = EarlierTexts(4 * (REACH + len(request.predicted)))
        predicted.keep((*request.prompt[-REACH:], *request.predicted))
        return predicted

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
        if sequence not in self._texts:
            return 0
        text = self._texts[sequence]
        length, _ = text.longest_match()
        elsewhere = self._elsewhere(sequence, text.text, length)
        return length if elsewhere is None else elsewhere[1].length

    def end(self, sequence: int) -> None:
        """Drop the index."""
        text, prompt = self._texts.pop(sequence, None), self._prompts.pop(sequence, 0)
        self._predicted.pop(sequence, None)
        if self._earlier is not None and text is not None and len(text.text) > prompt:
            self._earlier.keep(text.text[max(0, prompt - REACH) :])  # the end of the prompt tells where it began

    def forget(self, conversation: int) -> None:
        """Nothing is kept of a conversation."""

    def _propose(self, turn: Turn) -> Draft:
        began = time.perf_counter()
        text = self._texts[turn.sequence]
        length, end = text.longest_match()
        most = min(turn.rows, turn.depth)
        elsewhere = self._elsewhere(turn.sequence, text.text, length) if most else None
        if elsewhere is not None:
            index, match = elsewhere
            name = PREDICTION if index is self._predicted.get(turn.sequence) else self.name
            return self._drafted(turn, index.following(match, most, _LEAST_SHARE), began, name)
        count = most if length >= self._min_match else 0
        followed = text.text[end + 1 : end + 1 + count]
        period = len(text.text) - 1 - end
        while len(followed) < count:  # the copied tokens reach the text's end: the text repeats, so go on repeating
            followed.append(followed[-period])
        return self._drafted(turn, followed, began)

    def _drafted(self, turn: Turn, tokens: list[int], began: float, origin: str | None = None) -> Draft:
        work = Work(self.name, began=began, seconds=time.perf_counter() - began, draft_tokens=len(tokens))
        return turn.chain(tokens, origin or self.name, (work,))

    def _elsewhere(self, sequence: int, text: Sequence[int], length: int) -> tuple[Index, Match] | None:
        """The match of a text's end in what its request predicts, in earlier outputs or in the files, if it is longer
        than `length`, the one in the text itself."""
        found: tuple[Index, Match] | None = None
        files = None if self._files is None else self._files.index
        for index in (self._predicted.get(sequence), self._earlier, files):
            if index is not None and length < REACH:
                match = index.longest(text[-REACH:], max(length + 1, self._min_match))
                if match is not None:
                    found, length = (index, match), match.length
        return found


class LookupRecipe(Recipe):
    """A chain that costs next to nothing."""

    paced = True
    usual = (0.02, 0.3, 0.4, 0.6, 0.75, 0.85)

    def make(self, level: Level, context: Context) -> LookupDrafter:
        """Make the drafter."""
        place, files = level.options.get("from"), None
        if place is not None:
            if context.tokenizer is None:
                raise DraftSpecError("draft 'lookup': from=... needs the model's tokenizer, and the model has none")
            files = OwnFiles(Path(place), context.tokenizer)
        earlier = EarlierTexts() if "earlier" in level.options else None
        least = level.options.get("min_match", 1)
        return LookupDrafter(least, files, patient=context.independent, earlier=earlier)

    def speeding_up(self, level: Level, above: Level, spec: str) -> Level:
        """The level with longer matches: the pace does not tell the lengths of matches apart for a level above, whose
        every pass would check what follows the short ones (LOG)."""
        return replace(level, options={"min_match": _FOR_A_LEVEL, **level.options})

    def expect_rule(self, level: Level, rule: str, spec: str) -> None:
        """Raise DraftSpecError for drafts from earlier outputs under the rejection rule, where drafts decide the
        text."""
        if rule == "rejection" and "earlier" in level.options:
            raise DraftSpecError(
                f"draft {spec!r}: with 'earlier', a draft depends on what was generated before, and under the "
                "rejection rule a text depends on its drafts; leave 'earlier' out, or take the rule walk"
            )


RECIPE = LookupRecipe()
