"""The conversations of which a host keeps what it has read: as many as it may, those that were used last."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

Key = tuple[str, int]  # a client, and its own number of a conversation


@dataclass(frozen=True)
class Conversation:
    """What is kept of a conversation. number: the verifier's. positions: of its keys and values, at most."""

    number: int
    positions: int = 0


class Conversations:
    """most: how many are kept. forget: frees what the verifier keeps of one."""

    def __init__(self, most: int, forget: Callable[[int], None]) -> None:
        self._most, self._forget = most, forget
        self._numbers = itertools.count()
        self._kept: dict[Key, Conversation] = {}  # the one that was used last comes last

    def of(self, key: Key, positions: int) -> Conversation:
        """A conversation, which may be new. It is not kept yet."""
        return replace(self._kept.get(key) or Conversation(next(self._numbers)), positions=positions)

    def keep(self, key: Key, conversation: Conversation, live: Collection[int | None]) -> None:
        """Keep one, in place of those that were not used for longest. live: the numbers of those in use."""
        self._kept.pop(key, None)
        for other, its in list(self._kept.items()):
            if len(self._kept) >= self._most and its.number not in live:
                self.forget(other)
        self._kept[key] = conversation

    def forget(self, key: Key) -> None:
        """Free what is kept of one, if anything is. What its session holds is freed when that ends."""
        its = self._kept.pop(key, None)
        if its is not None:
            self._forget(its.number)

    def forget_clients(self, clients: Collection[str]) -> None:
        """Free what is kept of some clients."""
        for key in [key for key in self._kept if key[0] in clients]:
            self.forget(key)

    def make_room(self, positions: int, besides: Key) -> None:
        """Free as many, but for one, as hold more than so many positions together."""
        for key in [key for key in self._kept if key != besides]:
            if sum(each.positions for each in self._kept.values()) > positions:
                self.forget(key)

    def ended(self, number: int) -> None:
        """The session of a conversation has ended. If that is not kept any more, free what the session has left."""
        if all(its.number != number for its in self._kept.values()):
            self._forget(number)
