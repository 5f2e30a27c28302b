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
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeAlias

from foretoken.api.model import Model
from foretoken.api.trusted import changed
from foretoken.drafters.lookup import PREDICTION
from foretoken.errors import ForetokenError, PromptError, SettingError
from foretoken.loop.beside import Beside
from foretoken.loop.generating import Ended
from foretoken.loop.output import Output, Piece
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Draft, Request, Verdict
from foretoken.results.completion import Completion, TokenLogprobs
from foretoken.serve.errors import BusyError, StoppingError
from foretoken.serve.limits import Limits
from foretoken.settings.generate import GenerateSettings
from foretoken.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)
_PREFIXES = 16  # contexts of keys and values that are kept, if it is not known how many there is memory for
_FIRST = 24  # rows of prompts in a pass that others wait for, before it is known what they cost


@dataclass(frozen=True)
class Gained:
    """What a round brought one text: pieces, with their log probabilities if the request wants them, or a part of its
    prompt. at: seconds since its request came."""

    index: int
    pieces: tuple[Piece, ...]
    logprobs: tuple[TokenLogprobs, ...]
    verdict: Verdict
    draft: Draft | None
    record: RoundRecord
    at: float


@dataclass(frozen=True)
class Done:
    """A text has ended. predicted: how many tokens were drafted from the text that its request predicts."""

    index: int
    completion: Completion
    predicted: int = 0


@dataclass(frozen=True)
class Failed:
    """The request has failed: none of its texts goes on."""

    error: Exception


Event: TypeAlias = Gained | Done | Failed


@dataclass
class Times:
    """When what happened to a request, by `time.perf_counter`; 0 if it has not happened."""

    came: float = field(default_factory=time.perf_counter)
    began: float = 0.0
    first: float = 0.0
    ended: float = 0.0


@dataclass(eq=False)
class Asked:
    """A prompt with all its completions. tell: called in the loop's thread with what happens; it must not wait.
    rounds: whether it is told of each round, or of the ends only. tokenizer: which writes
    the texts. read, written: tokens so far, of all its texts."""

    name: str
    requests: Sequence[Request]
    settings: GenerateSettings
    tell: Callable[[Event], None]
    rounds: bool = True
    tokenizer: Tokenizer | None = None
    times: Times = field(default_factory=Times)
    read: int = 0
    written: int = 0
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = len(self.requests)

    @property
    def prompt(self) -> tuple[int, ...]:
        """The prompt's tokens."""
        return self.requests[0].prompt


@dataclass(eq=False)
class _Seat:
    """A text under way."""

    asked: Asked
    index: int
    request: Request
    output: Output
    records: list[RoundRecord] = field(default_factory=list)
    predicted: int = 0


class Watcher:
    """What is told of everything that the loop does: for metrics. Called in the loop's thread."""

    def came(self, asked: Asked) -> None:
        """A request has come."""

    def went_on(self, asked: Asked, tokens: int, seconds: float, first: bool) -> None:
        """A text has gained tokens, in a round of so many seconds."""

    def made(self, record: RoundRecord) -> None:
        """A round was made."""

    def ended(self, asked: Asked, completion: Completion | None) -> None:
        """A text has ended; None: with an error."""


