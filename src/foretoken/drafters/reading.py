"""What drafters with a decoder have in common, and a sequence as such a one has read it: its text, its keys and values,
and what chooses its tokens.

The keys and values lie in a cache of the drafter's own, which reads what the target has accepted and forgets what it
has not; or, where the drafter is a copy of the target, on a view of the target's cache, made anew each round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

import torch

from foretoken.acceptance.walk import agreeing
from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows, chain
from foretoken.decoder.views import Views
from foretoken.protocol.telemetry import Cost, Work
from foretoken.protocol.types import Distribution, Needs, Request, Turn, Verdict
from foretoken.sampling.sampler import MakeSampler, Sampler

_CHUNK = 256  # rows of a prompt read in one pass


class Reading:
    """One sequence. Where its text holds a token that the drafter's model lacks, there is no room for a draft."""

    def __init__(self, model: Decoder, request: Request, sampler: Sampler, views: Views | None = None) -> None:
        self.text: list[int] = []
        self.sampler = sampler
        self._unknown: list[int] = []  # where tokens stand that the model lacks
        self._model = model
        self._sequence = request.sequence
        self._prompt = len(request.prompt)
        self._views = views
        self._own = model.new_cache() if views is None else None
        self._extend(request.prompt)

    def read(self, stop: int, twin: Reading | None = None) -> list[Rows]:
        """Compute the keys and values of the text's first `stop` tokens, but never of its last, in a cache of one's
        own; or copy them from a `twin` that has read the same ones. Not where no room is left for a draft. Returns the
        passes that were made."""
        made: list[Rows] = []
        stop = min(stop, len(self.text) - 1)
        if self._own is None or self._own.length >= stop or not self.room():
            return made
        if twin is not None and twin._own is not None and not self._own.length:
            common = min(twin._own.length, agreeing(twin.text[:stop], self.text[:stop]))
            self._own = twin._own.copy(common)
        while self._own.length < stop:
            rows = chain(self._own, self.text[self._own.length : min(stop, self._own.length + _CHUNK)])
            self._model.forward(rows)
            self._own.commit(range(len(rows)), rows.writer)
            made.append(rows)
        return made

    def open(self) -> Cache:
        """A cache in which some of the text is committed, and nothing else; what is `pending` must be run first."""
        if self._own is None:
            assert self._views is not None
            return self._views.view(self._sequence, length=len(self.text) - 1)
        self._own.truncate(min(self._own.length, len(self.text) - 1))
        return self._own

    def pending(self, cache: Cache) -> list[int]:
        """The end of the text, of which a cache has no keys and values: at least the last token."""
        return self.text[cache.length :]

    def room(self) -> int:
        """How many tokens may follow in the model's context."""
        return 0 if self._unknown else max(0, self._model.config.context_length - len(self.text))

    def gain(self, tokens: Sequence[int]) -> None:
        """The text goes on with these."""
        self._extend(tokens)
        self.sampler.advance(tokens)

    def rewind(self, position: int) -> None:
        """Forget the text from a position on."""
        del self.text[position:]
        self._unknown = [at for at in self._unknown if at < position]
        if self._own is not None:
            self._own.truncate(min(self._own.length, position))
        self.sampler.rewind(position - self._prompt)

    def keep(self, length: int) -> None:
        """Of the keys and values committed in a cache of one's own, those of the first positions are the text's."""
        if self._own is not None:
            self._own.truncate(min(self._own.length, length))

    def keep_branch(self, slots: Sequence[int], writer: int) -> None:
        """Of the rows in the scratch of a cache of one's own, these are the text's."""
        if self._own is not None:
            self._own.commit(slots, writer)

    def _extend(self, tokens: Sequence[int]) -> None:
        size = self._model.config.vocab_size
        self._unknown += [at for at, token in enumerate(tokens, len(self.text)) if token >= size]
        self.text.extend(tokens)


@dataclass(eq=False)
class DecoderDrafter:
    """model: a decoder whose tokens are the target's. samplers: makes what chooses its tokens, for each request.

    views: where it drafts on views of the target's cache; else it has caches of its own. vocab_size: the target's,
    beyond which nothing is drafted. independent: it samples with noise of its own, and says what its tokens were drawn
    from, for the rejection rule.
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
    _twins: dict[int, int | None] = field(init=False, default_factory=dict)  # who has the same prompt, and came first

    def begin(self, requests: Sequence[Request]) -> None:
        """Nothing is read yet: the target reads the prompt first, and the drafter in its steps."""
        for request in requests:
            self._readings[request.sequence] = Reading(self.model, request, self.samplers(request), self.views)
            self._twins[request.sequence] = request.prompt_of

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        self._readings.pop(sequence, None)
        self._twins.pop(sequence, None)

    def read_along(self, verdicts: Sequence[Verdict]) -> list[Work]:
        """Read as much of the prompts as the target has."""
        return [
            work
            for verdict in verdicts
            if verdict.prompt_left
            for work in self._read(verdict.sequence, verdict.position - verdict.prompt_left)
        ]

    def opened(self, turn: Turn, count: int) -> Open | None:
        """A sequence ready for a draft of `count` tokens at most: all but the end of its text is read, or None."""
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
        """What a token is drawn from, at a row of the model's logits, float32 [V] without a NaN: float64, cut to the
        target's vocabulary. None where nobody asks: only the rejection rule does, and only when sampling."""
        if not self.independent or sampler.greedy:
            return None
        probs = sampler.probabilities(logits[: self.vocab_size])
        assert probs is not None
        return probs


@dataclass
class Open:
    """One sequence while it is drafted for. text: the end of what it holds, of which the cache has nothing yet. work:
    what has been done for it."""

    turn: Turn
    reading: Reading
    cache: Cache
    text: list[int]
    count: int
    work: list[Work] = field(default_factory=list)


def choose(sampler: Sampler, outputs: Outputs, row: int, vocab_size: int) -> int | None:
    """What the target would choose if a row of a drafter's logits were its own. None at a NaN."""
    logits = outputs.logits(row)
    if sampler.plain and len(logits) <= vocab_size:
        return outputs.choice(row)
    ranked = sampler.rank(logits[:vocab_size], 1)
    return ranked[0][0] if ranked is not None and ranked[0] else None


def log_probs(scores: Sequence[float], temperature: float, total: float | None = None) -> list[float]:
    """Logarithms of probabilities, from scores, best first. total: the logarithm of what all candidates come to at that
    temperature, of which these are the best; None: these are all."""
    scaled = [score / temperature for score in scores]
    if total is None:
        total = scaled[0] + math.log(math.fsum(math.exp(s - scaled[0]) for s in scaled))
    return [s - total for s in scaled]
