"""A verifier whose passes run in a thread of their own, so that drafting can go on meanwhile."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from foretoken.errors import ContractError
from foretoken.protocol.roles import Verifier
from foretoken.protocol.types import Draft, PromptChunk, Request, Verdict

Result = TypeVar("Result")


class WorkerVerifier:
    """Runs another verifier in a thread of its own, one call after the other, in their order.

    This pays if a pass waits for something other than the cores that draft, such as a disk or another device. `close`
    ends the thread, and so does the garbage collector, when nobody holds this object any more.
    """

    def __init__(self, near: Verifier) -> None:
        self.context_length, self.vocab_size = near.context_length, near.vocab_size
        self._near = near
        # the thread's number, once the thread runs. What notes it knows nothing of this object: a thread that did would
        # keep it alive, and so itself, if nobody closes it
        idents = self._idents = list[int]()
        self._thread = ThreadPoolExecutor(1, "foretoken-verifier", lambda: idents.append(threading.get_ident()))
        self._passes: dict[int, Future[list[Verdict]]] = {}
        self._tickets = itertools.count()

    def admit(self, request: Request) -> None:
        """As the other one, after the passes under way."""
        self._ask(lambda: self._near.admit(request))

    def submit(self, drafts: Sequence[Draft], chunks: Sequence[PromptChunk] = ()) -> int:
        """Start a pass and return at once."""
        ticket = next(self._tickets)
        self._passes[ticket] = self._thread.submit(lambda: self._near.result(self._near.submit(drafts, chunks)))
        return ticket

    def result(self, ticket: int) -> list[Verdict]:
        """Wait for a pass. Its verdicts can be taken once."""
        if ticket not in self._passes:
            raise ContractError(f"there is no check with ticket {ticket}, or its result was taken")
        return self._passes.pop(ticket).result()

    def end(self, sequence: int) -> None:
        """As the other one, after the passes under way."""
        self._ask(lambda: self._near.end(sequence))

    def forget(self, conversation: int) -> None:
        """As the other one, after the passes under way."""
        self._ask(lambda: self._near.forget(conversation))

    def close(self) -> None:
        """Wait for the calls under way, and end the thread."""
        self._thread.shutdown()

    def _ask(self, question: Callable[[], Result]) -> Result:
        if threading.get_ident() in self._idents:
            return question()  # Python's garbage collector called from the thread itself: waiting would never end
        return self._thread.submit(question).result()
