"""What passes of a model and its copies cost by their rows, and what rounds come to that are made of such passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretoken.bench.tuning.trials import COPY, TARGET, Trace
from foretoken.decoder.decoder import Decoder
from foretoken.prices import measuring as prices
from foretoken.prices.measuring import ROWS
from foretoken.prices.price import PassPrice

Timed = tuple[Trace, Sequence[float]]  # what a draft did, and the seconds of each of its rounds


@dataclass(frozen=True)
class Costs:
    """Of the model and of its copies by format, behind a text of `prefix` tokens. What costs seconds besides passes: a
    `round` of the engine, a `guess` of a fractal draft, a `draft` of a chain."""

    num_layers: int
    prefix: int
    target: PassPrice
    copies: Mapping[str, PassPrice]
    round: float = 0.0
    guess: float = 0.0
    draft: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record."""
        return {
            "num_layers": self.num_layers,
            "prefix": self.prefix,
            "target": _to_json(self.target),
            "copies": {format: _to_json(price) for format, price in self.copies.items()},
            "round": self.round,
            "guess": self.guess,
            "draft": self.draft,
        }

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
        copies = {format: price.times(factor) for format, price in self.copies.items()}
        return replace(self, target=self.target.times(factor), copies=copies)

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
                + decoders[each.decoder].head.of(each.logits)
            )
            for each in trace.ran
        )


def measure(target: Decoder, copies: Mapping[str, Decoder], *, prefix: int, most: int, rounds: int = 5) -> Costs:
    """Measure passes, all in turn. prefix: tokens of text before them; most: rows that a pass may have. What
    costs besides passes is left at 0."""
    rows = [count for count in ROWS if count < most] + [most]
    made = prices.measure({TARGET: target, **copies}, prefix=prefix, rows=rows, rounds=rounds)
    return Costs(target.config.num_layers, prefix, made.pop(TARGET), made)


def _to_json(price: PassPrice) -> dict[str, Any]:
    return {"layers": dict(price.layers.seconds), "head": dict(price.head.seconds), "step": price.step}
