"""Finds the places of fractal layers: one layer at a time, each where it gains most, until none gains anything.

Layers are tried in an order that is spread over the model, so that a search that runs out of time has seen all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from foretoken.bench.pages import many
from foretoken.settings.load import MOST_DRAFT_TOKENS


class OutOfTimeError(Exception):
    """The next step would not end in time. Never leaves `foretoken.bench.tuning`."""


class Budget:
    """Seconds from now on. The last `reserve` of them are kept for the end of the search."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.reserve = 0.0
        self._began = perf_counter()

    @property
    def used(self) -> float:
        """Seconds since the budget began."""
        return perf_counter() - self._began

    def expect(self, seconds: float, *, share: float = 1.0) -> None:
        """Refuse a step of so many seconds that would not end within a share of the time before the reserve. Raises
        OutOfTimeError."""
        if self.used + seconds > share * (self.seconds - self.reserve):
            raise OutOfTimeError


@dataclass(frozen=True)
class Placement:
    """A fractal draft with nothing left open: the layers that it precedes, the window's tokens, format and slots."""

    layers: frozenset[int]
    window: int
    format: str
    slots: str

    @property
    def draft(self) -> str:
        """The placement as `--draft` takes it."""
        layers = "+".join(map(str, sorted(self.layers)))
        return f"fractal:layers={layers}:w={self.window}:format={self.format}:slots={self.slots}"

    @property
    def fits(self) -> bool:
        """Whether a round may have that many draft tokens."""
        return self.window + len(self.layers) + 1 <= MOST_DRAFT_TOKENS


def spread(count: int) -> list[int]:
    """The numbers 0 to count - 1, the first ones spread evenly: the middle, the quarters, the eighths."""
    parts = [2**power for power in range(1, count.bit_length() + 1)]
    places = [count * k // each for each in parts for k in range(1, each, 2)]
    return list(dict.fromkeys([*places, *range(count)]))


def search(
    num_layers: int, choices: Mapping[str, Sequence[Any]], judge: Callable[[Placement], float]
) -> list[dict[str, Any]]:
    """Greedy forward selection; returns the steps as a record has them. A step has what was `varied` ("layer" or a
    choice) with `n` layers, each draft that was `tried`, the `best` of them, and how many were `not_tried` for lack of
    time.

    choices: windows, formats and slots, by the name of a placement's field; the search begins with the first of each.
    judge: gives a placement's speed-up; if it raises OutOfTimeError, the search ends with what it has. For each number
    of layers, the search finds the best place of the next layer, and then the best window, format and slots with it.
    The last number of layers is the first that is not faster than the one before.
    """
    steps: list[dict[str, Any]] = []
    known: dict[Placement, float] = {}

    def vary(varied: str, placements: list[Placement]) -> Placement | None:
        fitting = [each for each in placements if each.fits]
        n = len(placements[0].layers)
        step: dict[str, Any] = {"n": n, "varied": varied, "best": None, "not_tried": len(fitting), "tried": []}
        steps.append(step)
        for placement in fitting:
            if placement not in known:
                known[placement] = judge(placement)
            step["not_tried"] -= 1
            step["tried"].append({"draft": placement.draft, "speedup": known[placement]})
            step["best"] = max(step["tried"], key=lambda each: each["speedup"])["draft"]  # the first of equals
        return max(fitting, key=known.__getitem__, default=None)

    base, fastest = Placement(frozenset(), **{name: values[0] for name, values in choices.items()}), 0.0
    with suppress(OutOfTimeError):
        while len(base.layers) < num_layers:
            free = [at for at in spread(num_layers) if at not in base.layers]
            here = vary("layer", [replace(base, layers=base.layers | {at}) for at in free])
            for name, values in choices.items():
                if here is not None and len(values) > 1:
                    here = vary(name, [replace(here, **{name: value}) for value in values]) or here
            if here is None or known[here] <= fastest:
                break
            base, fastest = here, known[here]
    return steps


def unfinished(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a search had no time for, in words; empty if the search came to its end."""
    if not steps or not steps[-1]["not_tried"]:
        return []
    n, varied, left = (steps[-1][name] for name in ("n", "varied", "not_tried"))
    what = "places" if varied == "layer" else f"choices of {varied}"
    return [f"with {many(n, 'fractal layer')}, {left} of {left + len(steps[-1]['tried'])} {what}, and what follows"]
