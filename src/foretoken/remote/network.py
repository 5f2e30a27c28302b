"""How long networks take: the delays, rates and losses of the relay, and of the clock that only plays one.

Bytes travel in segments. Each waits until the link is free, as its rate has it, and then for a delay that is drawn.
Segments arrive in their order, as on a radio link. A segment that is lost comes a round trip later if others follow it,
which tell the sender, and else 200 ms later, when the sender gives up waiting.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SEGMENT = 1448  # bytes: of Ethernet's 1500, without the headers of IP and TCP
_TIMEOUT = 0.2  # seconds after which TCP sends again what nobody has confirmed
_FOLLOW = 3  # segments behind a lost one after which the sender knows that it is lost


@dataclass(frozen=True)
class Profile:
    """A network, the same in both directions. delay: seconds that every segment takes. mean, deviation: of a normal
    distribution of seconds, cut at 0, which come on top. rate: bytes a second; None: no limit. loss: the share of
    segments that are lost."""

    delay: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0
    rate: float | None = None
    loss: float = 0.0


_MEGABIT = 1e6 / 8
PROFILES = {  # after Zimmer et al. 2025, section 4.2: two cities 300 km apart, then a mobile network on top
    "lan": Profile(),
    "base": Profile(0.0045, rate=50 * _MEGABIT),
    "5g": Profile(0.0045, 0.010, 0.010, 50 * _MEGABIT, 0.001),
    "4g": Profile(0.0045, 0.021, 0.019, 20 * _MEGABIT, 0.001),
    # the rate at which the paper's table 3 fits its sizes of messages (table 7): its network lost more than it says
    "4g-paper": Profile(0.0045, 0.021, 0.019, 2.7 * _MEGABIT, 0.001),
}


class Lane:
    """One direction of one connection. Times are seconds of any clock."""

    def __init__(self, profile: Profile, seed: int) -> None:
        self._profile = profile
        self._chance = random.Random(seed)
        self._free = self._last = 0.0

    def segment(self, now: float, size: int, following: int) -> float:
        """When a segment arrives that is handed over now. following: how many of its message come behind it."""
        its = self._profile
        self._free = max(self._free, now) + (size / its.rate if its.rate else 0.0)
        delay = its.delay + max(0.0, self._chance.gauss(its.mean, its.deviation))
        if self._chance.random() < its.loss:
            delay += 2 * (its.delay + its.mean) if following >= _FOLLOW else _TIMEOUT
        self._last = max(self._last, self._free + delay)
        return self._last

    def message(self, now: float, size: int) -> float:
        """When all of a message has arrived."""
        count = -(-size // SEGMENT)
        for number in range(count):
            self.segment(now, min(SEGMENT, size - number * SEGMENT), count - 1 - number)
        return max(self._last, now)
