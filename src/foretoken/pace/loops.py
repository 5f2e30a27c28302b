"""What a pace remembers from one round to the next of each loop that asks it: several threads may use one model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from foretoken.pace.plan import Plan
from foretoken.pace.sharing import Shares, Sharing

_MOST = 256  # sequences whose loop is remembered; a loop says nothing when it ends


@dataclass
class Loop:
    """kinds: of the places where the drafts of this round begin, by sequence. left: tokens that each sequence under way
    may still gain. looked_for: the texts of the last choice. shares: what counts in the round that is under way; None
    for one text alone. now: the plan for that round, unless it was chosen in haste. has_read: whether a prompt was read
    in the last round. reads: rows of prompts in the last round, and in the next one if a prompt is still read then.
    aside: seconds that they add to it."""

    kinds: dict[int, int] = field(default_factory=dict)
    left: Mapping[int, int] = field(default_factory=dict)
    looked_for: tuple[int, ...] = ()
    sharing: Sharing = field(default_factory=Sharing)
    shares: Shares | None = None
    now: Plan | None = None
    has_read: bool = False
    reads: int = 0
    aside: float = 0.0


class Loops:
    """Loops by their sequences, whose numbers no other loop of the same model has at the same time."""

    def __init__(self) -> None:
        self._last = Loop()
        self._of: OrderedDict[int, Loop] = OrderedDict()  # by sequence, those asked for last at the end

    def of(self, sequences: Iterable[int]) -> Loop:
        """The loop that these sequences belong to: the one that has had any of them, or else a new one. Without
        sequences, the one that was asked for last."""
        sequences = tuple(sequences)
        if not sequences:
            return self._last
        found = next((self._of[sequence] for sequence in sequences if sequence in self._of), None)
        self._last = found or Loop()
        for sequence in sequences:
            self._of[sequence] = self._last
            self._of.move_to_end(sequence)
        while len(self._of) > max(_MOST, len(sequences)):
            self._of.popitem(last=False)
        return self._last
