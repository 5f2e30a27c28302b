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
that and the slots are computed. Without a cache (`LoadSettings.cache`) the view is empty and the text is computed, by
the model and by the copy, which is the method as it was published.

Differences from the paper, of which a `patient` drafter with `fixed` slots has only the first and the last:

- Slots begin with one token of the vocabulary, all the same, instead of new ones; or with the rest of the last draft.
- Or there are as many slots as a lookup finds tokens to follow, at most `window`; behind the first token that changed
  it is asked again at each fractal layer, as what the copy said there was said of another text. A slot that nothing is
  known of costs a row in every pass and is seldom right.
- Tokens at the front that come out as they went in, and the one behind them, are known: the copy computes no rows for
  them again, and their hidden states stay the model's own.
- A guess that comes out whole as it went in ends the draft: nothing would change it but the model's last layers.
- The copy's embedding is the model's, of which only the guess's rows are read.

Source: FractalLLM (Kim et al. 2025), section 3.2 and appendix D.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from foretoken.acceptance.walk import agreeing
from foretoken.decoder.config import read_config
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs, joined
from foretoken.decoder.rows import Rows, chain
from foretoken.drafters.decoders import DecoderRecipe, format_asked
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.reading import DecoderDrafter, Reading, choose
from foretoken.drafters.recipe import Context, Level
from foretoken.drafters.table import DrafterEntry
from foretoken.errors import DraftSpecError
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Distribution, Draft, Request, Turn, Verdict
from foretoken.settings.load import MOST_DRAFT_TOKENS

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
    """A sequence's draft while it is made. text: the end of it, at the front of the rows. placed: room for all rows
    that may come. The first `known` tokens are not guessed again."""

    sequence: int
    text: list[int]
    placed: Rows
    tokens: list[int]
    known: int = 0
    guesses: list[tuple[int, ...]] = field(default_factory=list)
    distributions: dict[int, Distribution] = field(default_factory=dict)
    computed: int = 0  # rows

    @property
    def root(self) -> int:
        """The row of the text's last token."""
        return len(self.text) - 1

    def rows(self, first: int = 0) -> Rows:
        """The rows of text and tokens, from one on."""
        tokens = [*self.text, *self.tokens][first:]
        return self.placed.part(first, first + len(tokens), tokens)


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
    slots: str = "lookup"
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
        super().end(sequence)
        self._left.pop(sequence, None)
        if self._lookup is not None:
            self._lookup.end(sequence)

    def _propose(self, turn: Turn) -> Draft:
        reading = self._readings[turn.sequence]
        most = min(turn.rows, turn.depth, self.most, reading.room())
        if most < 2:  # one token is what the model's own pass says, for nothing
            return turn.chain((), self.name)
        began = time.perf_counter()
        made = self._start(turn, reading, most)
        step = reading.sampler.step
        try:
            self._run(made, reading, most)
        finally:
            reading.sampler.rewind(step)
        if self.slots == "recycle":
            self._left[turn.sequence] = (turn.position, tuple(made.tokens))
        if self.watch is not None:
            self.watch.append(
                Guesses(turn.sequence, turn.position, self.layers[: len(made.guesses) - 1], tuple(made.guesses))
            )
        seconds = time.perf_counter() - began
        passes = min(len(made.guesses), len(self.layers))
        work = Work(self.name, made.computed, began, seconds, draft_tokens=len(made.tokens), passes=passes)
        return turn.chain(made.tokens, self.name, (work,), made.distributions or None)

    def _start(self, turn: Turn, reading: Reading, most: int) -> _Pass:
        cache = reading.open()
        text = reading.pending(cache)
        placed = chain(cache, [*text, *[_FIXED] * (most - 1)])  # the last token is chosen, and has no row
        return _Pass(turn.sequence, text, placed, self._first_guess(turn, reading, min(self.window, most - 1)))

    def _first_guess(self, turn: Turn, reading: Reading, count: int) -> list[int]:
        if self._lookup is not None:
            return self._looked_up(self._lookup, turn.sequence, reading, [], count)
        position, draft = self._left.get(turn.sequence, (turn.position, ()))
        left = draft[turn.position - position :][:count]
        return [*left, *[_FIXED] * (count - len(left))]

    def _looked_up(
        self, lookup: LookupDrafter, sequence: int, reading: Reading, known: Sequence[int], count: int
    ) -> list[int]:
        """The tokens known, and what a lookup finds behind them, up to `count` together."""
        position, room = len(reading.text), count - len(known)
        if room < 1:
            return list(known[:count])
        try:
            lookup.observe([Verdict(sequence, 0, position, (), tuple(known), (self.name,) * len(known))])
            drafts = lookup.propose([Turn(sequence, 0, position + len(known), room, room)])
        finally:
            lookup.rewind(sequence, position)
        return [*known, *(token for draft in drafts for token in draft.tokens)]

    @torch.no_grad()
    def _run(self, made: _Pass, reading: Reading, most: int) -> None:
        """The target's pass, with the copy before each fractal layer."""
        rows = made.rows()
        hidden = self.target.embed(rows.tokens)
        lo = 0
        for passed, layer in enumerate(self.layers, 1):
            hidden = self.target.layers(hidden, rows, lo, layer)
            lo = layer
            before = made.tokens
            self._choose(made, reading, self._finish(made, hidden, lo), most)
            right = agreeing(before, made.tokens)
            guessed = len(before) > made.known or len(before) == most - 1 or len(made.tokens) <= len(before)
            if guessed and right == min(len(before), len(made.tokens)) and not self.patient:
                return
            if self._lookup is not None:
                found = made.tokens[: right + 1]
                made.tokens = self._looked_up(self._lookup, made.sequence, reading, found, self.window + passed)
            del made.tokens[most - 1 :]
            if not made.tokens:
                return
            if not self.patient:
                made.known = right + 1
            rows = made.rows()
            hidden = self._embed(made, hidden, lo)
        made.known, made.computed = 0, made.computed + len(rows)
        self._choose(made, reading, self.target.finish(hidden, rows, lo, first=made.root), most)

    def _finish(self, made: _Pass, hidden: torch.Tensor, lo: int) -> Outputs:
        """What the copy's upper layers make of the rows behind which nothing is known yet. The keys and values of those
        before them are there: in the target's cache, or since the copy was here last."""
        first = made.root + made.known if made.known or not made.root else 0
        rows = made.rows(first)
        made.computed += len(rows)
        return self.model.finish(hidden[first:], rows, lo, first=made.root + made.known - first)

    def _embed(self, made: _Pass, hidden: torch.Tensor, hi: int) -> torch.Tensor:
        """The hidden states of the pass before a layer, with those of tokens that changed brought there by the copy.
        They see what is before them as the target has it; where the text is among the rows, as the copy has."""
        kept = made.root + max(1, made.known)
        first = kept if made.known or not made.root else 0
        rows = made.rows(first)
        guessed = self.model.layers(self.model.embed(rows.tokens), rows, 0, hi)
        return joined((hidden[:kept], guessed[kept - first :]))

    def _choose(self, made: _Pass, reading: Reading, outputs: Outputs, most: int) -> None:
        """What each row chooses behind the known tokens, given what the rows before it have just chosen; it ends at a
        NaN, and where nothing may follow."""
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


