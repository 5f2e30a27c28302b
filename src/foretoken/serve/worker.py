"""The server's loop: one thread makes rounds over the texts of all requests.

A request waits until there is room for it: for its texts among those under way, and for the keys and values that it may
need. So whatever was begun can be finished. Requests join in the order in which they came. Those that are cancelled
leave between two rounds. Nothing that a request holds may end the thread: what fails in one text ends that text.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue

from foretoken.api.model import Model
from foretoken.api.pacing import price_at_start
from foretoken.api.trusted import changed
from foretoken.drafters.lookup import PREDICTION
from foretoken.errors import ForetokenError, PromptError, SettingError
from foretoken.loop.beside import Beside
from foretoken.loop.generating import Ended
from foretoken.loop.output import Output
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Request, Verdict
from foretoken.serve.asked import Asked, Done, Failed, Gained, Times, Watcher
from foretoken.serve.errors import BusyError, StoppingError
from foretoken.serve.limits import Limits

log = logging.getLogger(__name__)
_PREFIXES = 16  # contexts of keys and values that are kept, if it is not known how many there is memory for


@dataclass(eq=False)
class _Seat:
    """A text under way."""

    asked: Asked
    index: int
    request: Request
    output: Output
    times: Times
    records: list[RoundRecord] = field(default_factory=list)
    predicted: int = 0


class Worker:
    """Generates for many requests. Nobody else may use the model meanwhile.

    `over` is set when the thread has ended; `error` is then the reason, if it was not asked to.
    """

    def __init__(
        self,
        model: Model,
        limits: Limits,
        watcher: Watcher | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """ended: called when the thread has ended."""
        self.model, self.limits = model, limits
        self._ended = ended
        self.over = threading.Event()
        self.error: BaseException | None = None
        self._watcher = watcher or Watcher()
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._waiting: deque[Asked] = deque()
        self._coming = 0  # requests that were submitted, and are not among the waiting ones yet
        self._lock = threading.Lock()  # of the number before
        self._seats: dict[int, _Seat] = {}
        self._stopping = False
        most = limits.positions if limits.positions is not None else _PREFIXES * limits.context
        self.prefixes = model.keep_prefixes(most) if limits.prefixes else None  # what was read for earlier requests
        self._beside = Beside(model.settings.prefill_chunk, price_at_start(model.target))
        self._records: list[RoundRecord] = []  # that of the last round
        self._engine = model.engine(self._records.append, self._beside)
        self._thread = threading.Thread(target=self._work, name="foretoken-serve", daemon=True)
        self._thread.start()

    # -- other threads ----------------------------------------------------------------------------------------------

    def submit(self, every: Sequence[Asked]) -> None:
        """Take on the prompts of a request: all of them, or none. Raises SettingError or PromptError for what can never
        be served here, BusyError if too many wait, and StoppingError if the server is about to end."""
        for asked in every:
            self._expect_possible(asked)
        limits = self.limits
        if len(every) > limits.waiting + self._most_sequences:
            raise SettingError(
                f"the request has {len(every)} prompts, and at most {limits.waiting + self._most_sequences} may wait; "
                "send fewer at once"
            )
        with self._lock:
            if self._stopping or self.over.is_set():
                raise StoppingError
            free = max(0, self._most_sequences - len(self._seats))  # who has just come may begin at once
            if self.waiting + len(every) > limits.waiting + free:
                raise BusyError(self.waiting)
            self._coming += len(every)
        for asked in every:
            self._inbox.put(partial(self._take, asked))

    def _expect_possible(self, asked: Asked) -> None:
        limits, longest = self.limits, self.limits.context
        if len(asked.prompt) >= longest:
            raise PromptError(
                f"the prompt has {len(asked.prompt)} tokens, and a text here has at most {longest} with what follows; "
                "shorten the prompt"
            )
        most = self._most_sequences
        if len(asked.requests) > most:
            raise SettingError(f"n is {len(asked.requests)}, and at most {most} texts are generated at once")
        needed = self._needed(asked)
        if limits.positions is not None and needed > limits.positions:
            raise SettingError(
                f"the request may need memory for {needed:,} tokens, and there is memory for {limits.positions:,}; ask "
                "for fewer tokens, or for fewer completions"
            )

    def cancel(self, asked: Asked) -> None:
        """Give a request up. Its texts leave before the next round. Does nothing if it has ended."""
        self._inbox.put(partial(self._give_up, asked))

    def stop(self) -> None:
        """End before the next round. What is under way, or waits, fails."""
        with self._lock:
            self._stopping = True
        self._inbox.put(None)

    def close(self) -> None:
        """The same, and wait for the end."""
        self.stop()
        self._thread.join()

    @property
    def waiting(self) -> int:
        """How many requests wait for their turn."""
        return self._coming + len(self._waiting)

    @property
    def running(self) -> list[Asked]:
        """The requests whose texts are under way."""
        return list(dict.fromkeys(seat.asked for seat in list(self._seats.values())))

    @property
    def positions(self) -> int:
        """How many positions of keys and values are reserved for the texts under way."""
        return sum(self.limits.needed(seat.request) for seat in list(self._seats.values()))

    # -- the thread -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._stopping:
                self._hear()
                self._admit()
                if self._seats:
                    self._round()
        except BaseException as error:
            log.exception("the server's loop has failed")
            self.error = error
        finally:
            with self._lock:  # from here on, nothing comes in
                self.over.set()
            self._empty_inbox()
            self._fail_all(self.error if isinstance(self.error, Exception) else StoppingError())
            self._ended()

    def _hear(self) -> None:
        """Do what others have asked for; wait for it if there is nothing else to do."""
        if not self._seats and not self._waiting:
            self._do(self._inbox.get())
        self._empty_inbox()

    def _empty_inbox(self) -> None:
        with suppress(Empty):
            while True:
                self._do(self._inbox.get_nowait())

    def _do(self, what: Callable[[], None] | None) -> None:
        """Do what others have asked for; None only wakes the thread."""
        try:
            if what is not None:
                what()
        except Exception:
            log.exception("what was asked of the loop has failed")

    def _take(self, asked: Asked) -> None:
        with self._lock:
            self._coming -= 1
        self._waiting.append(asked)
        self._watcher.came(asked)

    def _give_up(self, asked: Asked) -> None:
        if asked in self._waiting:
            self._waiting.remove(asked)
            for _ in asked.requests:
                self._watcher.ended(asked, asked.times, None, "cancelled")
        for seat in [seat for seat in self._seats.values() if seat.asked is asked]:
            seat.output.cancel()
            self._end(seat)

    def _needed(self, asked: Asked) -> int:
        return sum(map(self.limits.needed, asked.requests))

    def _admit(self) -> None:
        """Let requests join in the order in which they came, as long as there is room for the first of them."""
        while self._waiting:
            asked = self._waiting[0]
            if len(self._seats) + len(asked.requests) > self._most_sequences:
                return
            positions, needed = self.limits.positions, self.positions + self._needed(asked)
            if positions is not None and needed > positions:
                return
            self._make_room(needed)
            self._waiting.popleft()
            asked.times.began = time.perf_counter()
            try:
                self._begin(asked)
            except Exception as error:
                self._fail(asked, error)

    def _make_room(self, positions: int) -> None:
        """What is kept of earlier requests leaves room for so many positions of those under way."""
        if self.limits.positions is not None and self.prefixes is not None:
            self.prefixes.make_room(self.limits.positions - positions)

    @property
    def _most_sequences(self) -> int:
        far = self.model.far.at_once
        return self.limits.sequences if far is None else min(far, self.limits.sequences)

    def _begin(self, asked: Asked) -> None:
        for index, request in enumerate(asked.requests):
            output = Output(request, asked.tokenizer, asked.settings)
            self._engine.admit(request)
            self._seats[request.sequence] = _Seat(asked, index, request, output, replace(asked.times))

    # -- rounds -----------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        """One round. If it fails as a whole, all texts under way fail, and the next ones are served again."""
        began = time.perf_counter()
        try:
            self._expect_unchanged()
            self._records.clear()
            verdicts = self._engine.step()
            self._expect_unchanged()
            record = self._records[-1] if self._records else None
            if record is not None:
                self._watcher.made(record)
                self._beside.heard(record)
        except Exception as error:
            if not isinstance(error, ForetokenError):
                log.exception("a round failed")
            if self.prefixes is not None:  # there may have been too little memory
                self.prefixes.clear()
            self._fail_all(error)
            return
        if record is None:
            return
        seconds = time.perf_counter() - began
        for sequence in (*record.late, *(verdict.sequence for verdict in verdicts)):
            if sequence in self._seats:
                self._seats[sequence].records.append(record)
        for verdict in verdicts:
            seat = self._seats.get(verdict.sequence)
            if seat is not None:
                try:
                    self._hand_out(seat, verdict, record, seconds)
                except Exception as error:
                    log.exception("a text failed")
                    self._fail(seat.asked, error)

    def _expect_unchanged(self) -> None:
        error = changed(self.model.mapped)
        if error is not None:
            raise error

    def _hand_out(self, seat: _Seat, verdict: Verdict, record: RoundRecord, seconds: float) -> None:
        """Tell a request what a round has brought one of its texts."""
        asked = seat.asked
        if verdict.error is not None:
            self._fail(asked, verdict.error)
            return
        known = len(seat.output.logprobs)
        pieces = tuple(seat.output.take(verdict))
        draft = self._engine.checked.get(verdict.sequence)
        if seat.request.predicted and draft is not None:
            seat.predicted += draft.origins.count(PREDICTION)
        now = time.perf_counter()
        asked.read += verdict.read
        asked.written += len(pieces)
        if pieces:
            self._watcher.went_on(asked, len(pieces), seconds, not seat.times.first)
            asked.times.first = asked.times.first or now
            seat.times.first = seat.times.first or now
        if asked.rounds:
            logprobs = tuple(seat.output.logprobs[known:])
            small = replace(verdict, logits=None, prompt_logits=None, features=None)  # it may wait for its client
            asked.tell(Gained(seat.index, pieces, logprobs, small, draft, record, now - asked.times.came))
        if verdict.last:
            self._end(seat)

    def _end(self, seat: _Seat) -> None:
        """A text has ended, or was cancelled."""
        asked = seat.asked
        del self._seats[seat.request.sequence]
        self._engine.cancel(seat.request.sequence)
        self._make_room(self.positions)
        asked.left -= 1
        asked.times.ended = seat.times.ended = time.perf_counter()
        done = self.model.completion(Ended(seat.request, seat.output, seat.records), asked.settings)
        self._watcher.ended(asked, seat.times, done, done.finish_reason)
        asked.tell(Done(seat.index, done, seat.predicted))

    def _fail(self, asked: Asked, error: Exception) -> None:
        """A request has failed. All its texts end."""
        asked.times.ended = time.perf_counter()
        for request in asked.requests:  # one may be in the middle of its admission
            self._seats.pop(request.sequence, None)
            self._engine.cancel(request.sequence)
        for _ in range(asked.left):
            self._watcher.ended(asked, asked.times, None, "error")
        self._make_room(self.positions)
        asked.tell(Failed(error))

    def _fail_all(self, error: Exception) -> None:
        """All texts under way have failed; those that wait, too, if the thread ends."""
        asked = self.running
        try:
            self._engine.close()
        except Exception:
            log.exception("the loop could not be closed")
        self._seats.clear()
        if self.over.is_set():
            with self._lock:
                asked += self._waiting
                self._waiting.clear()
        for each in asked:
            self._fail(each, error)
