"""What a client keeps of each session: what was asked for, what has come, and what is under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from foretoken.acceptance.walk import NOTHING, walk
from foretoken.errors import ForetokenError
from foretoken.protocol.types import Draft, Request
from foretoken.remote.features import Arriving
from foretoken.remote.wire import DraftBody, Kind, Message
from foretoken.text.stopping import Watch


@dataclass(eq=False)
class Seat:
    """A session. round: the next one; 0 until the prompt was read. output: its tokens so far. under_way: drafts that
    were sent and not answered, with their rounds, by their marks. answers: those that came, by the marks; that to the
    prompt has none. error: why it ended. busy: since when the host has no room for it, and what it says. reopened: when
    it was first and last opened again since the last answer. arriving: the features that its drafter sees.
    alone: whether it goes on without the host, for good. watch: then watches for stop strings."""

    request: Request
    session: int
    round: int = 0
    output: list[int] = field(default_factory=list)
    under_way: dict[int, tuple[int, Draft]] = field(default_factory=dict)
    answers: dict[int | None, Message] = field(default_factory=dict)
    error: ForetokenError | None = None
    busy: tuple[float, str] | None = None
    reopened: tuple[float, float] | None = None
    arriving: Arriving = field(default_factory=lambda: Arriving(()))
    alone: bool = False
    watch: Watch | None = None

    @property
    def shown(self) -> tuple[int, ...]:
        """The part of the prompt that the host sees."""
        hidden = max(len(self.request.private) - 1, 0)
        return self.request.prompt[: len(self.request.prompt) - hidden]

    @property
    def known(self) -> int:
        """How many tokens prompt and output have."""
        return len(self.request.prompt) + len(self.output)

    def drafting(self, mark: int) -> Message:
        """What sends a draft that is under way."""
        round_, draft = self.under_way[mark]
        body = DraftBody(draft.position, draft.tokens, draft.parents)
        return Message(Kind.DRAFT, self.session, round_, body.packed(), mark)


def accepted_of(draft: Draft, tokens: Sequence[int]) -> tuple[int, ...]:
    """The nodes of a draft that its verdict has accepted, root to leaf: those along its tokens."""
    following = iter((*tokens, NOTHING))
    accepted, _ = walk(draft.tokens, draft.parents, lambda _: next(following))
    return tuple(accepted)
