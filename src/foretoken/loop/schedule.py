"""What goes into a pass: how much each sequence may draft, and which prompts are read on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from foretoken.protocol.types import Budget, PromptChunk, Request, Turn
from foretoken.text.stopping import limit


@dataclass
class Live:
    """A sequence under way, by the verdicts that have come: its next draft is for `round`, and begins at `position`.

    `left`: tokens of its prompt that are to be read; 0 when it has its first token. `under_way`: for each pass that it
    is in and whose verdict has not come, the tokens that the drafter was told as a guess, or None.
    """

    request: Request
    position: int
    left: int
    round: int = 0
    under_way: deque[tuple[int, ...] | None] = field(default_factory=deque)

    @property
    def guessed(self) -> list[int]:
        """The tokens that the drafter was told, and that are not known yet."""
        return [token for guess in self.under_way for token in guess or ()]


@dataclass(frozen=True)
class Schedule:
    """How much one pass may hold.

    rows: of drafts and prompts together, where that leaves each sequence one. prompt_rows: of prompts. shared_rows:
    where drafts of several sequences share a pass, how many rows it may have with their roots, so that with as many
    sequences nobody drafts; None: as `rows` says. ahead: how many rounds may be drafted on guesses while a check is
    under way: worth it where the verifier works elsewhere.
    """

    rows: int = 8192
    prompt_rows: int = 256
    shared_rows: int | None = None
    ahead: int = 0

    def turns(self, live: Iterable[Live], budgets: Sequence[Budget], context_length: int) -> list[Turn]:
        """A turn for each sequence whose last token is known, or guessed. budgets: of each level of the draft."""
        live = list(live)
        ready = [s for s in live if not s.left and self._may_go_on(s)]
        # drafts are the first to be cut: beyond what a pass can hold they only cost, and prompts must go on, too
        reading = any(s.left for s in live)
        prompts = min(self.prompt_rows, max(1, self.rows // 4)) if reading else 0
        rows = self.rows - prompts
        if len(ready) > 1 and self.shared_rows is not None:
            rows = min(rows, self.shared_rows)
        most = max(0, rows - len(ready)) // max(1, len(ready))
        turns = []
        for s in ready:
            position = s.position + len(s.guessed)
            left = limit(s.request, context_length) - (position - len(s.request.prompt))
            if left > 0:  # else what was guessed ends it
                # the last token of the rest is always a bonus, so the draft need not reach it
                own = [_cut(b, most).within(left - 1) for b in budgets]
                turns.append(Turn.of(s.request.sequence, s.round + len(s.under_way), position, own))
        return turns

    def _may_go_on(self, s: Live) -> bool:
        """Whether its next draft may be made now: no verdict is on its way, or only such as were guessed."""
        few = len(s.under_way) <= self.ahead
        return few and None not in s.under_way and s.request.end_tokens.isdisjoint(s.guessed)

    def chunks(self, live: Iterable[Live], used: int) -> list[PromptChunk]:
        """Of the prompts that are still to be read, the first come first: as many rows as the pass has room for,
        of which drafts have used some."""
        live = list(live)
        unread = {s.request.sequence for s in live if s.left}
        room = min(self.prompt_rows, max(1, self.rows - used))
        chunks = []
        for s in live:
            if s.left and room and not s.under_way and s.request.prompt_of not in unread:  # else it is being read
                # of a prompt that another has read all but a row may be there; if not, the verdict says what is left
                read_by_another = s.request.prompt_of is not None and s.left == len(s.request.prompt)
                rows = 1 if read_by_another else min(room, s.left)
                room -= rows
                chunks.append(PromptChunk(s.request.sequence, rows))
        return chunks


def _cut(budget: Budget, most: int) -> Budget:
    """A budget of at most so many tokens. No path of them is longer, so that nothing is computed that is not sent."""
    return budget if budget.rows <= most else replace(budget, rows=most, depth=min(budget.depth, most))
