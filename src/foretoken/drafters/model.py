"""A decoder drafts a chain, token by token; what drafts for it in turn makes that faster, to any depth.

A small model of the same family, a copy of the target, every level of a ladder: all are this class. With an `inner`
drafter, the decoder checks what that one guesses of its own tokens, several in one pass, as the target will check what
comes out; so the chain is the same with it and without.

When sampling, the decoder throws the target's dice over its own logits (docs/lossless.md): its tokens are what the
target would choose if it had those logits.

Source: ML-SpecQD (Georganas et al. 2025), sections III-A and III-C; Leviathan et al. 2023 for the chain.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from foretoken.acceptance.walk import NOTHING, agreeing, walk
from foretoken.decoder.cache import Cache, new_writer
from foretoken.decoder.caches import Caches
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows, chain
from foretoken.drafters.reading import DecoderDrafter, Reading, choose
from foretoken.trees.tree import clip
from foretoken.types import TARGET, Distribution, Draft, Drafter, Request, Turn, Verdict, Work


@dataclass
class _Chain:
    """A chain while it grows: at `position` the first token stands. `distributions`, if they are asked for."""

    position: int
    tokens: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    distributions: dict[int, Distribution] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class ModelDrafter(DecoderDrafter):
    """A decoder that drafts a chain. tokens: the most of a draft, however many a turn allows. inner: what drafts for it
    in turn, if anything does; inner_tokens: the most that is asked of that at once. opened: where the caches that it
    checks on can be found, for an `inner` that drafts on views of them."""

    tokens: int
    inner: Drafter | None = None
    inner_tokens: int = 0
    opened: Caches | None = None
    _chains: dict[int, _Chain] = field(init=False, default_factory=dict)  # by sequence
    _checks: int = field(init=False, default=0)  # rounds between this level and the one below it

    def begin(self, requests: Sequence[Request]) -> None:
        """Read the prompts."""
        super().begin(requests)
        if self.inner is not None:
            self.inner.begin(requests)

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        """For each turn a chain."""
        return [self._propose(turn) for turn in turns]

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """Keep of the chains what was right, and tell the level below what was not."""
        for verdict in verdicts:
            reading = self._readings[verdict.sequence]
            guessed = self._chains.pop(verdict.sequence, _Chain(verdict.position)).tokens
            right = agreeing(guessed, verdict.tokens)
            reading.gain(verdict.tokens)
            reading.keep(verdict.position + right)
            if self.inner is not None:
                self._tell(self.inner, verdict, guessed, right)

    def rewind(self, sequence: int, position: int) -> None:
        """Forget tokens that the level above had guessed wrongly."""
        self._chains.pop(sequence, None)
        self._readings[sequence].rewind(position)
        if self.inner is not None:
            self.inner.rewind(sequence, position)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        self._readings.pop(sequence, None)
        self._chains.pop(sequence, None)
        if self.inner is not None:
            self.inner.end(sequence)

    def _propose(self, turn: Turn) -> Draft:
        reading = self._readings[turn.sequence]
        grown = self._chains[turn.sequence] = _Chain(turn.position)
        count = min(turn.rows, turn.depth, self.tokens, reading.room())
        if count > 0:
            step = reading.sampler.step
            try:
                if self.inner is None:
                    self._alone(reading, grown, count)
                else:
                    self._lending(self.inner, turn.sequence, reading, grown, count)
            finally:
                reading.sampler.rewind(step)
        return turn.chain(grown.tokens, grown.origins, tuple(grown.work), grown.distributions or None)

    def _alone(self, reading: Reading, grown: _Chain, count: int) -> None:
        began = time.perf_counter()
        cache, writer = reading.open(), new_writer()
        pending = reading.pending(cache)
        rows = len(pending)
        outputs = self.model.run(chain(cache, pending, writer=writer))
        token = self._next(reading, grown, outputs, rows - 1)
        if reading.sampler.plain and self.model.config.valid_vocab_size <= self.vocab_size and token is not None:
            followed = self.model.draft_chain(cache, token, count - 1, writer=writer)
            grown.tokens += followed  # fewer at a NaN, which is the chain's end
            rows += len(followed)
            token = None
        while token is not None and len(grown.tokens) < count:
            outputs = self.model.run(chain(cache, [token], writer=writer))
            rows += 1
            token = self._next(reading, grown, outputs, 0)
        cache.commit(range(rows), writer)
        grown.origins += [self.name] * len(grown.tokens)
        seconds, passes = time.perf_counter() - began, 1 + rows - len(pending)
        grown.work.append(Work(self.name, rows, began, seconds, draft_tokens=len(grown.tokens), passes=passes))

    def _lending(self, inner: Drafter, sequence: int, reading: Reading, grown: _Chain, count: int) -> None:
        """While it checks, the level below may look at what it checks on."""
        cache = reading.open()
        if self.opened is None:
            self._checking(inner, sequence, reading, cache, grown, count)
            return
        self.opened.open(sequence, cache)
        try:
            self._checking(inner, sequence, reading, cache, grown, count)
        finally:
            self.opened.close(sequence)

    def _checking(
        self, inner: Drafter, sequence: int, reading: Reading, cache: Cache, grown: _Chain, count: int
    ) -> None:
        """What the level below guesses is checked as the target checks: a pass, a walk, a commit."""
        pending = reading.pending(cache)
        if len(pending) > 1:  # all but the last, which is the root of what the level below drafts
            began = time.perf_counter()
            rows = chain(cache, pending[:-1])
            self.model.forward(rows)
            cache.commit(range(len(rows)), rows.writer)
            grown.work.append(Work(self.name, len(rows), began, time.perf_counter() - began, passes=1))
        while len(grown.tokens) < count:
            verdict = self._check(reading, cache, grown, self._below(inner, sequence, grown, count))
            if verdict.tokens:
                inner.observe([verdict])
            if len(verdict.tokens) == len(verdict.accepted):  # no token of its own: at a NaN, or nothing may follow
                return

    def _below(self, inner: Drafter, sequence: int, grown: _Chain, count: int) -> Draft:
        """What the level below guesses next, within its own number of tokens and what is left."""
        self._checks += 1
        depth = min(self.inner_tokens, count - len(grown.tokens) - 1)  # the last is this level's own
        turn = Turn(
            sequence, self._checks, grown.position + len(grown.tokens), self.inner_tokens if depth else 0, depth
        )
        for draft in inner.propose([turn]) if depth else ():
            if (draft.sequence, draft.round, draft.position) == (sequence, turn.round, turn.position):
                return clip(draft, turn.rows, depth, min(self.vocab_size, self.model.config.vocab_size))
        return turn.chain((), "")

    def _check(self, reading: Reading, cache: Cache, grown: _Chain, draft: Draft) -> Verdict:
        began = time.perf_counter()
        first = len(grown.tokens)
        root = (grown.tokens or reading.text)[-1]
        rows = Rows([(cache, (root, *draft.tokens), (-1, *(parent + 1 for parent in draft.parents)))])
        outputs = self.model.run(rows)

        def choose_next(i: int) -> int:
            token = self._next(reading, grown, outputs, i + 1)
            return NOTHING if token is None else token

        accepted, _ = walk(draft.tokens, draft.parents, choose_next)
        gained = tuple(grown.tokens[first:])
        cache.commit([0, *(i + 1 for i in accepted)][: len(gained)], rows.writer)
        origins = [draft.origins[i] for i in accepted]
        grown.origins += [*origins, self.name][: len(gained)]
        seconds = time.perf_counter() - began
        grown.work += draft.work
        grown.work.append(Work(self.name, len(rows), began, seconds, len(gained), len(draft), len(accepted), passes=1))
        told = (*origins, TARGET)[: len(gained)]
        return Verdict(draft.sequence, draft.round, draft.position, tuple(accepted), gained, told)

    def _next(self, reading: Reading, grown: _Chain, outputs: Outputs, row: int) -> int | None:
        """The chain's next token; None at a NaN."""
        sampler = reading.sampler
        token = choose(sampler, outputs, row, self.vocab_size)
        if token is None:
            return None
        drawn = self.drawn_from(sampler, outputs.logits[row])
        if drawn is not None:
            grown.distributions[len(grown.tokens) - 1] = drawn
        sampler.advance([token])
        grown.tokens.append(token)
        return token

    def _tell(self, inner: Drafter, verdict: Verdict, guessed: Sequence[int], right: int) -> None:
        """The level below has heard all that was guessed."""
        if right < len(guessed):
            inner.rewind(verdict.sequence, verdict.position + right)
        if right < len(verdict.tokens):
            self._checks += 1
            tokens, origins = verdict.tokens[right:], verdict.origins[right:]
            inner.observe([Verdict(verdict.sequence, self._checks, verdict.position + right, (), tokens, origins)])
