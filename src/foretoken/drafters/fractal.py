"""A low-bit copy of the model, embedded before some of its layers, guesses many tokens in one pass of the model.

The tokens to come get slots behind the text, and run through the model with it. Before each *fractal layer* the copy's
upper layers finish the pass as it stands. The tokens that they choose are the new guess. It is one token longer than
the guess before, because a token follows each slot, the last included. The new guess is embedded, the copy's lower
layers bring it up to the fractal layer, and the pass goes on with it. The model's own choices at the end are the draft.

    layers of the model   0 ....... i ............ j ............ L     draft: window + fractal layers + 1 tokens
                                    |              |
    the copy, before each           i...L, choose, embed, 0...i         (before j: j...L, choose, embed, 0...j)

A whole round happens in one view of the target's cache, which is only read. The copy's rows write to slots that the
model's own layers, later in the pass, write over. The cache holds the text but for its last token, so only that token
and the slots are computed. Without a cache (`LoadSettings.cache`) the view is empty. Then the model and the copy
compute the whole text, as in the published method.

Differences from the paper. With `fixed` slots, `fractal_published.py` has only the first and the last of them:

- All slots begin with one and the same token of the vocabulary, not with new tokens; or they begin with the rest of the
  last draft.
- Or there are as many slots as lookup finds tokens, at most `window`. At each fractal layer lookup runs again behind
  the first token that changed, because the copy chose the tokens there for another text. A slot without a guess costs
  a row in every pass, and is seldom right.
- Tokens at the front that come out as they went in, and the token behind them, are known: the copy computes no rows for
  them again, and their hidden states stay the model's own.
- A guess that comes out whole as it went in ends the draft, since only the model's last layers could still change it.
- The copy's embedding is the model's. Only the rows of the guess are read of it.

Source: FractalLLM (Kim et al. 2025), section 3.2 and appendix D.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from foretoken.acceptance.walk import agreeing
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs, joined
from foretoken.decoder.rows import Rows, chain
from foretoken.drafters.reading import DecoderDrafter, Reading, choose
from foretoken.drafters.slots import FIXED, SLOTS, Slots
from foretoken.protocol.telemetry import Cost, Work
from foretoken.protocol.types import TARGET, Distribution, Draft, Request, Turn, Verdict


@dataclass(frozen=True)
class Guesses:
    """The guesses of one draft at each fractal layer, and the draft itself: for statistics.

    tokens[k], from `position` on, were chosen before layer layers[k]. The last entry of `tokens` is the draft.
    """

    sequence: int
    position: int
    layers: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]


@dataclass
class FractalPass:
    """A sequence's draft while it is made, from `position` on. text: the end of the text, whose rows come first.
    placed: room for all rows that may come. The first `known` tokens are not guessed again."""

    sequence: int
    position: int
    text: list[int]
    placed: Rows
    tokens: list[int]
    known: int = 0
    guesses: list[tuple[int, ...]] = field(default_factory=list)
    distributions: dict[int, Distribution] = field(default_factory=dict)
    computed: int = 0  # rows
    cost: dict[str, Cost] = field(default_factory=dict)

    @property
    def root(self) -> int:
        """The row of the text's last token."""
        return len(self.text) - 1

    def rows(self, first: int = 0) -> Rows:
        """The rows of text and tokens, from row `first` on."""
        tokens = [*self.text, *self.tokens][first:]
        return self.placed.part(first, first + len(tokens), tokens)

    def add_cost(self, level: str, rows: Rows) -> None:
        """Add the cost of rows to that of a level's decoder."""
        self.cost[level] = self.cost.get(level, Cost()) + rows.cost


