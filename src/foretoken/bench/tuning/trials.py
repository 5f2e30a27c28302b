"""What drafts do on prompts: how much is drafted and accepted, in passes of how many rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from foretoken.bench.decode import ask
from foretoken.bench.generations import Generation
from foretoken.bench.suites import Prompt
from foretoken.bench.target import Target
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows
from foretoken.results.completion import Completion
from foretoken.settings.generate import GenerateSettings

TARGET, COPY = "target", "copy"  # who runs a part of a pass


class Ran(NamedTuple):
    """A part of a pass, of TARGET or COPY, and how many times it ran: so many rows through so many
    layers, and logits of so many rows."""

    decoder: str
    rows: int
    layers: int
    logits: int
    times: int


@dataclass(frozen=True)
class Trace:
    """What a draft did: drafted, accepted and new tokens of each check; and what fractal drafts ran. The same each
    time, but for the `seconds` that all rounds took.

    differing: tokens that are not plain decoding's. promise: the least of the completions'.
    """

    rounds: tuple[tuple[int, ...], ...]
    ran: tuple[Ran, ...] = ()
    differing: int = 0
    promise: str = "exact"
    seconds: float = 0.0

    @property
    def guesses(self) -> int:
        """Of fractal drafts: how often tokens were chosen."""
        return sum(each.times for each in self.ran if each.logits)

    @property
    def tokens(self) -> int:
        """That the checks gained."""
        return sum(new for _, _, new in self.rounds)

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record, where `accepted` are the draft tokens of a check, on average."""
        counts = {"tokens": self.tokens, "differing": self.differing, "rounds": self.rounds, "ran": self.ran}
        return {"accepted": accepted_a_round(self.rounds), **counts}


def accepted_a_round(rounds: Sequence[Sequence[int]]) -> float:
    """Draft tokens that a check accepted, on average."""
    return sum(accepted for _, accepted, _ in rounds) / max(1, len(rounds))


@dataclass
class Trials:
    """A model, and drafts that are tried on prompts with it."""

    target: Target
    prompts: Sequence[Prompt]
    new_tokens: int
    _truth: dict[str, list[Completion]] = field(default_factory=dict)

    def how(self, number: int) -> GenerateSettings:
        """How a prompt is decoded: greedily, with what each round did."""
        return GenerateSettings(max_new_tokens=self.new_tokens, seed=number, keep_rounds=True)

    def truth(self, prompt: Prompt, number: int) -> list[Completion]:
        """What plain decoding says; decoded once."""
        if prompt.id not in self._truth:
            self._truth[prompt.id] = ask(self.target.plain, prompt, self.how(number))
        return self._truth[prompt.id]

    def trace(self, draft: str, count: int | None = None) -> Trace:
        """What a draft does on the prompts, or on the first so many of them."""
        model: Any = self.target.model(draft)
        ran: Counter[tuple[str, int, int, int]] = Counter()
        if draft.startswith("fractal"):
            model.drafter.target = _Noted(model.drafter.target, TARGET, ran)
            model.drafter.model = _Noted(model.drafter.model, COPY, ran)
        made = [
            Generation.of(ask(model, each, self.how(at)), self.truth(each, at), method=draft, prompt=each.id)
            for at, each in enumerate(self.prompts[:count])
        ]
        return Trace(
            tuple(each for generation in made for each in generation.rounds),
            tuple(Ran(*each, times) for each, times in sorted(ran.items())),
            sum(generation.differing for generation in made),
            min(generation.promise for generation in made),
            sum(generation.decode_seconds for generation in made),
        )


class _Noted:
    """A decoder that notes what a drafter runs of it."""

    def __init__(self, decoder: Decoder, name: str, ran: Counter[tuple[str, int, int, int]]) -> None:
        self._decoder, self._name, self._ran = decoder, name, ran

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def layers(self, hidden: torch.Tensor, rows: Rows, lo: int = 0, hi: int | None = None) -> torch.Tensor:
        hi = self._decoder.config.num_layers if hi is None else hi
        if hi > lo:
            self._ran[self._name, len(rows), hi - lo, 0] += 1
        return self._decoder.layers(hidden, rows, lo, hi)

    def finish(self, hidden: torch.Tensor, rows: Rows, lo: int = 0, *, first: int = 0) -> Outputs:
        self._ran[self._name, len(rows), self._decoder.config.num_layers - lo, len(rows) - first] += 1
        return self._decoder.finish(hidden, rows, lo, first=first)
