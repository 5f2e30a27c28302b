"""A verifier while whose passes a drafter goes on, whenever a pass waits for weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Thread

from foretoken.protocol.roles import Verifier
from foretoken.protocol.types import Draft, PromptChunk, Request, Verdict

GoOn = Callable[[Sequence[int], Callable[[], bool]], None]
_SURELY = 2e-4  # seconds: a pass that waits as long waits for the disk, and not for a thread that has what it wants
_AGAIN = 2e-4  # seconds between two looks
_HALF = 0.5  # of a check's time


class MeanwhileVerifier:
    """Another verifier, with drafting in a second thread while it makes a pass over drafts.

    waiting: for how many seconds its pass has been waiting for weights to come in; 0 if it is not. waited: for how many
    seconds passes have waited so far. go_on: drafts on (`foretoken.drafters.tree.TreeDrafter.go_on`). It runs no layers
    but while the pass waits, so that the pass finds the cores free for nearly all of its arithmetic. Yet a step that
    has begun delays the pass, if what it waits for comes. So nothing is drafted unless the check before this one has
    waited for half of its time. The pass stays in the caller's thread, where Ctrl-C ends it. clock: in seconds.
    """

    def __init__(
        self,
        near: Verifier,
        waiting: Callable[[], float],
        waited: Callable[[], float],
        go_on: GoOn,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.context_length, self.vocab_size = near.context_length, near.vocab_size
        self.near = near
        self._waiting = waiting
        self._waited = waited
        self._go_on = go_on
        self._clock = clock
        self._share = 0.0  # of the time of the last check, for which it waited

    def admit(self, request: Request) -> None:
        """As the other one."""
        self.near.admit(request)

    def submit(self, drafts: Sequence[Draft], chunks: Sequence[PromptChunk] = ()) -> int:
        """Make one pass, and draft meanwhile. When this call returns, both are done. Raises the error of either."""
        sequences = [draft.sequence for draft in drafts if len(draft)]
        if not sequences:
            return self.near.submit(drafts, chunks)
        if self._share < _HALF:
            return self._checked(drafts, chunks)
        ended = False
        failed: list[BaseException] = []

        def may() -> bool:
            while not ended and self._waiting() < _SURELY:
                time.sleep(_AGAIN)
            return not ended

        def run() -> None:
            try:
                self._go_on(sequences, may)
            except BaseException as error:
                failed.append(error)

        thread = Thread(target=run, name="foretoken-drafting", daemon=True)
        thread.start()
        try:
            ticket = self._checked(drafts, chunks)
        finally:
            ended = True
            thread.join()  # a step of drafting at most
        if failed:
            raise failed[0]
        return ticket

    def _checked(self, drafts: Sequence[Draft], chunks: Sequence[PromptChunk]) -> int:
        """Make one pass, and note for how much of its time it waited."""
        began, before = self._clock(), self._waited()
        ticket = self.near.submit(drafts, chunks)
        self._share = (self._waited() - before) / max(self._clock() - began, 1e-9)
        return ticket

    def result(self, ticket: int) -> list[Verdict]:
        """As the other one."""
        return self.near.result(ticket)

    def end(self, sequence: int) -> None:
        """As the other one."""
        self.near.end(sequence)

    def forget(self, conversation: int) -> None:
        """As the other one."""
        self.near.forget(conversation)