class FractalRecipe(DecoderRecipe):
    """In the model's own layers, so nothing speeds it up, and it drafts for the model alone."""

    def level(self, name: str, entry: DrafterEntry, options: dict[str, Any]) -> Level:
        """The level that these options ask for."""
        format = format_asked(name, {"format": "int8", **options})
        return Level(name, entry, options, MOST_DRAFT_TOKENS, format, is_copy=True)

    def found(self, level: Level, folder: Path) -> Level:
        """The level with what the number of the model's layers decides."""
        return embedded(level, read_config(folder).num_layers)

    def make(self, level: Level, context: Context) -> FractalDrafter:
        """The drafter."""
        loaded, common = self.loaded(level, context)
        return FractalDrafter(
            loaded.decoder,
            context.guessing,
            target=context.target,
            layers=level.options["layers"],
            window=level.options["w"],
            slots=level.options.get("slots", "lookup"),
            # for the rejection rule, too: whether a guess has settled depends on tokens behind those that are judged
            patient=context.faithful or context.independent,
            **common,
        )

    def expect_below(self, level: Level, above: Level, spec: str) -> None:
        """Refused."""
        raise DraftSpecError(
            f"draft {spec!r}: 'fractal' runs in the model's own layers, so it drafts for the model alone; leave "
            f"{above.name!r} out"
        )

    def expect_sped_up(self, level: Level, below: Level, spec: str) -> None:
        """Refused."""
        advice = "; slots=lookup starts from what lookup finds" if below.name == "lookup" else ""
        raise DraftSpecError(
            f"draft {spec!r}: 'fractal' guesses all its tokens at once and cannot be sped up by {below.name!r}{advice}"
        )


def embedded(level: Level, num_layers: int) -> Level:
    """A fractal level with what it leaves open: before a quarter of the layers, evenly spaced, and as many tokens in
    the window (FractalLLM, appendix D)."""
    n, layers = level.options.get("n"), level.options.get("layers")
    called = f"draft {level.name!r}"
    if layers is None:
        n = max(1, num_layers // 4) if n is None else n
        if n > num_layers:
            raise DraftSpecError(
                f"{called}: n is {n}, and the model has {num_layers} layers; give at most {num_layers}"
            )
        layers = tuple(num_layers * at // n - 1 for at in range(1, n + 1))
    elif list(layers) != sorted({at for at in layers if at < num_layers}):
        raise DraftSpecError(
            f"{called}: layers is {'+'.join(map(str, layers))}, expected numbers from 0 to {num_layers - 1}, ascending"
        )
    elif n not in (None, len(layers)):
        raise DraftSpecError(f"{called}: n is {n}, and layers names {len(layers)}; leave one of them out")
    window = level.options.get("w", len(layers))
    most = window + len(layers) + 1
    if most > MOST_DRAFT_TOKENS:
        raise DraftSpecError(
            f"{called} is to draft {most} tokens a round, expected at most {MOST_DRAFT_TOKENS}; give a smaller w"
        )
    return replace(
        level,
        options={**level.options, "n": len(layers), "layers": layers, "w": window},
        tokens=min(level.tokens, most),
    )


RECIPE = FractalRecipe()
