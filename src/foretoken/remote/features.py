"""Features on their way to a client: what a trained drafter there sees of the model, in eight bits a number.

For each feature come the scales of all rows (float16), then all numbers (int8, row by row). A row has one scale, or one
for each key/value head. A number is its int8 times its scale, which is the largest of its group divided by 127. Both
sides know from WELCOME how wide each feature is, so nothing else is sent.

Source: Zimmer et al. 2025, "Mixture of Attentions for speculative decoding", section 4.2; the paper says "8 bits" and
no more. Keys travel as they lie in the cache, rotated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from foretoken.errors import InputError, NumericsError, RemoteError
from foretoken.protocol.types import NO_FEATURES, Features, Needs

_LARGEST = 127
MOST_WIDTH, MOST_PARTS = 1 << 16, 256  # numbers of a part, and parts of what an extractor sees
MOST_EXTRACTORS, MOST_NAMES = 64, 16  # that a host offers, and features that a client asks for
MOST_BYTES = (1 << 16) - 16  # of a row: those of the longest verdict must fit into a message
MOST_NAME = 80  # characters
MOST_HIDDEN = 4  # layers whose input may be asked for: EAGLE-3 wants three


class Part(NamedTuple):
    """One feature: groups of numbers, each with a scale of its own."""

    name: str
    groups: int
    size: int


Layout = tuple[Part, ...]


@dataclass(frozen=True)
class Offered:
    """What a host can send of its model. layers, hidden_size: the model's. extractors: what each sees, by its name.

    A text does not depend on features. So a host that lacks some serves the text without.
    """

    layers: int = 0
    hidden_size: int = 0
    extractors: Mapping[str, Layout] = field(default_factory=dict)

    def possible(self, needs: Needs) -> Needs:
        """The needs, if they can be met; otherwise none."""
        try:
            self.layout(needs)
        except InputError:
            return NO_FEATURES
        return needs

    def layout(self, needs: Needs) -> Layout:
        """What is sent of each row. Raises InputError for what the host does not have."""
        for layer in needs.hidden:
            if not 0 <= layer <= self.layers:
                raise InputError(f"hidden states before layer {layer} are asked for, and the model has {self.layers}")
        for name in needs.extractors:
            if name not in self.extractors:
                raise InputError(
                    f"the host does not run the part {name!r} of a trained drafter; name the drafter's folder there: "
                    "foretoken host MODEL --drafter FOLDER"
                )
        seen = (part for name in needs.extractors for part in self.extractors[name])
        layout = (*(Part(name, 1, self.hidden_size) for name in needs.of_rows), *seen)
        if bytes_of_row(layout) > MOST_BYTES:
            raise InputError(
                f"what the drafter sees of a token takes {bytes_of_row(layout):,} bytes, and {MOST_BYTES:,} can be "
                "sent; use a drafter that ends with fewer of the model's layers, or lookup"
            )
        return layout

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return {
            "layers": self.layers,
            "hidden_size": self.hidden_size,
            "extractors": {name: [list(part) for part in layout] for name, layout in self.extractors.items()},
        }

    @classmethod
    def read(cls, said: object) -> Offered:
        """Raises RemoteError for what makes no sense."""
        its: dict[str, Any] = said if isinstance(said, dict) else {}
        extractors: Any = its.get("extractors")
        layers: Any = its.get("layers")
        hidden_size: Any = its.get("hidden_size")
        sound = _is_count(layers) and _is_count(hidden_size) and isinstance(extractors, dict)
        if not sound or len(extractors) > MOST_EXTRACTORS or not all(map(_is_layout, extractors.values())):
            raise RemoteError(
                "the host says of its features what makes no sense; see who answers there, and that both sides have "
                "the same Foretoken"
            )
        found = {name: tuple(Part(*part) for part in layout) for name, layout in extractors.items()}
        return cls(layers, hidden_size, found)


def _is_count(given: object, least: int = 0) -> bool:
    return type(given) is int and least <= given < MOST_WIDTH


def _is_layout(given: object) -> bool:
    return isinstance(given, list) and 0 < len(given) <= MOST_PARTS and all(map(_is_part, given))


def _is_part(given: object) -> bool:
    if not isinstance(given, list) or len(given) != len(Part._fields):
        return False
    name, *counts = given
    positive = all(_is_count(count, 1) for count in counts)
    return isinstance(name, str) and len(name) < MOST_NAME and positive and counts[0] * counts[1] < MOST_WIDTH


NOTHING_OFFERED = Offered()


def names_of(needs: Needs) -> list[str]:
    """As a client asks for them."""
    return [*needs.of_rows, *needs.extractors]


def needs_of(names: object) -> Needs:
    """What a client asks for. Raises InputError for what makes no sense."""
    if not isinstance(names, list) or len(names) > MOST_NAMES or not all(isinstance(name, str) for name in names):
        raise InputError(f"features are a {type(names).__name__}, expected a list of at most {MOST_NAMES} names")
    hidden, extractors = [], []
    for name in names:
        kind, _, number = name.partition(".")
        if kind == "hidden" and number.isascii() and number.isdigit() and len(number) < 6:
            hidden.append(int(number))
        elif name != "normed":
            extractors.append(name)
    if len(hidden) > MOST_HIDDEN or hidden != sorted(set(hidden)) or len(extractors) > 1:
        raise InputError(
            f"hidden states before layers {hidden[:9]} and {len(extractors)} other features are asked for; expected at "
            f"most {MOST_HIDDEN} layers, ascending, and one other"
        )
    return Needs(tuple(hidden), "normed" in names, tuple(extractors))


class Sees(Protocol):
    """What is known of an observer."""

    @property
    def layout(self) -> tuple[tuple[str, int, int], ...]:
        """For each feature its name, how many groups it has, and the numbers of a group."""
        ...


def layout_of(observer: Sees) -> Layout:
    """What is sent of each row that an observer has seen."""
    return tuple(Part(*part) for part in observer.layout)


def rows_of(features: Features) -> int:
    """How many positions' features they are."""
    return len(next(iter(features.tensors.values())))


