"""A verifier whose target is on a host. It sends drafts there, and the verdicts come back.

Every message may be lost, late, or come twice. A draft is sent again until its answer comes; the host answers it as
before. When the connection was lost, it is made again, and each session is opened again with the tokens that it has.
Answers that nobody waits for are dropped. So a text is the same over any network: only its time differs.

If the host is gone for good, a session ends where it is, with the reason "disconnected", or goes on without it
(`foretoken.remote.alone`).
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence

from foretoken.errors import AwayError, ContractError, InputError, RemoteError, SettingError, one_line
from foretoken.protocol.types import Draft, PromptChunk, Request, Verdict
from foretoken.remote.about import About
from foretoken.remote.alone import Alone
from foretoken.remote.answers import Answers
from foretoken.remote.features import Arriving, bytes_of_row
from foretoken.remote.limits import asked_of
from foretoken.remote.link import Address, Link
from foretoken.remote.seats import Seat
from foretoken.remote.wire import (
    MOST_JSON,
    MOST_NODES,
    Code,
    ErrorBody,
    FeaturesBody,
    Kind,
    Message,
    OpenBody,
    ReadyBody,
    VerdictBody,
    to_json,
)
from foretoken.trees.tree import only

_SOONEST, _LATEST = 1.0, 30.0  # seconds after which a message is sent again
_ROUND_TRIPS = 4  # the same, in round trips
_MARKS = 1 << 16
_FILES, _TIMES = 20.0, 3  # seconds for the tokenizer to come, and how often it is asked for
_USUALLY = 0.8  # of what is known of the seconds of answers, after each
_ENDED = 64  # sessions that have ended, which a host is told again after the connection was lost


class RemoteVerifier:
    """A target on a host. Any number of threads may use it. `about` is what the host says of its model. `without_host`:
    makes text of drafts that nobody checks; None: nothing does. `goes_on`: whether it does so when the host is gone.

    Raises RemoteError if the host cannot be reached, or refuses.
    """

    def __init__(self, address: Address) -> None:
        self._changed = threading.Condition()
        self._connecting = threading.Lock()
        self._seats: dict[int, Seat] = {}
        self._by_session: dict[int, Seat] = {}
        self._ended: deque[int] = deque(maxlen=_ENDED)
        self._silent: set[int] = set()  # sessions of which the host hears no more
        self._tickets: dict[int, list[tuple[int, int | None]]] = {}  # sequences, each with the mark of its draft
        self._numbers, self._sessions, self._marks = itertools.count(), itertools.count(1), itertools.count()
        self._files: bytes | None = None
        self._usual = 0.0  # seconds of an answer
        self._lost: RemoteError | None = None
        self._address = address
        self.without_host: Alone | None = None
        self.goes_on = False
        self.link = self._linked()
        self.about = self.link.about
        self.context_length, self.vocab_size = self.about.context_length, self.about.vocab_size
        self._answers = Answers(self.context_length, self.vocab_size)
        self._rows = min(MOST_NODES, max(self.about.rows - 1, 1))

    def _linked(self, expected: About | None = None) -> Link:
        """A link, which is closed when nobody uses this verifier any more. expected: what the host said before."""
        me = weakref.ref(self)

        def heard(message: Message) -> None:
            if (its := me()) is not None:
                its._heard(message)

        def again() -> list[Message]:
            its = me()
            return [] if its is None else its._what_matters()

        def lost(error: RemoteError) -> None:
            if (its := me()) is not None:
                its.give_up(error)

        link = Link(self._address, heard, again, lost, expected)
        weakref.finalize(self, link.close)
        return link

    def tokenizer_files(self) -> bytes:
        """The files of the host's tokenizer. Raises RemoteError if they do not come."""
        for _ in range(_TIMES):
            self.link.send(Message(Kind.FILES))
            with self._changed:
                self._changed.wait_for(lambda: self._files is not None or self._lost is not None, _FILES)
                if self._files is not None:
                    files, self._files = self._files, None
                    return files
                if self._lost is not None:
                    break
        raise RemoteError(str(self._lost or "the host's tokenizer does not come; try again"))

    def admit(self, request: Request) -> None:
        """Take a request on: its prompt is sent. A link that was given up is made again. Raises InputError for what
        cannot be had over a network, and RemoteError if the host is not there."""
        self._expect_process()
        if request.keep_logits:
            raise SettingError("logits do not travel; leave logprobs, keep_logits, hash_logits and records out")
        layout = self.about.offered.layout(request.needs)
        if request.sequence in self._seats:
            raise ContractError(f"sequence {request.sequence} is there already; give this request another number")
        if not 0 < len(request.prompt) < self.context_length:
            raise ContractError(
                f"sequence {request.sequence} has a prompt of {len(request.prompt)} tokens; "
                f"expected 1 to {self.context_length - 1}"
            )
        with self._connecting:
            if (before := self._lost) is not None:
                self._lost = None
                try:
                    self.link = self._linked(self.about)
                except BaseException:
                    self._lost = before
                    raise
        if request.private and self.without_host is None:
            raise SettingError("a private text needs a draft that is a model; name one")
        if self._json_of(request) > MOST_JSON:
            raise SettingError(f"the settings have more than {MOST_JSON:,} bytes; a host takes no more")
        with self._changed:
            seat = Seat(request, next(self._sessions), arriving=Arriving(layout, request.seen))
            self._seats[request.sequence] = self._by_session[seat.session] = seat
            self.link.send(self._opening(seat))

    def submit(self, drafts: Sequence[Draft], chunks: Sequence[PromptChunk] = ()) -> int:
        """Send drafts. A prompt is read by the host, whatever the chunks are."""
        self._expect_process()
        ticket, parts = next(self._numbers), list[tuple[int, int | None]]()
        with self._changed:
            for draft in drafts:
                seat = self._seats.get(draft.sequence)
                if seat is None or draft.round < seat.round:
                    continue
                mark = next(self._marks) % _MARKS
                seat.under_way[mark] = (draft.round, only(draft, range(min(len(draft), self._rows))))
                parts.append((draft.sequence, mark))
                if not seat.alone:
                    self.link.send(seat.drafting(mark))
            parts += [(chunk.sequence, None) for chunk in chunks if chunk.sequence in self._seats]
            self._tickets[ticket] = parts
        return ticket

    def result(self, ticket: int) -> list[Verdict]:
        """Wait for the answers to what was submitted. They can be taken once."""
        self._expect_process()
        with self._changed:
            if ticket not in self._tickets:
                raise ContractError(f"there is no check with ticket {ticket}, or its result was taken")
            parts = self._tickets.pop(ticket)
        found = (self._answer(sequence, mark) for sequence, mark in parts)
        return [verdict for verdict in found if verdict is not None]

    def end(self, sequence: int) -> None:
        """The host may free a sequence, which has finished or was cancelled."""
        seat = self._seats.pop(sequence, None)
        if seat is None:
            return
        self._by_session.pop(seat.session, None)
        if os.getpid() == self.link.process and seat.session not in self._silent:
            self._ended.append(seat.session)
            self.link.send(Message(Kind.CLOSE, seat.session))

    def is_alone(self, sequence: int) -> bool:
        """Whether nobody will check a sequence any more."""
        seat = self._seats.get(sequence)
        return seat is not None and (seat.alone or (self.goes_on and self._lost is not None))

    def close(self) -> None:
        """Hang up. Sequences under way end."""
        self.link.close()

    def forget(self, conversation: int) -> None:
        """The host may free what it keeps of a conversation."""
        if os.getpid() == self.link.process:
            self.link.send(Message(Kind.FORGET, conversation))

    def _expect_process(self) -> None:
        if os.getpid() != self.link.process:
            raise RemoteError("this process was forked from the one that is connected; call `connect` here, too")

    # -- waiting ----------------------------------------------------------------------------------------------------

    def _answer(self, sequence: int, mark: int | None) -> Verdict | None:
        """The verdict that a sequence waits for; None if its draft was passed over, or if it has ended."""
        pause = min(max(_SOONEST, _ROUND_TRIPS * max(self.link.round_trip, self._usual)), _LATEST)
        began, resent = time.monotonic(), False
        again, had = began + pause, 0
        with self._changed:
            while True:
                seat = self._seats.get(sequence)
                if seat is None:
                    return None
                if (answer := seat.answers.pop(mark, None)) is not None:
                    try:
                        verdict = self._verdict(seat, mark, answer)
                    except RemoteError as error:  # a host at fault ends this text, and no other
                        seat.error = error
                        continue
                    if verdict is not None or mark is None or mark not in seat.under_way:
                        took = time.monotonic() - began
                        if not resent:  # else it says how often messages are lost
                            self._usual = max(took, _USUALLY * self._usual + (1 - _USUALLY) * took)
                        return verdict
                    continue  # the session is opened again, and the draft is sent once more
                if self._is_over(seat):
                    return self._on_its_own(seat, mark)
                if self._changed.wait(max(again - time.monotonic(), 0.0)):
                    continue
                if seat.arriving.have > had:  # the answer comes behind these features
                    again, had = time.monotonic() + pause, seat.arriving.have
                    continue
                pause, resent = min(2 * pause, _LATEST), True
                again = time.monotonic() + pause
                if seat.busy is not None:
                    self._reopen(seat)
                else:  # a long prompt or a slow pass is no reason to give up
                    self.link.send(self._opening(seat) if mark is None else seat.drafting(mark))

    def _is_over(self, seat: Seat) -> bool:
        """Whether nothing more comes for a session."""
        if seat.busy is not None and time.monotonic() - seat.busy[0] > self._address.patience:
            return True
        return seat.alone or seat.error is not None or self._lost is not None

    def _on_its_own(self, seat: Seat, mark: int | None) -> Verdict | None:
        """What becomes of a draft that nobody will check; None if it is passed over. A text that goes on alone is never
        shown to the host again: its end is not the model's."""
        alone = self.without_host
        goes_on = seat.alone or (self.goes_on and bool(seat.output))
        if alone is None or mark is None or seat.error is not None or not goes_on:
            return self._last(seat)
        _, draft = seat.under_way.pop(mark)
        if draft.position != seat.known:  # it was made behind a guess
            return None
        if not seat.alone:
            if not alone.can_take(seat):
                return self._last(seat)
            self._part_from(seat)
            return alone.begin(seat)
        return alone.verdict(seat, draft) or self._last(seat)

    def _part_from(self, seat: Seat) -> None:
        """Tell the host that a session has ended, which goes on alone here. Afterwards nothing is said of it, not even
        that it has ended: when that is would tell how long the text is."""
        self._by_session.pop(seat.session, None)
        self._silent.add(seat.session)
        self._ended.append(seat.session)
        self.link.send(Message(Kind.CLOSE, seat.session))

    def _verdict(self, seat: Seat, mark: int | None, answer: Message) -> Verdict | None:
        """The verdict of an answer; None for one that says nothing new. Raises RemoteError for one that makes no
        sense."""
        if mark is None:
            verdict = self._answers.to_prompt(seat, ReadyBody.read_from(answer.body))
            if verdict is not None and seat.alone:  # of a private text: now the host knows all that it may
                self._part_from(seat)
            return verdict
        round_, draft = seat.under_way.pop(mark)
        if round_ != seat.round:
            return None
        if answer.kind == Kind.PASSED:
            others = any(its == round_ for its, _ in seat.under_way.values())
            if draft.position == seat.known and not others:  # the host is out of step
                seat.under_way[mark] = (round_, draft)
                self._reopen(seat)
            return None
        if answer.round != round_:  # of a draft that had this mark long ago
            seat.under_way[mark] = (round_, draft)
            return None
        body = VerdictBody.read(answer.body, bytes_of_row(seat.arriving.layout))
        return self._answers.to_draft(seat, draft, body)

    def _last(self, seat: Seat) -> Verdict:
        """The last verdict of a sequence: its error, or, if the host is gone, what it has."""
        sequence, round_, known, error = seat.request.sequence, seat.round, seat.known, seat.error
        if error is None and seat.output:
            return Verdict(sequence, round_, known, (), (), (), finish_reason="disconnected")
        if error is None:  # there is nothing to keep
            why = self._lost or AwayError((seat.busy or (0, "the host is busy"))[1])
            error = type(why)(str(why))  # each text has an error of its own
        return Verdict(sequence, round_, known, (), (), (), error=error)

    # -- what is sent again -----------------------------------------------------------------------------------------

    def _opening(self, seat: Seat) -> Message:
        """What opens a session, or opens it again."""

        def session_of(sequence: int) -> int | None:
            other = self._seats.get(sequence)
            return None if other is None else other.session

        asked = asked_of(seat.request, session_of, seat.arriving.have)
        body = OpenBody(asked, seat.shown, tuple(seat.output))
        return Message(Kind.OPEN, seat.session, seat.round, body.packed())

    def _reopen(self, seat: Seat) -> None:
        """Open a session again, and send its drafts again; but not twice for one reason. The host may ask for it once
        for each of the messages that it does not understand."""
        (first, last), now = seat.reopened or (time.monotonic(), 0.0), time.monotonic()
        if now - last < max(_SOONEST, 2 * self.link.round_trip) / 2:
            return
        seat.reopened = (first, now)
        if now - first > self._address.patience and seat.busy is None:
            seat.error = RemoteError("the host does not take the text up again; it is at fault")
        for message in self._of(seat):
            self.link.send(message)

    def _json_of(self, request: Request) -> int:
        """The bytes of what a request asks for."""
        return len(to_json(**asked_of(request, lambda sequence: sequence)))

    def _of(self, seat: Seat) -> list[Message]:
        return [self._opening(seat), *map(seat.drafting, seat.under_way)]

    # -- the link's thread ------------------------------------------------------------------------------------------

    def _heard(self, message: Message) -> None:
        """A message came."""
        with self._changed:
            seat = self._by_session.get(message.session)
            if message.session in self._silent:  # whatever the host says, it says too late
                return
            if message.kind == Kind.FILES:
                self._files = message.body
            elif seat is None:
                if message.kind in (Kind.READY, Kind.VERDICT):  # it has not heard that the session has ended
                    self.link.send(Message(Kind.CLOSE, message.session))
            elif message.kind == Kind.ERROR:
                self._refused(seat, ErrorBody.read(message.body))
            elif message.kind == Kind.FEATURES:
                self._arrived(seat, message)
            elif message.kind == Kind.READY:
                seat.busy = seat.reopened = None
                if not seat.round:
                    seat.answers[None] = message
            elif message.kind in (Kind.VERDICT, Kind.PASSED) and message.mark in seat.under_way:
                seat.answers.setdefault(message.mark, message)
            self._changed.notify_all()

    def _arrived(self, seat: Seat, message: Message) -> None:
        """Features of a prompt came, or of what was read again."""
        try:
            body = FeaturesBody.read(message.body)
            seat.arriving.come(body.start, body.block, max(len(seat.request.prompt), seat.known - 1))
        except RemoteError as error:
            seat.error = error

    def _refused(self, seat: Seat, error: ErrorBody) -> None:
        """The host has ended a session, or does not know it any more."""
        text = one_line(error.text)
        if error.code == Code.GONE:
            if seat.busy is None:  # else it is opened again after a pause
                self._reopen(seat)
        elif error.code == Code.BUSY:  # wait for room
            seat.busy = (time.monotonic() if seat.busy is None else seat.busy[0], text)
        else:
            seat.error = (InputError if error.code == Code.REFUSED else RemoteError)(f"the host: {text}")

    def _what_matters(self) -> list[Message]:
        """What a host must hear once more after the connection was lost."""
        with self._changed:
            ended = [Message(Kind.CLOSE, session) for session in list(self._ended)]
            seats = [seat for seat in self._seats.values() if not seat.alone]
            return [*ended, *(message for seat in seats for message in self._of(seat))]

    def give_up(self, error: RemoteError) -> None:
        """Take the host for gone, until the next request."""
        with self._changed:
            self._lost = error
            self._changed.notify_all()
