"""The base of drafters with a decoder, and a sequence as such a drafter has read it: text, keys and values, sampler.

The keys and values lie in a cache of the drafter's own, which keeps the tokens that the target has accepted and drops
the others. If the drafter is a copy of the target, they lie on a view of the target's cache, made anew each round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

import torch

from foretoken.acceptance.walk import agreeing
from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Kept, KeptCaches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows, chain
from foretoken.decoder.views import Views
from foretoken.protocol.telemetry import Cost, Work
from foretoken.protocol.types import Distribution, Needs, Request, Turn, Verdict
from foretoken.sampling.sampler import MakeSampler, Sampler

_CHUNK = 512  # rows of a prompt read in one pass


class Reading:
    """One sequence as a drafting decoder has read it. If its text has a token that the drafter's model lacks, there is
    no room for a draft. views: of the target's caches; None: the sequence has a cache of its own.

    seen: of the own cache, so many positions from 0 on hold keys and values that are not the drafter's own, but of what
    an observer has seen (`foretoken.drafters.mixture`).
    """

    def __init__(self, model: Decoder, request: Request, sampler: Sampler, views: Views | None = None) -> None:
        self.text: list[int] = []
        self.sampler = sampler
        self._unknown: list[int] = []  # positions of tokens that the model lacks
        self._model = model
        self._sequence = request.sequence
        self._prompt = len(request.prompt)
        self._views = views
        self._own = model.new_cache() if views is None else None
        self.seen = 0
        self._extend(request.prompt)

    def read(self, stop: int, twin: Reading | None = None) -> list[Rows]:
        """Compute the keys and values of the text's first `stop` tokens, but never of its last, in the reading's own
        cache. Those that a `twin` has read already are copied. Does nothing on a view, or if no room is left for a
        draft. Returns the rows of the passes that were made."""
        made: list[Rows] = []
        stop = min(stop, len(self.text) - 1)
        if self._own is None or self._own.length >= self._held(stop) or not self.room():
            return made
        self.borrow(stop, twin)
        while self._own.length < self._held(stop):
            at = self._model.skips + self._own.length
            rows = chain(self._own, self.text[at : min(stop, at + _CHUNK)])
            self._model.forward(rows)
            self._own.commit(range(len(rows)), rows.writer)
            made.append(rows)
        return made

    def borrow(self, stop: int, twin: Reading | None) -> None:
        """Copy what a `twin` has read of the text's first `stop` tokens, if nothing was read of it here."""
        if twin is not None and twin._own is not None and self._own is not None and not self._own.length:
            common = min(twin._own.length, self._held(agreeing(twin.text[:stop], self.text[:stop])))
            self._own, self.seen = twin._own.copy(common), min(twin.seen, common)

    def take_over(self, kept: Kept[int]) -> None:
        """Begin with the cache that a conversation has left."""
        self._own, self.seen = kept.cache, min(kept.more, kept.cache.length)

    def leave(self, conversation: int, to: KeptCaches[int]) -> None:
        """Leave the own cache, if there is one, to the next request of a conversation."""
        assert not self._model.skips  # conversations count positions as tokens
        if self._own is not None and not self._unknown:
            to.put(conversation, self._own, self.text, self.seen)
            self._own = None

    def open(self) -> Cache:
        """A cache in which only tokens of the text are committed. The `pending` tokens must be run first."""
        if self._own is None:
            assert self._views is not None
            view = self._views.view(self._sequence, length=len(self.text) - 1)
            self._model.code_places(view)  # here, where no clock runs: what a pass takes is learned from
            return view
        self.keep(len(self.text) - 1)
        return self._own

    def pending(self, cache: Cache) -> list[int]:
        """The end of the text for which a cache has no keys and values: at least the last token."""
        return self.text[self._model.skips + cache.length :]

    def room(self) -> int:
        """How many more tokens the model's context can hold."""
        return 0 if self._unknown else max(0, self._model.config.context_length - len(self.text))

    def gain(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        self._extend(tokens)
        self.sampler.advance(tokens)

    def rewind(self, position: int) -> None:
        """Forget the text from a position on."""
        del self.text[position:]
        self._unknown = [at for at in self._unknown if at < position]
        self.keep(position)
        self.seen = min(self.seen, position)
        self.sampler.rewind(position - self._prompt)

    def keep(self, length: int) -> None:
        """Keep what the own cache has committed of the text's first `length` tokens, and drop the rest."""
        if self._own is not None:
            self._own.truncate(min(self._own.length, self._held(length)))

    def keep_branch(self, slots: Sequence[int], writer: int) -> None:
        """Commit rows from the scratch of the own cache: they are the text's."""
        if self._own is not None:
            self._own.commit(slots, writer)

    def _held(self, tokens: int) -> int:
        """How many positions a cache has for the first `tokens` tokens of the text."""
        return max(0, tokens - self._model.skips)

    def _extend(self, tokens: Sequence[int]) -> None:
        size = self._model.config.vocab_size
        self._unknown += [at for at, token in enumerate(tokens, len(self.text)) if token >= size]
        self.text.extend(tokens)


@dataclass(eq=False)
class DecoderDrafter:
    """The base of drafters with a decoder.

    model: the decoder; its token ids mean the same as the target's. samplers: makes the sampler of a request. name: the
    level's name. vocab_size: the target's; tokens beyond it are never drafted. views: of the target's caches, on which
    it drafts; None: it has caches of its own. independent: for the rejection rule, it samples with noise of its own and
    reports the distributions from which its tokens were drawn.
    """

    needs = Needs()

    model: Decoder
    samplers: MakeSampler
    _: KW_ONLY
    name: str
    vocab_size: int
    views: Views | None = None
    independent: bool = False
    _readings: dict[int, Reading] = field(init=False, default_factory=dict)  # by sequence
    _twins: dict[int, int | None] = field(init=False, default_factory=dict)  # the first sequence with the same prompt
    _talks: dict[int, int] = field(init=False, default_factory=dict)  # by sequence: its conversation
    _kept: KeptCaches[int] = field(init=False, default_factory=KeptCaches)

    def begin(self, requests: Sequence[Request]) -> None:
        """Take new sequences on. Nothing is read yet: the drafter reads a prompt after the target, chunk by chunk."""
        for request in requests:
            self._readings[request.sequence] = Reading(self.model, request, self.samplers(request), self.views)
            self._twins[request.sequence] = request.prompt_of
            if request.conversation is not None and self.views is None:
                self._talks[request.sequence] = request.conversation
                kept = self._kept.take(request.conversation, request.prompt)
                if kept is not None:
                    self._readings[request.sequence].take_over(kept)

    def end(self, sequence: int) -> None:
        """Forget a sequence. What was read of a conversation is kept for its next turn."""
        reading, talk = self._readings.pop(sequence, None), self._talks.pop(sequence, None)
        if reading is not None and talk is not None:
            reading.leave(talk, self._kept)
        self._twins.pop(sequence, None)

    def forget(self, conversation: int) -> None:
        """Free what is kept of a conversation, if anything is."""
        self._kept.forget(conversation)

    def read_along(self, verdicts: Sequence[Verdict]) -> list[Work]:
        """Read as much of the prompts as the target has read."""
        return [
            work
            for verdict in verdicts
            if verdict.prompt_left
            for work in self._read(verdict.sequence, verdict.position - verdict.prompt_left)
        ]

    def opened(self, turn: Turn, count: int) -> Open | None:
        """A sequence ready for a draft of at most `count` tokens, read but for the end of its text. None if there is no
        room for a draft."""
        reading = self._readings[turn.sequence]
        count = min(count, reading.room())
        if count < 1:
            return None
        cache = reading.open()
        work: list[Work] = []
        if len(reading.text) - cache.length > _CHUNK:
            work = self._read(turn.sequence, len(reading.text) - 1)
            cache = reading.open()
        return Open(turn, reading, cache, reading.pending(cache), count, work)

    def _read(self, sequence: int, stop: int) -> list[Work]:
        began, twin = time.perf_counter(), self._twins[sequence]
        made = self._readings[sequence].read(stop, None if twin is None else self._readings.get(twin))
        if not made:
            return []
        cost = {self.name: sum((rows.cost for rows in made), Cost())}
        seconds = time.perf_counter() - began
        return [Work(self.name, sum(map(len, made)), began, seconds, passes=len(made), cost=cost)]

    def drawn_from(self, sampler: Sampler, logits: torch.Tensor) -> Distribution | None:
        """The distribution from which a token is drawn: float64, cut to the target's vocabulary. None unless the
        rejection rule needs it, which it does only when sampling. logits: a row of the model's, float32 [V], without a
        NaN."""
        if not self.independent or sampler.greedy:
            return None
        probs = sampler.probabilities(logits[: self.vocab_size])
        assert probs is not None
        return probs


@dataclass
class Open:
    """One sequence while it is drafted for. text: the end of its text, which the cache does not hold yet. count: the
    most tokens to draft. work: the work done for it so far."""

    turn: Turn
    reading: Reading
    cache: Cache
    text: list[int]
    count: int
    work: list[Work] = field(default_factory=list)


def choose(sampler: Sampler, outputs: Outputs, row: int, vocab_size: int) -> int | None:
    """The token that the target would choose if a row of a drafter's logits were its own. None at a NaN, or if no token
    may follow."""
    logits = outputs.logits(row)
    if sampler.plain and len(logits) <= vocab_size:
        return outputs.choice(row)
    ranked = sampler.rank(logits[:vocab_size], 1)
    return ranked[0][0] if ranked is not None and ranked[0] else None


def log_probs(scores: Sequence[float], temperature: float, total: float | None = None) -> list[float]:
    """The log probabilities of some candidates at a temperature. scores: best first. total: the logarithm of the sum
    over all candidates, where there are more; None: they are normalised among themselves."""
    scaled = [score / temperature for score in scores]
    if total is None:
        total = scaled[0] + math.log(math.fsum(math.exp(s - scaled[0]) for s in scaled))
    return [s - total for s in scaled]
