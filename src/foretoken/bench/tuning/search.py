"""Where fractal layers should stand: one after the other, each where it gains most, until none gains anything.

The order in which layers are tried is spread over the model, so that a search that runs out of time has seen all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from foretoken.bench.tuning.budget import OutOfTimeError
from foretoken.settings.load import MOST_DRAFT_TOKENS


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


@dataclass(frozen=True)
class Space:
    """What may be chosen. The search begins with the first window, format and slots of each list."""

    num_layers: int
    windows: Sequence[int]
    formats: Sequence[str]
    slots: Sequence[str]


@dataclass
class Step:
    """What was varied ("layer", "window", "format" or "slots") with n layers, each placement that was `tried` with its
    tokens a second, and which was the best; None if time ran out before the first. left: how many were not tried."""

    n: int
    varied: str
    tried: list[tuple[Placement, float]] = field(default_factory=list)
    left: int = 0

    @property
    def best(self) -> tuple[Placement, float] | None:
        """The fastest; of equals the first."""
        return max(self.tried, key=lambda each: each[1], default=None)


@dataclass
class Found:
    """All steps, the fastest placement with its tokens a second, and whether the search came to its end."""

    steps: list[Step] = field(default_factory=list)
    best: tuple[Placement, float] | None = None
    ended: bool = False


def spread(count: int) -> list[int]:
    """0 to count - 1, such that what comes first is spread evenly: the middle, the quarters, the eighths."""
    order: list[int] = []
    parts = 2
    while len(order) < count:
        order += [at for at in (count * k // parts for k in range(1, parts, 2)) if at not in order]
        if parts > count:
            order += [at for at in range(count) if at not in order]
        parts *= 2
    return order


def search(space: Space, judge: Callable[[Placement], float]) -> Found:
    """Greedy forward selection. `judge` gives a placement's tokens a second; where it raises OutOfTimeError, the search
    ends with what it has.

    For each number of layers: where the next one is best, and, standing there, which window, format and slots are. The
    last number of layers is the first that is not faster than the one before.
    """
    found = Found()
    known: dict[Placement, float] = {}
    base = Placement((), space.windows[0], space.formats[0], space.slots[0])
    try:
        for n in range(1, space.num_layers + 1):
            before = 0.0 if found.best is None else found.best[1]
            layers = (base.also_before(at) for at in spread(space.num_layers) if at not in base.layers)
            here = _vary(found, n, "layer", layers, judge, known)
            choices: dict[str, Sequence[Any]] = {
                "window": space.windows,
                "format": space.formats,
                "slots": space.slots,
            }
            for name, values in choices.items():
                if here is not None and len(values) > 1:
                    others = [replace(here, **{name: value}) for value in values]
                    here = _vary(found, n, name, others, judge, known) or here
            if here is None or known[here] <= before:
                break
            base = here
        found.ended = True
    except OutOfTimeError:
        pass
    return found


def _vary(
    found: Found,
    n: int,
    varied: str,
    placements: Iterable[Placement],
    judge: Callable[[Placement], float],
    known: dict[Placement, float],
) -> Placement | None:
    """The best of some placements, which are judged and noted one by one; None without any."""
    step, left = Step(n, varied), [each for each in placements if each.fits]
    found.steps.append(step)
    step.left = len(left)
    for placement in left:
        if placement not in known:
            known[placement] = judge(placement)
        step.left -= 1
        step.tried.append((placement, known[placement]))
        if found.best is None or known[placement] > found.best[1]:
            found.best = step.tried[-1]
    return None if step.best is None else step.best[0]
