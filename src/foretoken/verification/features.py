"""Features: what a drafter asked to see of the rows that were just committed, by name."""

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
    """The layers whose input a pass must keep; what comes out of the last one it gives anyhow."""
    return [layer for layer in needs.hidden if layer < num_layers]


@dataclass
class Seen:
    """The hidden states of a sequence's first rows, in pieces: those of a prompt, and in a conversation all of them.

    They are known only while a pass runs. So they are kept where somebody may need them once more: for completions of
    the same prompt, and for the next turn of the conversation.
    """

    names: frozenset[str] = frozenset()
    pieces: list[Tensors] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Of how many rows, from the first on."""
        return sum(len(next(iter(piece.values()))) for piece in self.pieces)

    def holds(self, names: frozenset[str], rows: int) -> bool:
        """Whether it has these of so many rows."""
        return not names or (self.names >= names and self.rows >= rows)

    def keep(self, rows: Tensors) -> None:
        """More rows, copied: whoever is shown them may write into them."""
        self.pieces.append({name: joined([tensor]) for name, tensor in rows.items()})

    def first(self, names: frozenset[str], rows: int) -> Seen:
        """These of the first rows only, in memory of their own."""
        whole = follow(self.pieces) if rows else {}
        pieces = [{name: joined([whole[name][:rows]]) for name in names}] if whole and names else []
        return Seen(names, pieces)


def follow(pieces: Sequence[Tensors]) -> Tensors:
    """The features of rows that follow each other."""
    return {name: joined([piece[name] for piece in pieces]) for name in (pieces[0] if pieces else ())}


class FeatureReader:
    """Makes the features that a request needs."""

    def __init__(self, target: Decoder, extractors: Mapping[str, Extractor]) -> None:
        self._target = target
        self._extractors = extractors

    def names(self, needs: Needs) -> frozenset[str]:
        """Of what a pass must be asked while it runs."""
        hidden = [f"hidden.{layer}" for layer in needs.hidden]
        return frozenset([*hidden, *(["normed"] if needs.normed else [])])

    def lacking(self, needs: Needs) -> str | None:
        """What is asked for and cannot be had, in words."""
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
        """What only the pass knows, of some of its rows."""
        outputs, layers = check.outputs, self._target.config.num_layers
        found = {
            f"hidden.{layer}": gathered(outputs.hidden if layer == layers else outputs.taps[layer], rows)
            for layer in needs.hidden
        }
        if needs.normed:
            found["normed"] = self._target.norm(gathered(outputs.hidden, rows))
        return found

    def features(self, request: Request, cache: Cache, start: int, passed: Sequence[Tensors]) -> Features | None:
        """All that is needed of the committed positions from `start` on. passed: what passes gave of them."""
        needs = request.needs
        if needs == Needs():
            return None
        tensors = dict(follow(passed)) if needs.of_passes else {}
        for name in needs.extractors:
            tensors.update(self._extractors[name](cache, start, cache.length))
        return Features(start, tensors)
