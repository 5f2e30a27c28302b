"""Where fractal layers should stand: one after the other, each where it gains most, until none gains anything.

The order in which layers are tried is spread over the model, so that a search that runs out of time has seen all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, NamedTuple

from foretoken.settings.load import MOST_DRAFT_TOKENS


class OutOfTimeError(Exception):
    """What comes next would not end in time. Never leaves `foretoken.bench.tuning`."""


class Budget:
    """Seconds from now on, of which the last `reserve` are kept for what has to come at the end."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.reserve = 0.0
        self._began = perf_counter()

    @property
    def used(self) -> float:
        """Seconds since it began."""
        return perf_counter() - self._began

    def expect(self, seconds: float, *, share: float = 1.0) -> None:
        """Refuse what would not be done within a share of what is not kept. Raises OutOfTimeError."""
        if self.used + seconds > share * (self.seconds - self.reserve):
            raise OutOfTimeError


@dataclass(frozen=True)
class Placement:
    """A fractal draft with nothing left open: before which layers, ascending; the window's tokens; format and slots."""

    layers: tuple[int, ...]
    window: int
    format: str
    slots: str

    @property
    def draft(self) -> str:
        """As `--draft` takes it."""
        layers = "+".join(map(str, self.layers))
        return f"fractal:layers={layers}:w={self.window}:format={self.format}:slots={self.slots}"

    def also_before(self, layer: int) -> Placement:
        """With one more layer."""
        return replace(self, layers=tuple(sorted((*self.layers, layer))))

    @property
    def fits(self) -> bool:
        """Whether a round may have that many draft tokens."""
        return self.window + len(self.layers) + 1 <= MOST_DRAFT_TOKENS


class Tried(NamedTuple):
    """A placement, with its tokens a second."""

    placement: Placement
    speed: float


@dataclass
class Step:
    """What was varied ("layer", "window", "format" or "slots") with n layers, and each placement that was tried.
    left: how many were not, because time ran out."""

    n: int
    varied: str
    tried: list[Tried] = field(default_factory=list)
    left: int = 0


def best_of(tried: Iterable[Tried]) -> Tried | None:
    """The fastest; of equals the first. None of none."""
    return max(tried, key=lambda each: each.speed, default=None)


def spread(count: int) -> list[int]:
    """0 to count - 1, such that what comes first is spread evenly: the middle, the quarters, the eighths."""
    order: dict[int, None] = {}
    parts = 2
    while len(order) < count:
        places = (count * k // parts for k in range(1, parts, 2)) if parts <= 2 * count else range(count)
        order.update(dict.fromkeys(places))
        parts *= 2
    return list(order)


def search(num_layers: int, choices: Mapping[str, Sequence[Any]], judge: Callable[[Placement], float]) -> list[Step]:
    """Greedy forward selection, step by step. choices: of windows, formats and slots, beginning with the first of each.
    `judge` gives a placement's tokens a second; where it raises OutOfTimeError, the search ends with what it has.

    For each number of layers: where the next one is best, and, standing there, which window, format and slots are. The
    last number of layers is the first that is not faster than the one before.
    """
    steps: list[Step] = []
    known: dict[Placement, float] = {}

    def vary(n: int, varied: str, placements: Iterable[Placement]) -> Tried | None:
        fitting = [each for each in placements if each.fits]
        step = Step(n, varied, left=len(fitting))
        steps.append(step)
        for placement in fitting:
            if placement not in known:
                known[placement] = judge(placement)
            step.left -= 1
            step.tried.append(Tried(placement, known[placement]))
        return best_of(step.tried)

    base = Placement((), **{name: values[0] for name, values in choices.items()})
    fastest = 0.0
    try:
        for n in range(1, num_layers + 1):
            layers = [base.also_before(at) for at in spread(num_layers) if at not in base.layers]
            here = vary(n, "layer", layers)
            for name, values in choices.items():
                if here is not None and len(values) > 1:
                    here = vary(n, name, [replace(here.placement, **{name: value}) for value in values]) or here
            if here is None or here.speed <= fastest:
                break
            base, fastest = here
    except OutOfTimeError:
        pass
    return steps
