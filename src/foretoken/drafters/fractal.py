"""A compressed copy of the model, embedded before some of its layers, guesses many tokens in one pass of it.

The tokens that follow are given slots behind the text, and run through the model with it. Before each *fractal layer*
the copy's upper layers finish the pass as it stands: what they choose is the new guess, one token longer than the one
before, for each slot sees what the slots before it now hold. The new guess is embedded, the copy's lower layers bring
it to where the pass had come, and the pass goes on with it. What the model itself chooses at the end is the draft.

    layers of the model   0 ....... i ............ j ............ L     draft: window + fractal layers + 1 tokens
                                    |              |
    the copy, before each           i...L, choose, embed, 0...i         (before j: j...L, choose, embed, 0...j)

All of a round happens in one view of the target's cache: the rows of the copy write where the model's own will, later
in the pass, write over them, and the target's cache is only read. The text is in it but for its last token, so only
that and the slots are computed. Without a cache (`LoadSettings.cache`) the view is empty and the text is computed, by the
model and by the copy, which is the method as it was published.

Differences from the paper: the first guess may come from a lookup or from the rest of the last draft, instead of
new tokens; a guess that comes out as it went in ends the draft, as nothing would change it but the model's last layers;
the copy's embedding is the model's, of which only the guess's rows are read.

Source: FractalLLM (Kim et al. 2025), section 3.2 and appendix D.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows, chain
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.reading import DecoderDrafter, Reading, choose
from foretoken.types import Distribution, Draft, Request, Turn, Verdict, Work

SLOTS = ("fixed", "lookup", "recycle")
_FIXED = 0  # the token in slots that nothing is known of


@dataclass(frozen=True)
class Guesses:
    """What one draft was before each fractal layer, and what it became: for statistics.

    tokens[k], from `position` on, were chosen before layer layers[k]; the last of `tokens` is the draft.
    """

    sequence: int
    position: int
    layers: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]


@dataclass
class _Pass:
    """A draft while it is made. `read`: rows of the text at its front; `placed`: room for all rows that may come."""

    text: list[int]
    placed: Rows
    tokens: list[int]
    guesses: list[tuple[int, ...]] = field(default_factory=list)
    distributions: dict[int, Distribution] = field(default_factory=dict)
    rows: int = 0
    passes: int = 0

    @property
    def read(self) -> int:
        return len(self.text)

    def all(self) -> Rows:
        """The rows of text and slots."""
        return self.placed.part(0, self.read + len(self.tokens), [*self.text, *self.tokens])


@dataclass(eq=False, kw_only=True)
class FractalDrafter(DecoderDrafter):
    """Drafts with a copy of the target embedded in it. `model` is the copy, `views` are of the target's caches.

    layers: before which layers of the target it is embedded, counted from 0, ascending; window: the tokens of the first
    guess; slots: what that is (SLOTS). patient: go on to the end even where a guess has settled. watch: a list that
    each draft's `Guesses` are added to.
    """

    target: Decoder
    layers: tuple[int, ...]
    window: int
    slots: str = "recycle"
    patient: bool = False
    watch: list[Guesses] | None = None
    _lookup: LookupDrafter | None = field(init=False, default=None)
    _left: dict[int, tuple[int, tuple[int, ...]]] = field(init=False, default_factory=dict)  # a draft and its position

    def __post_init__(self) -> None:
        self._lookup = LookupDrafter() if self.slots == "lookup" else None

    @property
    def most(self) -> int:
        """The most tokens of a draft: the window, one more at each fractal layer, and one at the end."""
        return self.window + len(self.layers) + 1

    def begin(self, requests: Sequence[Request]) -> None:
        """Nothing is read: the target's cache has it."""
        super().begin(requests)
        if self._lookup is not None:
            self._lookup.begin(requests)

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        """For each turn a chain."""
        return [self._propose(turn) for turn in turns]

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """The texts go on."""
        for verdict in verdicts:
            self._readings[verdict.sequence].gain(verdict.tokens)
        if self._lookup is not None:
            self._lookup.observe(verdicts)

    def rewind(self, sequence: int, position: int) -> None:
        """Forget tokens that the level above had guessed wrongly."""
        self._readings[sequence].rewind(position)
        self._left.pop(sequence, None)
        if self._lookup is not None:
            self._lookup.rewind(sequence, position)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        self._readings.pop(sequence, None)
        self._left.pop(sequence, None)
        if self._lookup is not None:
            self._lookup.end(sequence)

    def _propose(self, turn: Turn) -> Draft:
        reading = self._readings[turn.sequence]
        most = min(turn.rows, turn.depth, self.most, reading.room())
        if most < 1:
            return turn.chain((), self.name)
        began = time.perf_counter()
        made = self._start(turn, reading, most)
        step = reading.sampler.step
        try:
            self._run(made, reading, most)
        finally:
            reading.sampler.rewind(step)
        self._left[turn.sequence] = (turn.position, tuple(made.tokens))
        if self.watch is not None:
            self.watch.append(
                Guesses(turn.sequence, turn.position, self.layers[: len(made.guesses) - 1], tuple(made.guesses))
            )
        seconds = time.perf_counter() - began
        work = Work(self.name, made.rows, began, seconds, draft_tokens=len(made.tokens), passes=made.passes)
        return turn.chain(made.tokens, self.name, (work,), made.distributions or None)

    def _start(self, turn: Turn, reading: Reading, most: int) -> _Pass:
        cache = reading.open()
        text = reading.pending(cache)
        placed = chain(cache, [*text, *[_FIXED] * (most - 1)])  # the last token is chosen, and has no row
        return _Pass(text, placed, self._first_guess(turn, min(self.window, most - 1)))

    def _first_guess(self, turn: Turn, count: int) -> list[int]:
        known: Sequence[int] = ()
        if self._lookup is not None and count:
            turn = Turn(turn.sequence, turn.round, turn.position, count, count)
            known = [token for draft in self._lookup.propose([turn]) for token in draft.tokens]
        elif self.slots == "recycle" and turn.sequence in self._left:
            position, draft = self._left[turn.sequence]
            known = draft[turn.position - position :]
        return [*known[:count], *[_FIXED] * (count - len(known))]

    @torch.no_grad()
    def _run(self, made: _Pass, reading: Reading, most: int) -> None:
        """The target's pass, with the copy before each fractal layer."""
        rows = made.all()
        hidden = self.target.embed(rows.tokens)
        lo = 0
        for layer in self.layers:
            hidden = self.target.layers(hidden, rows, lo, layer)
            lo = layer
            made.rows, made.passes = made.rows + len(rows), made.passes + 1
            before = made.tokens
            self._choose(made, reading, self.model.finish(hidden, rows, lo, first=made.read - 1), most)
            if before and made.tokens[: len(before)] == before and not self.patient:
                return
            del made.tokens[most - 1 :]
            if not made.tokens:
                return
            rows = made.all()
            hidden = self._embed(made, rows, hidden, lo)
        made.rows += len(rows)
        self._choose(made, reading, self.target.finish(hidden, rows, lo, first=made.read - 1), most)

    def _embed(self, made: _Pass, rows: Rows, hidden: torch.Tensor, hi: int) -> torch.Tensor:
        """The new guess where the pass has come to, behind the text as it was. With nothing but the last token of the
        text among the rows, the guess sees the text in the cache; else the copy computes it, too."""
        first = 1 if made.read == 1 else 0
        part = rows if first == 0 else rows.part(first, len(rows), rows.tokens[first:])
        guessed = self.model.layers(self.model.embed(part.tokens), part, 0, hi)
        return torch.cat((hidden[: made.read], guessed[made.read - first :]))

    def _choose(self, made: _Pass, reading: Reading, outputs: Outputs, most: int) -> None:
        """What each row chooses, given what the rows before it have just chosen; it ends at a NaN, and where nothing
        may follow."""
        sampler = reading.sampler
        step = sampler.step
        made.tokens, made.distributions = [], {}
        for row in range(min(len(outputs.logits), most)):
            token = None if sampler.complete else choose(sampler, outputs, row, self.vocab_size)
            if token is None:
                break
            drawn = self.drawn_from(sampler, outputs.logits[row])
            if drawn is not None:
                made.distributions[row - 1] = drawn
            made.tokens.append(token)
            sampler.advance([token])
        sampler.rewind(step)
        made.guesses.append(tuple(made.tokens))
