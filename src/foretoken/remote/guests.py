"""What a host keeps of each session, and what it puts of them into a pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from foretoken.errors import NumericsError
from foretoken.pace.cost import LearnedCost
from foretoken.protocol.types import Draft, Features, PromptChunk, Request, Verdict
from foretoken.remote.features import Layout, bytes_of_row, packed
from foretoken.remote.limits import Wanted
from foretoken.remote.waiting import Habit, pause
from foretoken.remote.wire import MOST_NODES, DraftBody, FeaturesBody, Kind, Message, ReadyBody, VerdictBody
from foretoken.text.stopping import limit
from foretoken.trees.tree import clip

Send = Callable[[Message], None]
_ORIGIN = "client"
_MOST_SHOWN = 1 << 18  # bytes of features in one message: other messages should not wait long behind it


class Came(NamedTuple):
    """A message, read and checked. connection: the number of the client's connection on which it came. at: when."""

    client: str
    connection: int
    message: Message
    send: Send
    body: Wanted | DraftBody | None
    at: float


@dataclass(eq=False)
class Guest:
    """A session. wanted: what its client asked for. round: the verifier's next. wire_round: the client's. known: tokens
    of prompt and output. left: of its prompt, tokens that are not read. replay: of the client's tokens, those that are
    still to be checked. drafts: those that came, with their marks, by the client's round. answers: the last ones, by
    the client's round. heard: when. opened: the client's round when it was opened. connection: on which it was opened
    last. layout: of the features that the client wants. shown: those of the prompt as they are sent, with the position
    behind each, until a draft shows that they have come. habit: how soon its drafts come."""

    client: str
    session: int
    wanted: Wanted
    request: Request
    send: Send
    opened: int
    connection: int = 0
    layout: Layout = ()
    wire_round: int = field(init=False)
    heard: float = field(init=False, default_factory=time.monotonic)
    known: int = field(init=False)
    left: int = field(init=False)
    replay: list[int] = field(init=False)
    round: int = 0
    read: int = 0
    drafts: dict[int, tuple[int, DraftBody]] = field(default_factory=dict)
    ready: ReadyBody | None = None
    answers: dict[int, VerdictBody] = field(default_factory=dict)
    shown: list[tuple[int, bytes]] = field(default_factory=list)
    ended: bool = False
    habit: Habit = field(default_factory=Habit)

    def __post_init__(self) -> None:
        self.wire_round = self.opened
        self.known = self.left = len(self.request.prompt)
        self.replay = list(self.wanted.body.output)

    @property
    def cached(self) -> int:
        """Tokens of the prompt that need not be read."""
        return len(self.request.prompt) - self.read

    def tell(self, kind: Kind, body: bytes, *, round: int = 0, mark: int = 0) -> None:
        """Send the client an answer."""
        self.send(Message(kind, self.session, round, body, mark))

    def show(self, features: Features, stop: int) -> None:
        """Send the features of positions before `stop`, but for those that the client has. What cannot be sent is left
        out, with all behind it: the text does not depend on it."""
        at, most = max(features.start, self.wanted.have), max(1, _MOST_SHOWN // bytes_of_row(self.layout))
        with suppress(NumericsError):
            while at < stop:
                to = min(at + most, stop)
                body = FeaturesBody(at, packed(features, self.layout, at, to)).packed()
                self.shown.append((to, body))
                self.tell(Kind.FEATURES, body)
                at = to

    def show_again(self, have: int) -> None:
        """Send what was shown once more, but for what the client has by now."""
        for stop, body in self.shown:
            if stop > have:
                self.tell(Kind.FEATURES, body)

    def seen_in(self, verdict: Verdict) -> bytes:
        """The features that an answer to a draft takes along: those of the rows that it has committed."""
        features = verdict.features
        if features is None or (verdict.last and self.request.conversation is None):
            return b""
        root = verdict.position - 1
        if features.start < root:
            self.show(features, root)
        with suppress(NumericsError):
            return packed(features, self.layout, root, root + len(verdict.tokens))
        return b""

    def answer(self, verdict: Verdict, kept: int, *, reading: bool) -> None:
        """Tell what a verdict says: of the prompt, if that was being read, or of a draft. kept: so many answers may be
        asked for again."""
        if reading:
            self.ready = ReadyBody(self.read, self.cached, self.known, verdict.tokens, verdict.finish_reason)
            self.tell(Kind.READY, self.ready.packed())
        else:
            seen = self.seen_in(verdict)
            mark, _ = self.drafts.pop(self.wire_round)
            answer = VerdictBody(verdict.position, verdict.tokens, verdict.finish_reason, seen)
            self.answers[self.wire_round] = answer
            self.answers.pop(self.wire_round - kept, None)
            self.tell(Kind.VERDICT, answer.packed(), round=self.wire_round, mark=mark)
        self.habit.answered = time.monotonic()
        self.wire_round += 1

    @property
    def current(self) -> tuple[int, DraftBody] | None:
        """The draft for its round, with its mark."""
        return self.drafts.get(self.wire_round)

    def draft(self, most: int, context_length: int, vocab_size: int) -> Draft:
        """What a pass checks of it, of at most `most` tokens: what its client has already, or its client's draft."""
        if self.replay:
            tokens = self.replay[: min(most, MOST_NODES, len(self.replay) - 1)]  # the last can be the bonus
            body = DraftBody(self.known, tuple(tokens), tuple(range(-1, len(tokens) - 1)))
        else:
            assert self.current is not None
            _, body = self.current
        gained = self.known - len(self.request.prompt)
        deepest = limit(self.request, context_length) - gained - 1  # the check adds a token itself
        origins = (_ORIGIN,) * len(body.tokens)
        asked = Draft(self.request.sequence, self.round, self.known, body.tokens, body.parents, origins)
        return clip(asked, most, deepest, vocab_size)


def chunks_of(guests: Sequence[Guest], rows: int) -> list[PromptChunk]:
    """A share of the rows for each prompt that is not read yet, so that short ones need not wait for long ones."""
    unread = {guest.request.sequence for guest in guests if guest.left}
    reading = [guest for guest in guests if guest.left and guest.request.prompt_of not in unread]
    share = max(1, rows // max(1, len(reading)))
    chunks = []
    for guest in reading:
        # if another session has read this prompt, all but one row may have been copied
        first = guest.request.prompt_of is not None and not guest.read
        chunks.append(PromptChunk(guest.request.sequence, 1 if first else min(share, guest.left)))
    return chunks


def pause_for(guests: Sequence[Guest], is_ready: Callable[[Guest], bool], checking: LearnedCost) -> float:
    """The seconds that a pass over the guests that are ready waits for drafts of the others. checking: seconds of a
    pass by its rows; until it has heard of passes, nothing waits. Nor does a pass that reads prompts."""
    ready, now = [guest for guest in guests if is_ready(guest)], time.monotonic()
    if not checking.known or not ready or any(guest.left or guest.replay for guest in ready):
        return 0.0
    others = (guest for guest in guests if guest not in ready and not guest.ended)
    coming = [each for guest in others if (each := guest.habit.coming(now)) is not None]
    rows = [1 + len(guest.current[1].tokens) for guest in ready if guest.current is not None]
    return pause(rows, coming, checking.of)
