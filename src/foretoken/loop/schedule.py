"""Decides what goes into a pass: how much each sequence may draft, and which prompts are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from foretoken.acceptance.walk import agreeing
from foretoken.loop.beside import Beside
from foretoken.protocol.roles import Pace
from foretoken.protocol.types import Budget, PromptChunk, Request, Turn
from foretoken.text.stopping import limit


@dataclass
class Live:
    """A sequence under way, as far as its verdicts have come. Its next draft is for `round` and begins at `position`.

    `left`: how many tokens of its prompt are not read yet; 0 once it has its first token. `behind`: an earlier sequence
    whose prompt begins with so many of the same tokens; None if there is none. `under_way`: one entry for each pass
    that has the sequence and whose verdict has not come: the tokens that the drafter was told as a guess, or None.
    """

    request: Request
    position: int
    left: int
    round: int = 0
    behind: tuple[int, int] | None = None
    under_way: deque[tuple[int, ...] | None] = field(default_factory=deque)

    @property
    def read(self) -> int:
        """How many tokens of its prompt are read."""
        return len(self.request.prompt) - self.left

    @property
    def guessed(self) -> list[int]:
        """The tokens that the drafter was told as guesses, and that no verdict has settled yet."""
        return [token for guess in self.under_way for token in guess or ()]

    @property
    def reaches(self) -> int:
        """The position at which the next draft begins, if all guesses are right."""
        return self.position + len(self.guessed)

    def may_gain(self, context_length: int) -> int:
        """How many tokens may follow those that are known or guessed."""
        return limit(self.request, context_length) - (self.reaches - len(self.request.prompt))


@dataclass(frozen=True)
class Schedule:
    """How much one pass may hold.

    rows: the most rows of drafts and prompts together, but at least one for each sequence. prompt_rows: the most rows
    of prompts. shared_rows: the most rows when several sequences draft in one pass, their roots included; with as many
    sequences, none drafts. None: only `rows` counts. ahead: how many rounds may be drafted on guesses while a check is
    under way. Drafting ahead pays if the verifier works elsewhere. beside: knows the most rows of prompts in a pass in
    which other sequences decode, which wait for these rows; None: only `prompt_rows` counts. usual: the budget of each
    level for sequences whose drafts begin at a level that their request names. shares: the fewest tokens of a prompt
    that the verifier takes over from another one; 0: it takes nothing over.
    """

    rows: int = 8192
    prompt_rows: int = 256
    shared_rows: int | None = None
    ahead: int = 0
    beside: Beside | None = None
    usual: tuple[Budget, ...] = ()
    shares: int = 0

    def behind(self, request: Request, live: Iterable[Live]) -> tuple[int, int] | None:
        """The sequence whose prompt is being read and begins most like a request's, with the number of tokens."""
        if not self.shares or request.fresh or request.prompt_logits or request.conversation is not None:
            return None
        prompt = request.prompt[:-1]
        found = [(agreeing(prompt, s.request.prompt), s.request.sequence) for s in live if s.left]
        common, sequence = max(found, key=lambda each: each[0], default=(0, 0))
        return (sequence, common) if common >= self.shares else None

    def turns(self, live: Iterable[Live], pace: Pace, context_length: int) -> list[Turn]:
        """A turn for each sequence whose last token is known or guessed. pace: chooses the budgets."""
        live = list(live)
        ready = [s for s in live if not s.left and self._may_go_on(s)]
        # drafts are cut first: prompts must go on, and draft rows beyond what a pass can hold only cost time
        reading = any(s.left for s in live)
        prompts = min(self.prompt_rows, max(1, self.rows // 4)) if reading else 0
        rows = self.rows - prompts
        if len(ready) > 1 and self.shared_rows is not None:
            rows = min(rows, self.shared_rows)
        most = max(0, rows - len(ready)) // max(1, len(ready))
        # without those that end with their guessed tokens
        left = {s.request.sequence: room for s in live if (room := s.may_gain(context_length)) > 0}
        ready = [s for s in ready if s.request.sequence in left]
        paced = [s.request.sequence for s in ready if not s.request.first_level]
        budgets = {**pace.choose(paced, left), **self._named(ready)}
        turns = []
        for s in ready:
            sequence = s.request.sequence
            # the sequence's last token can always be a bonus, so the draft need not reach it
            own = [_cut(b, most).within(left[sequence] - 1) for b in budgets[sequence]]
            turns.append(Turn.of(sequence, s.round + len(s.under_way), s.reaches, own))
        return turns

    def _named(self, ready: Iterable[Live]) -> dict[int, Sequence[Budget]]:
        """The budgets of sequences whose request names the level at which their drafts begin."""
        found: dict[int, Sequence[Budget]] = {}
        for s in ready:
            first = s.request.first_level
            if first:
                found[s.request.sequence] = (*(Budget(0, 0),) * len(self.usual[:first]), *self.usual[first:])
        return found

    def _may_go_on(self, s: Live) -> bool:
        """Whether the next draft may be made now: each verdict that is on its way was guessed, and guesses are few."""
        few = len(s.under_way) <= self.ahead
        return few and None not in s.under_way and s.request.end_tokens.isdisjoint(s.guessed)

    def chunks(self, live: Iterable[Live], used: int) -> list[PromptChunk]:
        """Chunks of the prompts that are not read yet, as many rows as the pass has room for. used: the rows that
        drafts take.

        The prompt with the fewest unread tokens gets half of the room, and the others share the rest evenly. What one
        does not need is left to the next. So a short prompt does not wait for a long one, prompts of one length are
        read one after the other, and each goes on in every pass with room for all.
        """
        live = list(live)
        unread = {s.request.sequence for s in live if s.left}
        # the others wait for a prompt that another sequence reads
        reading = [s for s in live if s.left and not s.under_way and s.request.prompt_of not in unread]
        its = {s.request.sequence: s for s in live}
        reading = [s for s in reading if not _waits(s, its)]
        room = min(self.prompt_rows, max(1, self.rows - used))
        if used and self.beside is not None:
            room = min(room, self.beside.rows)
        chunks = {}
        for at, s in enumerate(sorted(reading, key=_unread)):
            sharing = len(reading) - at
            rows = min(_unread(s), -(-room // (sharing if at else min(2, sharing))))
            room -= rows
            if rows:
                chunks[s.request.sequence] = PromptChunk(s.request.sequence, rows)
        return [chunks[s.request.sequence] for s in reading if s.request.sequence in chunks]


def _waits(s: Live, live: Mapping[int, Live]) -> bool:
    """Whether another sequence is reading what this one would read next, so that it need not."""
    if s.behind is None:
        return False
    sequence, common = s.behind
    other = live.get(sequence)
    return other is not None and bool(other.left) and max(s.read, other.read) < common


def _unread(s: Live) -> int:
    """How many rows of its prompt a sequence may read next. If another sequence has read this prompt, all but one row
    may have been copied; if not, the verdict's `prompt_left` tells, and the rest is read later."""
    read_by_another = s.request.prompt_of is not None and s.left == len(s.request.prompt)
    return 1 if read_by_another else s.left


def _cut(budget: Budget, most: int) -> Budget:
    """A budget cut to `most` tokens. Its depth is cut, too, so that a level computes no token that cannot be sent."""
    return budget if budget.rows <= most else replace(budget, rows=most, depth=min(budget.depth, most))
