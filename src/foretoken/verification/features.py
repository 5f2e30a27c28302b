"""Features: what a drafter asked for of the rows that were just committed, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.checking import Check
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import gathered, joined
from foretoken.decoder.views import Extractor
from foretoken.protocol.types import Features, Needs, Request

Tensors = dict[str, torch.Tensor]


def taps_of(needs: Needs, num_layers: int) -> list[int]:
    """The layers whose input a pass must keep for these needs. The output of the last layer is always kept."""
    return [layer for layer in needs.hidden if layer < num_layers]


@dataclass
class Seen:
    """The hidden states of a sequence's first rows, in pieces: those of the prompt, and in a conversation all.

    Hidden states are known only while a pass runs. They are kept here because they may be needed again: for other
    completions of the same prompt, and for the next turn of the conversation.
    """

    names: frozenset[str] = frozenset()
    pieces: list[Tensors] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """The number of rows, from the first on, whose hidden states are kept."""
        return sum(len(next(iter(piece.values()))) for piece in self.pieces)

    def holds(self, names: frozenset[str], rows: int) -> bool:
        """Whether the features of these names are kept for at least so many rows."""
        return not names or (self.names >= names and self.rows >= rows)

    def keep(self, rows: Tensors) -> None:
        """Add the next rows. They are copied, because the drafter may write into the tensors that it is given."""
        self.pieces.append({name: joined([tensor]) for name, tensor in rows.items()})

    def between(self, start: int, stop: int) -> list[Tensors]:
        """The features of some of the rows, in pieces."""
        if not start:
            return self.pieces
        return [{name: tensor[start:stop] for name, tensor in follow(self.pieces).items()}]

    def first(self, names: frozenset[str], rows: int) -> Seen:
        """The features of these names for the first `rows` rows, in memory of their own."""
        whole = follow(self.pieces) if rows else {}
        pieces = [{name: joined([whole[name][:rows]]) for name in names}] if whole and names else []
        return Seen(names, pieces)


def follow(pieces: Sequence[Tensors]) -> Tensors:
    """Joins the features of rows that follow one another."""
    return {name: joined([piece[name] for piece in pieces]) for name in (pieces[0] if pieces else ())}


class FeatureReader:
    """Makes the features that a request needs."""

    def __init__(self, target: Decoder, extractors: Mapping[str, Extractor]) -> None:
        self._target = target
        self._extractors = extractors

    def names(self, needs: Needs) -> frozenset[str]:
        """The names of the features that must be taken while a pass runs."""
        return frozenset(needs.of_rows)

    def lacking(self, needs: Needs) -> str | None:
        """What these needs ask for that this target cannot give, in words; None if it can give all."""
        layers = self._target.config.num_layers
        for layer in needs.hidden:
            if not 0 <= layer <= layers:
                return (
                    f"hidden states before layer {layer}; the model has layers 0 to {layers - 1}, and {layers} behind"
                )
        for name in needs.extractors:
            if name not in self._extractors:
                return f"features of the extractor {name!r}, which is not known here"
        return None

    def of_rows(self, needs: Needs, check: Check, rows: Sequence[int]) -> Tensors:
        """The features that only the pass can give, of some of its rows."""
        outputs, layers = check.outputs, self._target.config.num_layers
        found = {
            f"hidden.{layer}": gathered(outputs.hidden if layer == layers else outputs.taps[layer], rows)
            for layer in needs.hidden
        }
        if needs.normed:
            found["normed"] = self._target.norm(gathered(outputs.hidden, rows))
        return found

    def features(self, request: Request, cache: Cache, start: int, passed: Sequence[Tensors]) -> Features | None:
        """All features that a request needs of the committed positions from `start` on; None if it needs none. passed:
        the features of these positions that passes gave."""
        needs = request.needs
        if needs == Needs():
            return None
        tensors = dict(follow(passed)) if needs.of_passes else {}
        for name in needs.extractors:
            tensors.update(self._extractors[name](cache, start, cache.length))
        return Features(start, tensors)