class Worker:
    """Generates for many requests. Nobody else may use the model meanwhile.

    `over` is set when the thread has ended; `error` is then the reason, if it was not asked to.
    """

    def __init__(self, model: Model, limits: Limits, watcher: Watcher | None = None) -> None:
        self.model, self.limits = model, limits
        self.over = threading.Event()
        self.error: BaseException | None = None
        self._watcher = watcher or Watcher()
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._waiting: deque[Asked] = deque()
        self._coming = 0  # requests that were submitted, and are not among the waiting ones yet
        self._lock = threading.Lock()  # of the number before
        self._seats: dict[int, _Seat] = {}
        self._stopping = self._draining = False
        most = limits.positions if limits.positions is not None else _PREFIXES * limits.context
        self.prefixes = model.keep_prefixes(most) if limits.prefixes else None  # what was read for earlier requests
        self._beside = Beside(_FIRST, model.settings.prefill_chunk)
        self._records: list[RoundRecord] = []  # that of the last round
        self._engine = model.engine(self._records.append, self._beside)
        self._thread = threading.Thread(target=self._work, name="foretoken-serve", daemon=True)
        self._thread.start()

    # -- other threads ----------------------------------------------------------------------------------------------

    def submit(self, asked: Asked) -> None:
        """Take a request on. Raises SettingError or PromptError for one that can never be served here, BusyError if too
        many wait, and StoppingError if the server is about to end."""
        limits, longest = self.limits, self.limits.context
        if len(asked.prompt) >= longest:
            raise PromptError(
                f"the prompt has {len(asked.prompt)} tokens, and a text here has at most {longest} with what follows; "
                "shorten the prompt"
            )
        if len(asked.requests) > limits.sequences:
            raise SettingError(
                f"n is {len(asked.requests)}, and at most {limits.sequences} texts are generated at once"
            )
        needed = self._needed(asked)
        if limits.positions is not None and needed > limits.positions:
            raise SettingError(
                f"the request may need memory for {needed:,} tokens, and there is memory for {limits.positions:,}; ask "
                "for fewer tokens, or for fewer completions"
            )
        with self._lock:
            if self._draining or self.over.is_set():
                raise StoppingError
            free = max(0, self._most_sequences - len(self._seats))  # who has just come may begin at once
            if self.waiting >= limits.waiting + free:
                raise BusyError(self.waiting)
            self._coming += 1
        self._inbox.put(lambda: self._take(asked))

    def cancel(self, asked: Asked) -> None:
        """Give a request up. Its texts leave before the next round. Does nothing if it has ended."""
        self._inbox.put(lambda: self._give_up(asked))

    def close(self, *, drain: float = 0.0) -> None:
        """End. drain: seconds in which what is under way, or waits, may be finished."""
        with self._lock:
            self._draining = True
        self._inbox.put(None)
        if drain > 0:
            self.over.wait(drain)
        self._stopping = True
        self._inbox.put(None)
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
                elif self._draining and not self.waiting:
                    break
        except BaseException as error:
            self.error = error
        finally:
            self.over.set()
            self._fail_all(self.error if isinstance(self.error, Exception) else StoppingError())

    def _hear(self) -> None:
        """Do what others have asked for; wait for it if there is nothing else to do."""
        idle = not self._seats and not self._waiting and not (self._draining and not self._coming)
        try:
            do = self._inbox.get(block=idle)
            while True:
                if do is not None:
                    do()
                do = self._inbox.get_nowait()
        except Empty:
            pass

    def _take(self, asked: Asked) -> None:
        with self._lock:
            self._coming -= 1
        self._waiting.append(asked)
        self._watcher.came(asked)

    def _give_up(self, asked: Asked) -> None:
        if asked in self._waiting:
            self._waiting.remove(asked)
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
            self._seats[request.sequence] = _Seat(asked, index, request, output)

    # -- rounds -----------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        """One round. If it fails as a whole, all texts under way fail, and the next ones are served again."""
        began = time.perf_counter()
        try:
            self._expect_unchanged()
            self._records.clear()
            verdicts = self._engine.step()
            self._expect_unchanged()
        except Exception as error:
            if not isinstance(error, ForetokenError):
                log.exception("a round failed")
            self._fail_all(error)
            return
        if not self._records:
            return
        record = self._records[-1]
        seconds = time.perf_counter() - began
        self._watcher.made(record)
        self._beside.heard(record)
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
            self._watcher.went_on(asked, len(pieces), seconds, not asked.times.first)
            asked.times.first = asked.times.first or now
        if asked.rounds:
            logprobs = tuple(seat.output.logprobs[known:])
            asked.tell(Gained(seat.index, pieces, logprobs, verdict, draft, record, now - asked.times.came))
        if verdict.last:
            self._end(seat)

    def _end(self, seat: _Seat) -> None:
        """A text has ended, or was cancelled."""
        asked = seat.asked
        del self._seats[seat.request.sequence]
        self._engine.cancel(seat.request.sequence)
        self._make_room(self.positions)
        asked.left -= 1
        asked.times.ended = time.perf_counter()
        done = self.model.completion(Ended(seat.request, seat.output, seat.records), asked.settings)
        self._watcher.ended(asked, done)
        asked.tell(Done(seat.index, done, seat.predicted))

    def _fail(self, asked: Asked, error: Exception) -> None:
        """A request has failed. All its texts end."""
        for seat in [seat for seat in self._seats.values() if seat.asked is asked]:
            del self._seats[seat.request.sequence]
            self._engine.cancel(seat.request.sequence)
        for request in asked.requests:  # one that was being admitted
            self._engine.cancel(request.sequence)
        asked.times.ended = time.perf_counter()
        self._watcher.ended(asked, None)
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
