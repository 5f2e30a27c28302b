"""What of a model stays in memory under a bound, and what is read from the disk in each pass: arithmetic alone.

Whole layers stay or are read, spread evenly over the model, so that the disk goes on reading while layers in memory
compute. A layer that is read has a substitute in memory if the draft has substitutes (SubSpec, Wang et al. 2025). What
is left over makes the buffer larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from foretoken.common.progress import size
from foretoken.errors import SettingError
from foretoken.offload.direct import ALIGNED

_LITTLE = 1_000_000  # bytes: whoever asks for fewer may have meant another unit


@dataclass(frozen=True)
class Needs:
    """The bytes that a model needs. parts: of each part of a layer, in memory. reads: of each part, as it is read;
    `per_layer` parts are a layer. substitutes: of each layer's substitute, 0 without. fixed: of all else, by name."""

    parts: tuple[int, ...]
    reads: tuple[int, ...]
    substitutes: tuple[int, ...]
    fixed: dict[str, int]

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.substitutes)

    @property
    def per_layer(self) -> int:
        """The number of parts that are a layer."""
        return len(self.parts) // self.layers

    def of(self, sizes: Sequence[int], layer: int) -> tuple[int, ...]:
        """The sizes of a layer's parts, of `parts` or of `reads`."""
        return tuple(sizes[layer * self.per_layer : (layer + 1) * self.per_layer])


@dataclass(frozen=True)
class Plan:
    """What stays and what is read. streamed: the layers that are read in each pass. buffer: the bytes of the buffer
    into which they are read, 0 if none is."""

    needs: Needs
    streamed: tuple[int, ...]
    buffer: int

    @property
    def parts(self) -> tuple[int, ...]:
        """The parts of layers that are read in each pass."""
        count = self.needs.per_layer
        return tuple(layer * count + part for layer in self.streamed for part in range(count))

    @property
    def resident(self) -> tuple[int, ...]:
        """The layers that stay in memory."""
        return tuple(layer for layer in range(self.needs.layers) if layer not in self.streamed)

    @property
    def bytes_a_pass(self) -> int:
        """What one pass reads from the disk."""
        return sum(self.needs.reads[part] for part in self.parts)

    @property
    def kept(self) -> int:
        """The bytes of the layers that stay."""
        return sum(sum(self.needs.of(self.needs.parts, layer)) for layer in self.resident)

    @property
    def substitutes(self) -> int:
        """The bytes of substitutes. A draft of substitutes substitutes every layer if none is read."""
        return sum(self.needs.substitutes[layer] for layer in self.streamed or range(self.needs.layers))

    @property
    def memory(self) -> dict[str, int]:
        """The bytes of memory in use, by what uses them."""
        of = "substitutes of the others" if self.streamed else "substitutes"
        named = {"layers that stay": self.kept, of: self.substitutes, "buffer for reads": self.buffer}
        return {name: count for name, count in {**self.needs.fixed, **named}.items() if count}

    @property
    def total(self) -> int:
        """The bytes of memory in use."""
        return sum(self.memory.values())


def fit(needs: Needs, bound: int, share: float = 1.0) -> Plan:
    """The plan that reads least within a share of a bound, in bytes. Raises SettingError, with the least bound that
    would do, for one within which the model cannot run."""
    whole, bound = bound, int(bound * share)
    everything = Plan(needs, (), 0)
    if everything.total <= bound:
        return everything
    for count in range(1, needs.layers + 1):
        plan = _reading(needs, count, bound)
        if plan is not None:
            return plan
    least = _reading(needs, needs.layers, None)
    assert least is not None
    parts = ", ".join(f"{name} {size(count)}" for name, count in least.memory.items())
    enough = ceil(least.total / share)
    given = f'{whole} bytes (a number alone is in bytes; write "8GiB")' if whole < _LITTLE else size(whole)
    raise SettingError(
        f"memory is {given}, and this model needs {size(enough)} at least ({parts}); allow that much, or take a "
        "smaller model"
    )


def reading(needs: Needs, layers: Sequence[int]) -> Plan:
    """The plan that reads these layers, whatever memory it takes."""
    return Plan(needs, tuple(layers), _wanted(needs, layers) if layers else 0)


def _reading(needs: Needs, count: int, bound: int | None) -> Plan | None:
    """The plan that reads some number of layers, or None if it is beyond the bound. Without a bound, it takes the least
    memory."""
    layers = spread(count, needs.layers)
    plan = Plan(needs, layers, _least(needs, layers))
    if bound is None:
        return plan
    left = bound - plan.total
    # a buffer that is wanted is worth more than one more layer in memory; a larger one is not
    if left < 0 or (count < needs.layers and plan.buffer + left < _wanted(needs, layers)):
        return None
    everything = sum(needs.reads[part] for part in plan.parts)
    return Plan(needs, layers, min(plan.buffer + left // ALIGNED * ALIGNED, everything))


def spread(count: int, of: int) -> tuple[int, ...]:
    """`count` of the numbers from 0 to `of` - 1, evenly spread."""
    return tuple(at for at in range(of) if (at + 1) * count // of > at * count // of)


def _least(needs: Needs, layers: Sequence[int]) -> int:
    """The bytes of the smallest buffer: the largest part."""
    return max(max(needs.of(needs.reads, layer)) for layer in layers)


def _wanted(needs: Needs, layers: Sequence[int]) -> int:
    """The bytes of a buffer with which the disk hardly waits: for the part in use, the next, and the one after it."""
    return 3 * _least(needs, layers)