def bytes_of_row(layout: Layout) -> int:
    """The bytes of a row."""
    return sum(part.groups * (2 + part.size) for part in layout)


def packed(features: Features, layout: Layout, start: int, stop: int) -> bytes:
    """The features of some positions. Raises NumericsError for a NaN or an infinity."""
    parts = []
    for part in layout:
        tensor = features.tensors[part.name][start - features.start : stop - features.start]
        numbers = tensor.float().cpu().numpy().reshape(-1, part.groups, part.size)
        largest = np.abs(numbers).max(-1, initial=0.0)
        with np.errstate(over="ignore"):
            scales = (largest / _LARGEST).astype("<f2")
        if not np.isfinite(scales).all():
            raise NumericsError(f"the feature {part.name} of a token has a number that no scale holds, or a NaN")
        steps = scales.astype(np.float32)[..., None]
        codes = np.rint(np.divide(numbers, steps, out=np.zeros_like(numbers), where=steps > 0))
        parts += [scales.tobytes(), codes.clip(-_LARGEST, _LARGEST).astype(np.int8).tobytes()]
    return b"".join(parts)


def read(block: bytes, layout: Layout) -> dict[str, torch.Tensor]:
    """The features of some rows, as float32: [rows, size], or [rows, groups, size] if there are several groups. Raises
    RemoteError for what is no such block."""
    rows, rest = divmod(len(block), bytes_of_row(layout))
    if rest:
        raise RemoteError(f"features came with {len(block)} bytes, expected a multiple of {bytes_of_row(layout)}")
    found, at = {}, 0
    for part in layout:
        scales: npt.NDArray[np.float16] = np.frombuffer(block, "<f2", rows * part.groups, at)
        at += scales.nbytes
        codes: npt.NDArray[np.int8] = np.frombuffer(block, np.int8, rows * part.groups * part.size, at)
        at += codes.nbytes
        if not (np.isfinite(scales).all() and (scales >= 0).all()):
            raise RemoteError(f"the feature {part.name} came with a scale that is no number; the host is at fault")
        numbers = codes.reshape(rows, part.groups, part.size) * scales.astype(np.float32).reshape(rows, part.groups, 1)
        found[part.name] = torch.from_numpy(numbers if part.groups > 1 else numbers[:, 0])
    return found


@dataclass
class Arriving:
    """The features of a session, on the client. have: those of so many positions, from the first on, are there. Pieces
    that are there already, or that leave a gap, are dropped."""

    layout: Layout
    have: int = 0
    _pieces: list[tuple[int, bytes]] = field(default_factory=list)  # each with the rows that were there already

    def come(self, start: int, block: bytes, most: int) -> None:
        """Features of positions from `start` on came. most: as many positions have been computed. Raises RemoteError
        if they are not whole rows, or are more than those."""
        width = bytes_of_row(self.layout)
        if not width or len(block) % width:
            raise RemoteError(f"features came with {len(block)} bytes, expected a multiple of {width}")
        stop = start + len(block) // width
        if stop > most:
            raise RemoteError(f"features came up to position {stop}, expected at most {most}; the host is at fault")
        if start <= self.have < stop:
            self._pieces.append((self.have - start, block))
            self.have = stop

    def taken(self) -> Features | None:
        """What has come since it was taken before; None for nothing."""
        pieces, self._pieces = self._pieces, []
        if not pieces:
            return None
        read_ = [(known, read(block, self.layout)) for known, block in pieces]
        tensors = {
            part.name: torch.from_numpy(np.concatenate([each[part.name].numpy()[known:] for known, each in read_]))
            for part in self.layout
        }
        return Features(self.have - len(next(iter(tensors.values()))), tensors)
