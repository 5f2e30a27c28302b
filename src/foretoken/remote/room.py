"""The host's loop: passes over the drafts and prompts of all its clients, one after the other.

One thread makes the passes, and owns the verifier. Connections only put messages into its inbox. A pass takes what is
there when it begins: a draft of each session that has sent one, and a part of each prompt that is not read yet. So
clients share passes when there are many. It waits for drafts that are about to come if that pays (`remote/waiting.py`).

A session outlives its connection. A message that comes twice is answered twice, with the same tokens. A client whose
session is gone, because the host was started again, opens it once more with the tokens that it has. Then these are the
draft: the host checks them like any other, and goes on behind them. So a host that would write another text is noticed.

Nothing that a client sends may end this thread: what fails in one message, or in one part of a pass, ends that session.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Empty, Full, Queue

from foretoken.errors import ForetokenError, RemoteError
from foretoken.pace.cost import LearnedCost
from foretoken.pace.unpriced import SeenCost
from foretoken.protocol.roles import Verifier
from foretoken.protocol.types import Draft, PromptChunk, Verdict
from foretoken.remote.conversations import Conversations
from foretoken.remote.features import NOTHING_OFFERED, Offered, bytes_of_row, rows_of
from foretoken.remote.guests import Came, Guest, Send, chunks_of, pause_for
from foretoken.remote.limits import Limits, Wanted
from foretoken.remote.wire import (
    Code,
    DraftBody,
    ErrorBody,
    Kind,
    Message,
    OpenBody,
    ReadyBody,
)
from foretoken.settings.values import whole

log = logging.getLogger(__name__)

_KEPT = 8  # answers to a session that may be asked for again, and drafts that may wait
_INBOX = 4  # messages of each session that wait for the thread; then connections wait, too
_UNKNOWN = "the host does not know this text any more"
_LOOK, _PAUSE = 1.0, 0.3  # seconds after which the thread looks who is idle, and that a pass waits for drafts at most


class Room:
    """Makes passes for many clients.

    verifier: its target checks them all; nobody else may use it meanwhile. changed: the error if the target's files
    have changed since they were mapped; asked after each pass. offered: the features that clients may ask for.
    checking: the seconds of a pass by its rows, which goes on learning. `over` is set when the room has ended; `error`
    is then the reason, if it was not asked to.
    """

    def __init__(
        self,
        verifier: Verifier,
        limits: Limits,
        changed: Callable[[], ForetokenError | None] = lambda: None,
        offered: Offered = NOTHING_OFFERED,
        checking: LearnedCost | None = None,
    ) -> None:
        self.limits = limits
        self._offered = offered
        self.over = threading.Event()
        self.error: BaseException | None = None
        self.passes = 0
        self.checked = 0  # tokens of drafts
        self._changed = changed
        self._checking = checking or SeenCost()
        self._verifier = verifier
        self._inbox: Queue[Came | None] = Queue(_INBOX * limits.sessions)
        self._stopping = False
        self._seats: dict[tuple[str, int], Guest] = {}
        self._by_sequence: dict[int, Guest] = {}
        self._numbers = itertools.count()
        self._conversations = Conversations(limits.conversations, verifier.forget)
        self._connections: dict[str, int] = {}  # of clients that are there: the number of the last connection
        self._away: dict[str, float] = {}  # of clients that are not: since when
        self._lock = threading.Lock()  # of the two before this
        self._thread = threading.Thread(target=self._work, name="foretoken-room", daemon=True)
        self._thread.start()

    # -- connections, in their threads ------------------------------------------------------------------------------

    def connected(self, client: str, connection: int) -> None:
        """A client is there. What its older connections still deliver does not count any more."""
        with self._lock:
            self._connections[client] = max(connection, self._connections.get(client, 0))
            self._away.pop(client, None)

    def disconnected(self, client: str, connection: int) -> None:
        """A connection is gone."""
        with self._lock:
            if self._connections.get(client) == connection:
                del self._connections[client]
                self._away[client] = time.monotonic()

    def take(self, client: str, connection: int, message: Message, send: Send) -> None:
        """A message of a client came. Waits while there are too many. send: what sends it an answer; it must not wait.
        Raises RemoteError or InputError for a message that makes no sense."""
        body: Wanted | DraftBody | None = None
        size, context = self._verifier.vocab_size, self._verifier.context_length
        if message.kind == Kind.OPEN:
            body = Wanted.of(OpenBody.read(message.body, 2 * context), size, context)
        elif message.kind == Kind.DRAFT:
            body = DraftBody.read(message.body)
            for token in body.tokens:
                whole("a token", token, 0, size - 1)
        elif message.kind not in (Kind.CLOSE, Kind.FORGET):
            raise RemoteError(f"a message {message.kind.name} came, expected OPEN, DRAFT, CLOSE or FORGET")
        came = Came(client, connection, message, send, body, time.monotonic())
        while not self.over.is_set():
            with suppress(Full):
                self._inbox.put(came, timeout=_LOOK)
                return

    def close(self) -> None:
        """End all sessions, and the thread."""
        self._stopping = True
        with suppress(Full):  # then it does not wait
            self._inbox.put_nowait(None)
        self._thread.join()

    @property
    def sessions(self) -> int:
        """How many sessions there are."""
        return len(self._seats)

    # -- the thread -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._stopping:
                try:
                    self._hear()
                    self._pass()
                except Exception as error:  # a fault of this program, or the model's files have changed
                    log.warning("the host ends all sessions: %s", error)
                    for seat in list(self._seats.values()):
                        self._fail(seat, Code.FAILED, f"the host failed ({error})")
        except BaseException as error:
            self.error = error
        finally:
            self.over.set()
            for seat in list(self._seats.values()):
                self._end(seat)

    def _hear(self) -> None:
        """Take the messages that are there; wait for one if there is nothing to do, or if drafts are about to come."""
        self._hear_for(0.0 if any(map(self._is_ready, self._seats.values())) else _LOOK)
        until = time.monotonic() + _PAUSE
        while (wait := pause_for(list(self._seats.values()), self._is_ready, self._checking)) and not self._stopping:
            if (wait := min(wait, until - time.monotonic())) <= 0:
                break
            self._hear_for(wait)
        now = time.monotonic()
        with self._lock:
            gone = {client for client, since in self._away.items() if now - since > self.limits.away}
            for client in gone:
                del self._away[client]
        self._conversations.forget_clients(gone)
        for seat in list(self._seats.values()):
            if seat.client in gone or (now - seat.heard > self.limits.idle and not self._is_ready(seat)):
                self._end(seat)

    def _hear_for(self, seconds: float) -> None:
        """Take the messages that are there; wait for the first one. Those that come meanwhile stay where they are."""
        with suppress(Empty):
            self._take(self._inbox.get(block=seconds > 0, timeout=seconds))
            for _ in range(self._inbox.qsize()):
                self._take(self._inbox.get_nowait())

    def _take(self, came: Came | None) -> None:
        """Do what a message asks for. Whatever it is, it must not end this thread. None only wakes it."""
        if came is None:
            return
        with self._lock:
            if came.connection < self._connections.get(came.client, 0):
                return
        try:
            self._do(came)
        except Exception as error:
            why = str(error) if isinstance(error, ForetokenError) else "it cannot be served"
            came.send(came.message.refused(Code.REFUSED, why))

    def _do(self, came: Came) -> None:
        client, _, message, send, body, at = came
        seat = self._seats.get((client, message.session))
        if message.kind == Kind.FORGET:
            self._conversations.forget((client, message.session))
        elif message.kind == Kind.CLOSE:
            if seat is not None:
                self._end(seat)
        elif isinstance(body, Wanted):
            if seat is not None:
                seat.send, seat.heard = send, time.monotonic()
            self._open(came, body, seat)
        elif isinstance(body, DraftBody):
            if seat is None:
                send(message.refused(Code.GONE, _UNKNOWN))
                return
            seat.send, seat.heard = send, time.monotonic()
            if message.round == seat.wire_round and message.round not in seat.drafts:
                seat.habit.replied(at, 1 + len(body.tokens))
            self._draft(seat, message, body)

    # -- sessions ---------------------------------------------------------------------------------------------------

    def _open(self, came: Came, wanted: Wanted, seat: Guest | None) -> None:
        """Take a session on, or up again."""
        client, message, send = came.client, came.message, came.send
        if seat is not None and message.round <= seat.wire_round and seat.request.prompt == wanted.body.prompt:
            # it comes again, or the client has not heard the last answers, which its drafts will ask for
            if came.connection != seat.connection:
                seat.show_again(wanted.have)
            seat.connection = came.connection
            if seat.ready is not None:
                seat.tell(Kind.READY, seat.ready.packed())
            return
        if seat is not None:
            self._end(seat)
        why = self._no_room(client, wanted)
        if why is not None:
            send(message.refused(Code.BUSY, why))
            return
        beside = self._seats.get((client, wanted.prompt_of)) if wanted.prompt_of is not None else None
        conversation, key = None, (client, wanted.conversation or 0)
        if wanted.conversation is not None:
            conversation = self._conversations.of(key, self._positions(wanted))
        request = wanted.request(
            next(self._numbers),
            None if conversation is None else conversation.number,
            None if beside is None else beside.request.sequence,
        )
        request = replace(request, needs=self._offered.possible(request.needs))
        self._verifier.admit(request)  # refuses what cannot be served
        if conversation is not None:
            live = {seat.request.conversation for seat in self._seats.values()}
            self._conversations.keep(key, conversation, live)
        layout = self._offered.layout(request.needs)
        new = Guest(client, message.session, wanted, request, send, message.round, came.connection, layout)
        self._seats[client, message.session] = self._by_sequence[request.sequence] = new

    def _no_room(self, client: str, wanted: Wanted) -> str | None:
        """Why no session can be taken on now; None if one can. Conversations give their room to sessions, and clients
        that are not there give theirs to those that are."""
        limits, needed = self.limits, self._positions(wanted)
        live = sum(self._positions(seat.wanted) for seat in self._seats.values())
        full = limits.positions is not None and live + needed > limits.positions
        with self._lock:
            away = [seat for seat in self._seats.values() if seat.client in self._away]
        if away and (full or len(self._seats) >= limits.sessions):
            self._end(away[0])
            return self._no_room(client, wanted)
        own = sum(of == client for of, _ in self._seats)
        if len(self._seats) >= limits.sessions or own >= limits.of_client:
            return f"the host has {len(self._seats)} sessions, {own} of this client; try again later"
        if full:
            return f"the host has no memory left for a text of {needed} tokens; try again later, or ask for fewer"
        if limits.positions is not None:
            besides = (client, -1 if wanted.conversation is None else wanted.conversation)
            self._conversations.make_room(limits.positions - live - needed, besides)
        return None

    def _positions(self, wanted: Wanted) -> int:
        """How many positions' keys and values it may need, or what takes as much memory."""
        positions, needs = wanted.positions(self._verifier.context_length), self._offered.possible(wanted.needs)
        # states that a pass gives are kept as float32, and all features until the client has them
        kept = 4 * self._offered.hidden_size * len(needs.of_rows) + bytes_of_row(self._offered.layout(needs))
        return positions + self.limits.scratch + -(-positions * kept // self.limits.bytes_each)

    def _draft(self, seat: Guest, message: Message, draft: DraftBody) -> None:
        """A draft came. One for a round that was answered is answered as it was; one for a round to come waits."""
        round_, mark = message.round, message.mark
        before = seat.drafts.get(round_)
        if round_ > seat.opened:  # its client has heard the answer to the prompt, and so what was shown before that
            seat.shown.clear()
        if round_ in seat.answers:
            seat.tell(Kind.VERDICT, seat.answers[round_].packed(), round=round_, mark=mark)
        elif round_ < seat.wire_round or seat.ended:
            seat.tell(Kind.PASSED, b"", round=round_, mark=mark)
        elif before is not None and before[0] == mark and round_ > seat.wire_round and not self._is_ready(seat):
            # it has come again, and what it waits for does not come: the client is further than this session
            seat.send(message.refused(Code.GONE, _UNKNOWN))
            self._end(seat)
        else:
            if before is not None and before[0] != mark:
                seat.tell(Kind.PASSED, b"", round=round_, mark=before[0])
            seat.drafts[round_] = (mark, draft)
            for late in sorted(seat.drafts)[_KEPT:]:  # nobody drafts that far ahead
                del seat.drafts[late]

    def _fail(self, seat: Guest, code: Code, text: str) -> None:
        """End a session with an error."""
        try:
            seat.tell(Kind.ERROR, ErrorBody(code, text).packed())
        finally:
            self._end(seat)

    def _end(self, seat: Guest) -> None:
        seat.ended = True
        self._seats.pop((seat.client, seat.session), None)
        self._by_sequence.pop(seat.request.sequence, None)
        self._verifier.end(seat.request.sequence)
        conversation = seat.request.conversation
        if conversation is not None:
            self._conversations.ended(conversation)

    # -- passes -----------------------------------------------------------------------------------------------------

    def _is_ready(self, seat: Guest) -> bool:
        return not seat.ended and bool(seat.left or seat.replay or self._current(seat) is not None)

    def _current(self, seat: Guest) -> DraftBody | None:
        """The draft for a session's round. One that was made behind a wrong guess is passed over."""
        if seat.current is None:
            return None
        mark, draft = seat.current
        if draft.base != seat.known:
            del seat.drafts[seat.wire_round]
            seat.tell(Kind.PASSED, b"", round=seat.wire_round, mark=mark)
            return None
        return draft

    def _pass(self) -> None:
        """One pass over what there is."""
        drafting = [seat for seat in self._seats.values() if not seat.left and self._is_ready(seat)]
        each = max(0, self.limits.rows // max(1, len(drafting)) - 1)
        context, size = self._verifier.context_length, self._verifier.vocab_size
        drafts = [seat.draft(each, context, size) for seat in drafting]
        rows = sum(len(draft) + 1 for draft in drafts)
        chunks = chunks_of(list(self._seats.values()), self.limits.beside(rows))
        if not drafts and not chunks:
            return
        began = time.monotonic()
        verdicts = self._checked(drafts, chunks)
        if not chunks:
            self._checking.heard(rows, time.monotonic() - began)
        if (error := self._changed()) is not None:
            raise error
        self.passes += 1
        self.checked += rows - len(drafts)
        answered = {verdict.sequence: verdict for verdict in verdicts}
        for sequence in [*(draft.sequence for draft in drafts), *(chunk.sequence for chunk in chunks)]:
            seat, verdict = self._by_sequence.get(sequence), answered.get(sequence)
            if seat is not None and verdict is not None:
                self._settle(seat, verdict)
            elif seat is not None:  # a pass that failed had gone on without a word: its client opens it again
                self._fail(seat, Code.GONE, "the host has lost this text")

    def _checked(self, drafts: Sequence[Draft], chunks: Sequence[PromptChunk]) -> list[Verdict]:
        """The verdicts of a pass. If it fails, each session gets one of its own, so that only those at fault end."""
        try:
            return self._verifier.result(self._verifier.submit(drafts, chunks))
        except Exception as error:
            named = [*(draft.sequence for draft in drafts), *(chunk.sequence for chunk in chunks)]
            if len(named) == 1:
                self._fail(self._by_sequence[named[0]], Code.FAILED, f"the pass failed ({error})")
                return []
            alone = [self._checked([draft], ()) for draft in drafts] + [self._checked((), [each]) for each in chunks]
            return [verdict for verdicts in alone for verdict in verdicts]

    def _settle(self, seat: Guest, verdict: Verdict) -> None:
        """Tell a client what came of its part of a pass."""
        if verdict.error is not None:
            self._fail(seat, Code.FAILED, str(verdict.error))
            return
        seat.round = verdict.round + bool(verdict.tokens or verdict.round)
        reading, seat.left = bool(seat.left), verdict.prompt_left
        seat.read += verdict.read
        seat.known += len(verdict.tokens)
        if verdict.features is not None and (reading or seat.replay):
            seat.show(verdict.features, verdict.features.start + rows_of(verdict.features))
        if not verdict.tokens:
            return
        if seat.replay:
            self._replayed(seat, verdict)
        else:
            seat.answer(verdict, _KEPT, reading=reading)
        seat.ended = seat.ended or verdict.last

    def _replayed(self, seat: Guest, verdict: Verdict) -> None:
        """The client's own tokens were checked again."""
        came = list(verdict.tokens)
        if seat.replay[: len(came)] != came or verdict.last:
            self._fail(seat, Code.OTHER, "the host writes another text than it did before; it may have changed")
            return
        del seat.replay[: len(came)]
        if not seat.replay:
            seat.ready = ReadyBody(seat.read, seat.cached, seat.known, (), None)
            seat.tell(Kind.READY, seat.ready.packed())
