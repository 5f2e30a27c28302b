"""What passes of a model and its copies cost by their rows, and what rounds come to that are made of such passes."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from foretoken import kernels
from foretoken.bench.in_turn import TOKEN, seconds_of
from foretoken.bench.passes import read_prompt
from foretoken.bench.tuning.trials import COPY, TARGET, Trace
from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # that are measured; between them costs are interpolated
STEPS = 4  # tokens of a chain that is drafted in one call

Seconds = Mapping[int, float]  # by rows
Timed = tuple[Trace, Sequence[float]]  # what a draft did, and the seconds of each of its rounds


@dataclass(frozen=True)
class PassCosts:
    """A decoder's seconds by rows: of all its layers, and of the logits with their choices; `step`: of one token of a
    chain that is drafted in one call."""

    layers: Seconds
    head: Seconds
    step: float

    def part(self, rows: int, share: float) -> float:
        """Some share of the layers."""
        return share * at(self.layers, rows)

    def whole(self, rows: int) -> float:
        """A pass."""
        return at(self.layers, rows) + at(self.head, rows)

    def scaled(self, factor: float) -> PassCosts:
        """Where everything takes so many times as long."""
        layers, head = ({rows: factor * each for rows, each in its.items()} for its in (self.layers, self.head))
        return PassCosts(layers, head, factor * self.step)


@dataclass(frozen=True)
class Costs:
    """Of the model and of its copies by format, behind a text of `prefix` tokens. What costs seconds besides passes: a
    `round` of the engine, a `guess` of a fractal draft, a `draft` of a chain."""

    num_layers: int
    prefix: int
    target: PassCosts
    copies: Mapping[str, PassCosts]
    round: float = 0.0
    guess: float = 0.0
    draft: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record."""
        return asdict(self)

    def plain(self) -> float:
        """Tokens a second of plain decoding."""
        return 1 / (self.target.whole(1) + self.round)

    def lookup(self, trace: Trace) -> float:
        """Tokens a second of a draft that costs nothing."""
        return self._speed(trace, 0.0)

    def chain(self, format: str, trace: Trace) -> float:
        """Tokens a second where a copy drafts one token after the other."""
        return self._speed(trace, sum(self.copies[format].step * d + self.draft for d, _, _ in trace.rounds if d))

    def fractal(self, format: str, trace: Trace) -> float:
        """Tokens a second of a fractal draft whose copy is in a format."""
        return self._speed(trace, self._ran(format, trace) + self.guess * trace.guesses)

    def with_rest(self, plain: Timed, fractal: Timed, chain: Timed, format: str) -> Costs:
        """With what rounds that were timed took besides their passes: it is what Python does, and much where a model is
        small. Where plain rounds took less than the pass that they consist of, every pass is taken to cost less by as
        much: passes timed in turn find nothing of a small model in the processor's caches."""
        made = self
        if plain[1] and sum(plain[1]) < self._checking(plain[0]):
            made = self._scaled(sum(plain[1]) / self._checking(plain[0]))
        made = replace(made, round=made._rest(plain, 0.0, len(plain[1])))
        guess = made._rest(fractal, made._ran(format, fractal[0]), fractal[0].guesses)
        drafts = [drafted for drafted, _, _ in chain[0].rounds if drafted]
        draft = made._rest(chain, sum(drafts) * made.copies[format].step, len(drafts))
        return replace(made, guess=guess, draft=draft)

    def _scaled(self, factor: float) -> Costs:
        copies = {format: costs.scaled(factor) for format, costs in self.copies.items()}
        return replace(self, target=self.target.scaled(factor), copies=copies)

    def _rest(self, timed: Timed, drafting: float, count: int) -> float:
        trace, seconds = timed
        return max(0.0, (sum(seconds) - drafting - self._checking(trace)) / count) if count else 0.0

    def _speed(self, trace: Trace, drafting: float) -> float:
        return trace.tokens / (drafting + self._checking(trace)) if trace.rounds else 0.0

    def _checking(self, trace: Trace) -> float:
        return sum(self.target.whole(1 + drafted) + self.round for drafted, _, _ in trace.rounds)

    def _ran(self, format: str, trace: Trace) -> float:
        """Seconds of what fractal drafts ran."""
        decoders = {TARGET: self.target, COPY: self.copies[format]}
        return sum(
            each.times
            * (
                decoders[each.decoder].part(each.rows, each.layers / self.num_layers)
                + at(decoders[each.decoder].head, each.logits)
            )
            for each in trace.ran
        )


def at(seconds: Seconds, rows: int) -> float:
    """Of so many rows: measured, or on the line between the two nearest that were; beyond the last, on that line."""
    if rows < 1:
        return 0.0
    if rows in seconds:
        return seconds[rows]
    known = sorted(seconds)
    if len(known) == 1:
        return seconds[known[0]]
    high = min(max(bisect.bisect(known, rows), 1), len(known) - 1)
    one, other = known[high - 1], known[high]
    return seconds[one] + (rows - one) / (other - one) * (seconds[other] - seconds[one])


def rising(seconds: Seconds) -> dict[int, float]:
    """Without what something else on the machine added: fewer rows never cost more than more rows do."""
    least, found = float("inf"), {}
    for rows in sorted(seconds, reverse=True):
        least = found[rows] = min(least, seconds[rows])
    return dict(sorted(found.items()))


def measure(target: Decoder, copies: Mapping[str, Decoder], *, prefix: int, most: int, rounds: int = 5) -> Costs:
    """Measure passes, all in turn. prefix: tokens of text before them; most: rows that a pass may have. What
    costs besides passes is left at 0."""
    decoders = {TARGET: target, **copies}
    rows = [count for count in ROWS if count < most] + [most]
    runs: dict[str, Callable[[], object]] = {}
    for name, decoder in decoders.items():
        for part, run in _runs(decoder, prefix, rows):
            runs[f"{name} {part}"] = run
    seconds = seconds_of(runs, rounds)
    made = {
        name: PassCosts(
            rising({count: seconds[f"{name} layers {count}"] for count in rows}),
            rising({count: seconds[f"{name} head {count}"] for count in rows}),
            seconds[f"{name} steps"] / STEPS,
        )
        for name in decoders
    }
    return Costs(target.config.num_layers, prefix, made.pop(TARGET), made)


def _runs(decoder: Decoder, prefix: int, rows: Sequence[int]) -> Iterator[tuple[str, Callable[[], object]]]:
    cache = read_prompt(decoder, prefix)
    for count in rows:
        yield f"layers {count}", partial(_layers, decoder, cache, count)
        yield f"head {count}", partial(_head, decoder, count)
    yield "steps", partial(_steps, decoder, cache)


def _layers(decoder: Decoder, cache: Cache, count: int) -> None:
    decoder.layers(decoder.embed([TOKEN] * count), chain(cache, [TOKEN] * count))
    cache.discard()


def _head(decoder: Decoder, count: int) -> None:
    for logits in decoder.head(decoder.embed([TOKEN] * count)):
        kernels.argmax(logits)


def _steps(decoder: Decoder, cache: Cache) -> None:
    decoder.draft_chain(cache, TOKEN, STEPS)
    cache.discard()
