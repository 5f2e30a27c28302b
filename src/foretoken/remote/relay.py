"""A network that is slow, on one machine: a relay between clients and a host, for measurements and tests.

    python -m foretoken.remote.relay 127.0.0.1:8443 --profile 4g --port 9443

Clients then name ws://127.0.0.1:9443. Bytes travel in segments. Each waits until the link is free, as its rate has it,
and then for a delay that is drawn; segments arrive in their order, as on a radio link. A segment that is lost comes a
round trip later if others follow it, which tell the sender, and else 200 ms later, when the sender gives up waiting.
"""

from __future__ import annotations

import argparse
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from statistics import NormalDist

from foretoken.errors import ForetokenError, SettingError
from foretoken.settings.values import place

_SEGMENT = 1448  # bytes: of Ethernet's 1500, without the headers of IP and TCP
_TIMEOUT = 0.2  # seconds after which TCP sends again what nobody has confirmed
_FOLLOW = 3  # segments behind a lost one after which the sender knows that it is lost
_READ = 1 << 16  # bytes


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

    def seconds(self, size: float) -> float:
        """What a message and its answer take on average, of so many bytes together, if nothing is lost."""
        usual = NormalDist(self.mean, self.deviation) if self.deviation else None
        above = self.mean if usual is None else self.mean * (1 - usual.cdf(0)) + self.deviation**2 * usual.pdf(0)
        return 2 * (self.delay + above) + (size / self.rate if self.rate else 0.0)


_MEGABIT = 1e6 / 8
PROFILES = {  # after Zimmer et al. 2025, section 4.2: two cities 300 km apart, then a mobile network on top
    "lan": Profile(),
    "base": Profile(0.0045, rate=50 * _MEGABIT),
    "5g": Profile(0.0045, 0.010, 0.010, 50 * _MEGABIT, 0.001),
    "4g": Profile(0.0045, 0.021, 0.019, 20 * _MEGABIT, 0.001),
    # the rate at which the paper's table 3 fits its sizes of messages (table 7): its network lost more than it says
    "4g-paper": Profile(0.0045, 0.021, 0.019, 2.7 * _MEGABIT, 0.001),
}


class _Way:
    """One direction of one connection. ended: called when nothing comes any more."""

    def __init__(
        self, source: socket.socket, to: socket.socket, profile: Profile, seed: int, ended: Callable[[], None]
    ) -> None:
        self.bytes = 0
        self._ended = ended
        self._source, self._to, self._profile = source, to, profile
        self._chance = random.Random(seed)
        self._free = self._last = 0.0
        self._queue: SimpleQueue[tuple[float, bytes] | None] = SimpleQueue()
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def _read(self) -> None:
        with suppress(OSError):
            while data := self._source.recv(_READ):
                self.bytes += len(data)
                pieces = [data[at : at + _SEGMENT] for at in range(0, len(data), _SEGMENT)]
                for number, piece in enumerate(pieces):
                    self._queue.put((self._arrival(len(piece), len(pieces) - 1 - number), piece))
        self._queue.put(None)

    def _arrival(self, size: int, following: int) -> float:
        """When a segment arrives."""
        its = self._profile
        self._free = max(self._free, time.monotonic()) + (size / its.rate if its.rate else 0.0)
        delay = its.delay + max(0.0, self._chance.gauss(its.mean, its.deviation))
        if self._chance.random() < its.loss:
            delay += 2 * (its.delay + its.mean) if following >= _FOLLOW else _TIMEOUT
        self._last = max(self._last, self._free + delay)
        return self._last

    def _write(self) -> None:
        with suppress(OSError):
            while (came := self._queue.get()) is not None:
                arrives, data = came
                time.sleep(max(0.0, arrives - time.monotonic()))
                self._to.sendall(data)
            self._to.shutdown(socket.SHUT_WR)
        self._ended()


class _Connection:
    """Both directions of one connection."""

    def __init__(self, near: socket.socket, far: socket.socket, profile: Profile, seed: int) -> None:
        self._sockets, self._left, self._lock = (near, far), 2, threading.Lock()
        for each in self._sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ways = [
            _Way(near, far, profile, 2 * seed, self._one_ended),
            _Way(far, near, profile, 2 * seed + 1, self._one_ended),
        ]

    def cut(self) -> None:
        """Break it."""
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _one_ended(self) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                for each in self._sockets:
                    each.close()


class Relay:
    """Listens on this machine, and hands on what comes to a host and back. seed: of delays and losses.

    Raises SettingError if it cannot listen.
    """

    def __init__(self, host: str, port: int, profile: Profile, *, listen: int = 0, seed: int = 0) -> None:
        self._there, self._profile, self._seed = (host, port), profile, seed
        self._connections: list[_Connection] = []
        try:
            self._listening = socket.create_server(("127.0.0.1", listen))
        except (OSError, OverflowError) as error:
            raise SettingError(f"the relay cannot listen on port {listen} ({error}); name another") from None
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def bytes(self) -> int:
        """What has gone through, in both directions: messages with all that WebSocket and TLS add."""
        return sum(way.bytes for connection in self._connections for way in connection.ways)

    def cut(self) -> None:
        """Break all connections that there are."""
        for each in self._connections:
            each.cut()

    def close(self) -> None:
        """Break all connections, and take no new ones."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        while self._listening.fileno() >= 0:
            try:
                near, _ = self._listening.accept()
            except OSError:
                continue
            try:
                far = socket.create_connection(self._there)
                seed = self._seed + len(self._connections)
                self._connections.append(_Connection(near, far, self._profile, seed))
            except OSError:
                near.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", metavar="HOST:PORT", help="where the host listens")
    parser.add_argument("--profile", choices=PROFILES, required=True)
    parser.add_argument("--port", type=int, default=0, help="where clients come in (%(default)s: any)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        host, port = place("the host's place", arguments.to)
        relay = Relay(host, port, PROFILES[arguments.profile], listen=arguments.port, seed=arguments.seed)
    except ForetokenError as error:
        parser.exit(2, f"foretoken: {error}\n")
    print(f"ws://127.0.0.1:{relay.port} leads to {arguments.to} over {arguments.profile}; Ctrl-C ends it", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        relay.close()


if __name__ == "__main__":
    main()
