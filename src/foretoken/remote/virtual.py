"""Clients, a host and the networks between them on a clock of their own: how long texts would take, without waiting.

The rounds of the texts are given: what was drafted, what came of it, and how long each part of the work takes. The
networks are the relay's (`foretoken.remote.network`). The host makes passes as `foretoken.remote.room` does: a pass
takes what is there when it begins, and waits for drafts that are about to come if that pays. But prompts are left out,
drafts are never cut, as a host cuts them that has more than 512 rows, and a pass waits once. The same rounds always
give the same times.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from foretoken.remote.network import Lane, Profile
from foretoken.remote.waiting import Habit, pause


class Step(NamedTuple):
    """A round of a text. drafting: seconds. rows: of its check. tokens: that the text gains. sent, received: bytes of
    the draft and of the answer, with what WebSocket adds."""

    drafting: float
    rows: int
    tokens: int
    sent: int
    received: int


class Played(NamedTuple):
    """What came of it. seconds: until the last answer has arrived. passes: of the host."""

    seconds: float
    tokens: int
    passes: int

    @property
    def tokens_per_second(self) -> float:
        """Of all texts together."""
        return self.tokens / self.seconds


def play(
    texts: Sequence[Sequence[Step]],
    profile: Profile,
    checking: Callable[[int], float],
    *,
    handling: float = 0.0,
    at_host: bool = False,
    seed: int = 0,
) -> Played:
    """Texts of as many clients, all begun at once, after their prompts were read.

    profile: each client's network. checking: the seconds of a pass by its rows. handling: seconds of a round that are
    neither drafting, checking nor travelling: of messages that are made and read, and of threads that wake. at_host:
    the host drafts, too, one draft after the other before each pass; then a round has none of these, and does not wait
    for the network.
    """
    lanes = [(Lane(profile, 2 * each + seed), Lane(profile, 2 * each + 1 + seed)) for each in range(len(texts))]
    steps, habits = [iter(text) for text in texts], [Habit() for _ in texts]
    order = itertools.count()  # of what happens at one time
    happens: list[tuple[float, int, int, Step | None]] = []  # when; the client; its draft at the host, or its answer
    now, passes = 0.0, 0

    def begin(client: int) -> None:
        step = next(steps[client], None)
        if step is None:
            habits[client].answered = None
            return
        arrives = now if at_host else lanes[client][0].message(now + step.drafting + handling, step.sent)
        heapq.heappush(happens, (arrives, next(order), client, step))

    waiting: list[tuple[int, Step]] = []
    under_way: list[tuple[int, Step]] = []
    ends = 0.0  # the pass under way
    for client in range(len(texts)):
        begin(client)
    while happens or waiting or under_way:
        if waiting and not under_way:
            coming = [each for habit in habits if (each := habit.coming(now)) is not None]
            wait = pause([step.rows for _, step in waiting], coming, checking)
            if not wait or not happens or now + wait < happens[0][0]:
                now += wait
                under_way, waiting = waiting, []
                ends = now + checking(sum(step.rows for _, step in under_way))
                ends += sum(step.drafting for _, step in under_way) if at_host else 0.0
                passes += 1
        if under_way and (not happens or ends <= happens[0][0]):
            now = ends
            for client, step in under_way:
                habits[client].answered = now
                arrives = now if at_host else lanes[client][1].message(now, step.received)
                heapq.heappush(happens, (arrives, next(order), client, None))
            under_way = []
            continue
        now = happens[0][0]
        while happens and happens[0][0] == now:  # what comes at one time shares a pass
            _, _, client, its = heapq.heappop(happens)
            if its is None:
                begin(client)
            else:
                habits[client].replied(now, its.rows)
                waiting.append((client, its))
    return Played(now, sum(step.tokens for text in texts for step in text), passes)