@dataclass(eq=False, kw_only=True)
class FractalDrafter(DecoderDrafter):
    """Drafts with a copy of the target embedded in the target. `model` is the copy; `views` are of the target's caches.

    layers: the layers of the target before which the copy is embedded, counted from 0, ascending. window: the most
    tokens of the first guess. slots: the kind of the first guess (`SLOTS`). watch: a list to which the `Guesses` of
    each draft are added.
    """

    target: Decoder
    layers: tuple[int, ...]
    window: int
    slots: str = "lookup"
    watch: list[Guesses] | None = None
    _slots: Slots = field(init=False)

    def __post_init__(self) -> None:
        self._slots = SLOTS[self.slots]()

    @property
    def most(self) -> int:
        """The most tokens of a draft: the window, one more at each fractal layer, and one at the end."""
        return self.window + len(self.layers) + 1

    def begin(self, requests: Sequence[Request]) -> None:
        """Take new sequences on. Nothing is read: the target's cache holds the prompt."""
        super().begin(requests)
        self._slots.begin(requests)

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        """A chain for each turn, one turn after the other."""
        return [self._propose(turn) for turn in turns]

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """Take in the new tokens."""
        for verdict in verdicts:
            self._readings[verdict.sequence].gain(verdict.tokens)
        self._slots.observe(verdicts)

    def rewind(self, sequence: int, position: int) -> None:
        """Forget the tokens from a position on: they were a wrong guess."""
        self._readings[sequence].rewind(position)
        self._slots.rewind(sequence, position)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        super().end(sequence)
        self._slots.end(sequence)

    def _propose(self, turn: Turn) -> Draft:
        reading = self._readings[turn.sequence]
        most = min(turn.rows, turn.depth, self.most, reading.room())
        if most < 2:  # a single token is the bonus of the model's own pass
            return turn.chain((), self.name)
        began = time.perf_counter()
        made = self._start(turn, reading, most)
        step = reading.sampler.step
        try:
            self._run(made, reading, most)
        finally:
            reading.sampler.rewind(step)
        self._slots.drafted(turn.sequence, turn.position, made.tokens)
        if self.watch is not None:
            self.watch.append(
                Guesses(turn.sequence, turn.position, self.layers[: len(made.guesses) - 1], tuple(made.guesses))
            )
        seconds = time.perf_counter() - began
        passes = min(len(made.guesses), len(self.layers))
        drafted = len(made.tokens)
        work = Work(self.name, made.computed, began, seconds, draft_tokens=drafted, passes=passes, cost=made.cost)
        return turn.chain(made.tokens, self.name, (work,), made.distributions or None)

    def _start(self, turn: Turn, reading: Reading, most: int) -> FractalPass:
        cache = reading.open()
        text = reading.pending(cache)
        placed = chain(cache, [*text, *[FIXED] * (most - 1)])  # the last token is chosen, and has no row
        guess = self._slots.first(turn.sequence, turn.position, min(self.window, most - 1))
        return FractalPass(turn.sequence, turn.position, text, placed, guess)

    def _has_settled(self, made: FractalPass, before: Sequence[int], right: int, most: int) -> bool:
        """Whether a guess came out whole as it went in: then only the model's last layers could change it. right: how
        many of its tokens came out as they went in."""
        guessed = len(before) > made.known or len(before) == most - 1 or len(made.tokens) <= len(before)
        return guessed and right == min(len(before), len(made.tokens))

    def _known(self, right: int) -> int:
        """How many tokens are not guessed again: those that came out as they went in, and the next one."""
        return right + 1

    @torch.no_grad()
    def _run(self, made: FractalPass, reading: Reading, most: int) -> None:
        """The target's pass, with the copy before each fractal layer."""
        rows = made.rows()
        hidden = self.target.embed(rows)
        lo = 0
        for passed, layer in enumerate(self.layers, 1):
            hidden = self.target.layers(hidden, rows, lo, layer)
            made.add_cost(TARGET, rows)
            lo = layer
            before = made.tokens
            self._choose(made, reading, self._finish(made, hidden, lo), most)
            right = agreeing(before, made.tokens)
            if self._has_settled(made, before, right, most):
                return
            window = self.window + passed
            made.tokens = self._slots.changed(made.sequence, made.position, made.tokens, right + 1, window)
            del made.tokens[most - 1 :]
            if not made.tokens:
                return
            made.known = self._known(right)
            rows = made.rows()
            hidden = self._embed(made, hidden, lo)
        made.known, made.computed = 0, made.computed + len(rows)
        outputs = self.target.finish(hidden, rows, lo, first=made.root)
        made.add_cost(TARGET, rows)
        self._choose(made, reading, outputs, most)

    def _finish(self, made: FractalPass, hidden: torch.Tensor, lo: int) -> Outputs:
        """The outputs of the copy's upper layers at the rows behind which no token is known yet. The keys and values of
        earlier rows are there: in the target's cache, or from the copy's last run."""
        first = made.root + made.known if made.known or not made.root else 0
        rows = made.rows(first)
        made.computed += len(rows)
        outputs = self.model.finish(hidden[first:], rows, lo, first=made.root + made.known - first)
        made.add_cost(self.name, rows)
        return outputs

    def _embed(self, made: FractalPass, hidden: torch.Tensor, hi: int) -> torch.Tensor:
        """The hidden states of the pass before layer `hi`. The copy brings the tokens that changed up to this layer.
        These tokens see the rows before them as the target has them; if the text is among the rows, as the copy does.
        """
        kept = made.root + max(1, made.known)
        first = kept if made.known or not made.root else 0
        rows = made.rows(first)
        guessed = self.model.layers(self.model.embed(rows), rows, 0, hi)
        made.add_cost(self.name, rows)
        return joined((hidden[:kept], guessed[kept - first :]))

    def _choose(self, made: FractalPass, reading: Reading, outputs: Outputs, most: int) -> None:
        """Choose a token at each row behind the known tokens, given the tokens that the rows before it have just
        chosen. Ends at a NaN, and where nothing may follow."""
        sampler = reading.sampler
        step = sampler.step
        made.tokens, made.distributions = made.tokens[: made.known], {}
        sampler.advance(made.tokens)
        for row in range(min(len(outputs.hidden), most - made.known)):
            token = None if sampler.complete else choose(sampler, outputs, row, self.vocab_size)
            if token is None:
                break
            drawn = self.drawn_from(sampler, outputs.logits(row))
            if drawn is not None:
                made.distributions[len(made.tokens) - 1] = drawn
            made.tokens.append(token)
            sampler.advance([token])
        sampler.rewind(step)
        made.guesses.append(tuple(made.tokens))
