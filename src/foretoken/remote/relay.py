"""A network that is slow, on one machine: a relay between clients and a host, for measurements and tests.

    python -m foretoken.remote.relay 127.0.0.1:8443 --profile 4g --port 9443

Clients then name ws://127.0.0.1:9443. When bytes arrive is up to `foretoken.remote.network`.
"""

from __future__ import annotations

import argparse
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from foretoken.errors import ForetokenError, SettingError
from foretoken.remote.network import PROFILES, SEGMENT, Lane, Profile
from foretoken.settings.values import place

_READ = 1 << 16  # bytes


class _Way:
    """One direction of one connection. ended: called when nothing comes any more."""

    def __init__(
        self, source: socket.socket, to: socket.socket, profile: Profile, seed: int, ended: Callable[[], None]
    ) -> None:
        self.bytes = 0
        self._ended = ended
        self._source, self._to, self._lane = source, to, Lane(profile, seed)
        self._queue: SimpleQueue[tuple[float, bytes] | None] = SimpleQueue()
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def _read(self) -> None:
        with suppress(OSError):
            while data := self._source.recv(_READ):
                self.bytes += len(data)
                pieces = [data[at : at + SEGMENT] for at in range(0, len(data), SEGMENT)]
                for number, piece in enumerate(pieces):
                    arrives = self._lane.segment(time.monotonic(), len(piece), len(pieces) - 1 - number)
                    self._queue.put((arrives, piece))
        self._queue.put(None)

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
