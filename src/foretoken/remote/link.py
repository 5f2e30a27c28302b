"""A client's connection to a host. When it breaks it is made again, for as long as the caller is patient.

Two threads belong to it. One writes what is queued, so that nobody else waits for the network: not the caller, and not
Python's garbage collector. The other listens, and connects again.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from foretoken.common.files import read_bytes
from foretoken.errors import AwayError, RemoteError, SettingError, one_line, quoted
from foretoken.remote.about import About
from foretoken.remote.wire import LARGEST, VERSION, Code, ErrorBody, Kind, Message, read_json, to_json

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

log = logging.getLogger(__name__)

_OPEN = 10.0  # seconds for a connection to be made, and for the host to say who it is
_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds before a try to connect again, each time twice as long
_PING, _PONG = 5.0, 10.0  # seconds between looks whether the other side is there, and for its answer
_UNSENT = 20_000  # milliseconds after which what nobody confirms breaks a connection
_PROGRESS = (Kind.READY, Kind.VERDICT, Kind.PASSED, Kind.FEATURES)  # messages that show that a connection is of use


@dataclass(frozen=True)
class Address:
    """Where a host is, and how to get in. url: ws:// or wss://. token: what it asks for; None: nothing. ca: the
    certificate of whoever signed the host's; None: as the system trusts. patience: seconds for which a lost connection
    is tried again. Raises SettingError for what contradicts itself."""

    url: str
    token: str | None = field(default=None, repr=False)
    ca: Path | None = None
    patience: float = 30.0

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            sound = parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port is not None
        except ValueError:
            sound = False
        if not sound:
            raise SettingError(f"remote is {quoted(self.url)}, expected ws://HOST:PORT or wss://HOST:PORT")
        if isinstance(self.patience, bool) or not (isinstance(self.patience, int | float) and 0 <= self.patience < 1e9):
            raise SettingError(f"patience is {quoted(self.patience)}, expected seconds, 0 or more")
        if self.ca is not None and parts.scheme == "ws":
            raise SettingError(f"ca is for a host that encrypts, and remote is {quoted(self.url)}; write wss://")
        if self.token is not None and parts.scheme == "ws" and not _is_here(str(parts.hostname)):
            log.warning("the token and all text travel to %s unencrypted; wss:// encrypts", self.url)


def _is_here(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


class Link:
    """A connection to one host. heard: called with each message, by a thread of the link's own. again: called by that
    thread after the connection was made again; what it returns is sent. lost: called with the reason when it is given
    up. expected: what the host must be; None: whatever it is.

    Raises RemoteError if the host cannot be reached, refuses, or is another than expected.
    """

    def __init__(
        self,
        address: Address,
        heard: Callable[[Message], None],
        again: Callable[[], list[Message]],
        lost: Callable[[RemoteError], None],
        expected: About | None = None,
    ) -> None:
        self.address = address
        self.process = os.getpid()
        self.bytes_sent = self.bytes_received = 0  # of messages, without what WebSocket, TCP and TLS add
        self._client = secrets.token_hex(16)  # by which the host knows its sessions again
        self._connections = 0
        self._heard, self._again, self._lost = heard, again, lost
        self._closed = threading.Event()
        self._until: float | None = None  # when the present outage is given up; None: there is none
        self._pause = _PAUSE
        self._chance = random.Random()  # of its own: what a program draws must not depend on a network
        self._since = time.monotonic()  # when the present connection was made
        self._outbox: SimpleQueue[Message | None] = SimpleQueue()
        self._connection, self.about, self.round_trip = self._connected(expected)
        for work in (self._write, self._listen):
            threading.Thread(target=work, name="foretoken-link", daemon=True).start()

    def send(self, message: Message) -> None:
        """Send a message, soon. What is sent while the connection is broken may be lost: what matters is sent again
        when there is one."""
        self._outbox.put(message)

    @property
    def is_broken(self) -> bool:
        """Whether there is no connection, or nothing of use has come since there is one again."""
        return self._until is not None

    def close(self) -> None:
        """Hang up. In a process that was forked, the connection is the parent's, and stays."""
        if os.getpid() == self.process:
            self._closed.set()
            self._outbox.put(None)

    # -- connecting -------------------------------------------------------------------------------------------------

    def _connected(self, expected: About | None) -> tuple[ClientConnection, About, float]:
        """A new connection, what the host says of itself, and the seconds of a round trip."""
        try:
            from websockets.exceptions import WebSocketException
            from websockets.sync.client import connect
        except ImportError:
            raise RemoteError(
                "to reach a host needs the package websockets; pip install websockets, or foretoken[remote]"
            ) from None
        url, trusted = self.address.url, self._trusted()
        its: dict[str, Any] = {
            "ssl": trusted,
            "open_timeout": _OPEN,
            "ping_interval": _PING,
            "ping_timeout": _PONG,
            "compression": None,
            "max_size": LARGEST,
            "proxy": None,
            "logger": quiet(),
        }
        try:
            try:
                connection = connect(url, **its).__enter__()  # `close` leaves it again
            except TimeoutError:
                if trusted is None:
                    raise
                # two threads of websockets use one TLS connection, which very seldom stalls at its beginning
                connection = connect(url, **its).__enter__()
        except (OSError, TimeoutError, WebSocketException, ValueError) as error:
            advice = "see that `foretoken host` runs there, and that no firewall is in between"
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLCertVerificationError):
                advice = f"if the host has no --tls, it is {url.replace('wss:', 'ws:', 1)}"
            raise AwayError(f"the host {url} cannot be reached ({error}); {advice}") from None
        try:
            with suppress(OSError, AttributeError):  # where the system has it: a dead network should not hold us up
                connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNSENT)
            self._connections += 1
            began = time.perf_counter()
            hello = to_json(
                versions=[VERSION], client=self._client, connection=self._connections, token=self.address.token
            )
            connection.send(Message(Kind.HELLO, body=hello).packed())
            came = Message.read(connection.recv(timeout=_OPEN))
            round_trip = time.perf_counter() - began
            if came.kind == Kind.ERROR:
                said = ErrorBody.read(came.body)
                kind = AwayError if said.code == Code.BUSY else RemoteError
                raise kind(f"the host {url} refuses: {one_line(said.text)}")
            if came.kind != Kind.WELCOME:
                raise RemoteError(f"the host {url} answered with {came.kind.name}, expected WELCOME")
            about = About.read(read_json(came.body))
            if expected is not None and about.identity != expected.identity:
                raise OtherModelError(f"the host {url} has another model now, or other settings; begin anew")
            return connection, about, round_trip
        except RemoteError:
            connection.close()
            raise
        except (OSError, TimeoutError, WebSocketException) as error:
            connection.close()
            raise AwayError(f"the host {url} does not say who it is ({error}); see who answers there") from None

    def _trusted(self) -> ssl.SSLContext | None:
        if not self.address.url.startswith("wss://"):
            return None
        ca = self.address.ca
        try:
            return ssl.create_default_context(cafile=None if ca is None else str(ca))
        except OSError as error:
            raise SettingError(f"the certificate {ca} cannot be read ({error}); name a PEM file") from None

    # -- the threads ------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                data = message.packed()
                self._connection.send(data)
                self.bytes_sent += len(data)
            except Exception as error:  # of websockets, of ssl, of the system: the listening thread sees it, too
                log.debug("a message was not sent: %s", error)
        self._connection.close()

    def _listen(self) -> None:
        try:
            while not self._closed.is_set():
                self._hear()
                if not self._closed.is_set():
                    self._reconnect()
        except RemoteError as error:
            self._give_up(error)
        except BaseException as error:  # a fault of this program: nobody should wait for ever
            self._give_up(RemoteError(f"the connection to {self.address.url} failed ({error})"))
        finally:
            self._connection.close()  # the writer may have closed another

    def _hear(self) -> None:
        """Hand on messages until the connection breaks. Raises RemoteError for what is no message."""
        while True:
            try:
                data = self._connection.recv()
            except Exception as error:  # it broke, in whatever layer
                if not self._closed.is_set():
                    log.debug("the connection to %s broke (%s)", self.address.url, error)
                return
            self.bytes_received += len(data)
            message = Message.read(data)
            if message.kind in _PROGRESS:
                self._until = None
            self._heard(message)

    def _reconnect(self) -> None:
        """Connect again. Raises the last error when it takes too long. An outage lasts until something of use has come:
        a connection that breaks again at once does not end it."""
        if self._until is None or time.monotonic() - self._since > self.address.patience:
            self._until, self._pause = time.monotonic() + self.address.patience, _PAUSE
            log.warning("the connection to %s broke; trying again for %.0f s", self.address.url, self.address.patience)
        # Pauses differ by chance: many clients should not come back at once.
        while not self._closed.wait(self._pause * self._chance.uniform(0.5, 1.5)):
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            try:
                connection, about, round_trip = self._connected(self.about)
            except OtherModelError:
                raise
            except RemoteError:
                if time.monotonic() + self._pause > self._until:
                    raise
                continue
            if time.monotonic() > self._until + _OPEN:
                connection.close()
                raise AwayError(f"the connection to {self.address.url} breaks again and again; see what is in between")
            self._connection.close()
            self._connection, self.about, self.round_trip = connection, about, round_trip
            self._since = time.monotonic()
            for message in self._again():
                self.send(message)
            return

    def _give_up(self, error: RemoteError) -> None:
        self._closed.set()
        self._outbox.put(None)
        self._lost(error)


class OtherModelError(RemoteError):
    """A host has another model than it had, so that going on would splice two texts."""


def quiet() -> logging.Logger:
    """A logger for the library that makes connections. What it says of single connections is for those who debug."""
    logger = logging.getLogger("foretoken.remote.websockets")
    logger.setLevel(logging.CRITICAL)
    return logger


def token_of(file: Path | None) -> str | None:
    """The token in a file. Raises SettingError if it cannot be read, or is empty."""
    if file is None:
        return None
    try:
        token = read_bytes(str(file)).decode().strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SettingError(f"the token file {file} cannot be read ({reason})") from None
    if not token:
        raise SettingError(f"the token file {file} is empty; write a long random word into it")
    return token
