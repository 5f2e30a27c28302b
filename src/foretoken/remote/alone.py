"""A client whose host is gone for good, and that goes on: the draft becomes the text, and nobody checks it.

Source: Zimmer et al. 2025, "Mixture of Attentions for speculative decoding", section 4.2 (disconnection).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from foretoken.protocol.roles import Pace
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget, Draft, Verdict
from foretoken.remote.seats import Seat
from foretoken.text.stopping import MakeStopsAfter, Watch, limit, stop_in


class Alone:
    """Makes verdicts of drafts. stops: makes what watches a text for its stop strings. context_length: the model's."""

    def __init__(self, stops: MakeStopsAfter, context_length: int) -> None:
        self._stops = stops
        self._context_length = context_length

    def can_take(self, seat: Seat) -> bool:
        """Whether a text can go on: nobody here watches a grammar."""
        return seat.request.sampling.constraint is None

    def begin(self, seat: Seat) -> Verdict:
        """The verdict on the draft that was under way when the host went away: nothing. The next one is drafted to
        become text, by all levels."""
        seat.alone, seat.round = True, seat.round + 1
        return Verdict(seat.request.sequence, seat.round - 1, seat.known, (), (), (), unverified=True)

    def verdict(self, seat: Seat, draft: Draft) -> Verdict | None:
        """The likeliest path of a draft as text, its last token as the bonus. None if nothing was drafted."""
        request, path = seat.request, likeliest(draft.parents)
        room = limit(request, self._context_length) - len(seat.output)
        if not path:  # a draft leaves the last token to the bonus, which nobody gives here
            ends = Verdict(
                request.sequence, seat.round, seat.known, (), (), (), finish_reason="length", unverified=True
            )
            return ends if room <= 1 else None
        private = request.private[-1:]  # it counts as output here, and is the prompt's
        if seat.watch is None:
            seat.watch = Watch(replace(request, prompt=(*request.prompt, *private)), self._stops)
        tokens = [draft.tokens[node] for node in path]
        count, reason = stop_in(tokens, room, request, seat.watch.at(seat.output[len(private) :]))
        verdict = Verdict(
            request.sequence,
            seat.round,
            draft.position,
            tuple(path[: count - 1]),
            tuple(tokens[:count]),
            tuple(draft.origins[node] for node in path[:count]),
            finish_reason=reason,
            unverified=True,
        )
        seat.round += 1
        seat.output += verdict.tokens
        return verdict


def likeliest(parents: Sequence[int]) -> list[int]:
    """A path through a draft, from the root down: the first child of each node, which is the likeliest."""
    path, at = [], -1
    for node, parent in enumerate(parents):
        if parent == at:
            path.append(node)
            at = node
    return path


@dataclass(frozen=True, eq=False)
class UnlessAlone:
    """A pace that counts as long as drafts are checked. Afterwards each level drafts as much as it may. is_alone: of a
    sequence, whether nobody checks its drafts."""

    pace: Pace
    budgets: tuple[Budget, ...]
    is_alone: Callable[[int], bool]

    def choose(self, sequences: Sequence[int], left: Mapping[int, int]) -> Mapping[int, Sequence[Budget]]:
        """As `Pace.choose`."""
        alone = {sequence: self.budgets for sequence in sequences if self.is_alone(sequence)}
        checked = [sequence for sequence in sequences if sequence not in alone]
        return {**alone, **self.pace.choose(checked, left)}

    def heard(self, record: RoundRecord) -> None:
        """As `Pace.heard`. What was not checked teaches nothing."""
        if not record.unverified:
            self.pace.heard(record)
