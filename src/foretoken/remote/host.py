"""The host's connections: who may come in, and what goes in and out. What is checked when is up to the room."""

from __future__ import annotations

import hmac
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from foretoken.common.place import bound, listen
from foretoken.errors import InputError, RemoteError, SettingError
from foretoken.remote.about import About
from foretoken.remote.link import quiet
from foretoken.remote.room import Room
from foretoken.remote.wire import MOST_JSON, VERSION, Code, ErrorBody, Kind, Message, read_json, to_json
from foretoken.settings.values import place

if TYPE_CHECKING:
    from websockets.sync.server import Server, ServerConnection

log = logging.getLogger(__name__)

_HELLO, _MOST_HELLO = 10.0, 4096  # seconds for a client to say who it is, and bytes
_WAITING = 1024  # messages that wait for a client who does not read; then it is hung up
_CLIENTS = 256  # connections at once that were let in
_PING, _PONG = 10.0, 20.0  # seconds between looks whether a client is there, and for its answer
_GOODBYE = 1.0  # seconds for what is still to be sent
_QUEUE = 8  # messages of a connection that wait for its thread
_THREADS = 4 * _CLIENTS  # beyond so many of them, newcomers wait
_LOOK = 0.2  # seconds
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Listening:
    """Where a host listens. token: what clients must know; None: nothing. certificate, key: PEM files for TLS; None:
    without. open: whether others than this machine may come in unencrypted.

    Raises SettingError for a place that cannot be read, and for one that would be open to a network by mistake.
    """

    host: str = "127.0.0.1"
    port: int = 8443
    token: str | None = field(default=None, repr=False)
    certificate: Path | None = None
    key: Path | None = None
    open: bool = False

    def __post_init__(self) -> None:
        if self.host in _LOOPBACK:
            return
        if self.token is None:
            raise SettingError(
                f"the host would listen on {self.host}, where others can come in; give --token-file, or listen on "
                "127.0.0.1"
            )
        if self.certificate is None and not self.open:
            raise SettingError(
                f"the host would listen on {self.host} without encryption; give --tls CERTIFICATE KEY, or "
                "--unencrypted if something in front of it encrypts"
            )

    @classmethod
    def at(cls, where: str, **more: Any) -> Self:
        """From HOST:PORT."""
        return cls(*place("listen", where), **more)

    def reserve(self) -> Place:
        """Take the port, and read the certificate. Raises SettingError if one of them is not to be had."""
        try:
            context = None
            if self.certificate is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(self.certificate, self.key)
            return Place(bound(self.host, self.port), context)
        except OSError as error:  # an SSLError is one, too
            raise self.cannot(error) from None

    def cannot(self, error: OSError) -> SettingError:
        """The error for a place at which nothing can listen."""
        return SettingError(
            f"the host cannot listen on {self.host}:{self.port} ({error}); name another port"
            f"{'' if self.certificate is None else ', or a PEM certificate and its key'}"
        )


class Place(NamedTuple):
    """What a host needs to listen: a socket that has its port, and what encrypts; None: nothing does."""

    socket: socket.socket
    encrypted: ssl.SSLContext | None


class _Guest(NamedTuple):
    """A client that was let in. connection: the number of its connection, by its own count."""

    client: str
    connection: int


@dataclass(eq=False)
class Host:
    """Listens for clients, and hands what they send to a room. about: what clients are told of the model. files: the
    tokenizer's, as they are sent; empty: there is no tokenizer. place: what was reserved for it.

    Raises SettingError if it cannot listen there.
    """

    room: Room
    about: About
    files: bytes
    listening: Listening = Listening()
    place: Place | None = None
    url: str = field(init=False)  # what clients name to come here
    _server: Server = field(init=False)
    _guests: set[ServerConnection] = field(init=False, default_factory=set)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        try:
            from websockets.sync.server import serve
        except ImportError:
            raise SettingError(
                "a host needs the package websockets; pip install websockets, or foretoken[remote]"
            ) from None
        its = self.listening
        taken = self.place or its.reserve()
        try:
            listen(taken.socket)
        except OSError as error:  # another one has begun to listen there meanwhile
            taken.socket.close()
            raise its.cannot(error) from None
        server = serve(
            self._welcome,
            sock=taken.socket,
            ssl=taken.encrypted,
            origins=[None],  # browsers name the page that connects: no page should use a host
            compression=None,
            max_size=MOST_JSON + 8 * self.about.context_length + 1024,
            max_queue=_QUEUE,
            ping_interval=_PING,
            ping_timeout=_PONG,
            server_header=None,
            logger=quiet(),
        )
        server.socket = _Patient(server.socket)  # type: ignore[assignment]
        self._server = server
        host, port = server.socket.getsockname()[:2]
        scheme = "ws" if its.certificate is None else "wss"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="foretoken-host", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up, and end the room."""
        self.room.close()
        with self._lock:
            guests = list(self._guests)
        for connection in guests:
            _hang_up(connection)
        self._server.shutdown()
        self._thread.join()

    # -- a connection, in a thread of its own -----------------------------------------------------------------------

    def _welcome(self, connection: ServerConnection) -> None:
        try:
            guest = self._guest(connection)
            if guest is None:
                return
            with self._lock:
                full = len(self._guests) >= _CLIENTS
                if not full:
                    self._guests.add(connection)
            if full:
                _refuse(connection, f"the host has {_CLIENTS} clients; try again later", Code.BUSY)
                return
            connection.send(Message(Kind.WELCOME, body=to_json(**self.about.to_json())).packed())
            self._serve(connection, guest)
        except Exception as error:  # whatever one client does must not end the host
            log.debug("a connection ended: %s", error)
        finally:
            with self._lock:
                self._guests.discard(connection)
            _hang_up(connection)

    def _guest(self, connection: ServerConnection) -> _Guest | None:
        """Who comes; None if it was refused."""
        data = connection.recv(timeout=_HELLO)
        said: Mapping[str, Any] = {}
        if len(data) <= _MOST_HELLO:
            hello = Message.read(data)
            said = read_json(hello.body) if hello.kind == Kind.HELLO else {}
        why = self._objection(said)
        if why is not None:
            _refuse(connection, why)
            return None
        return _Guest(str(said["client"]), int(said["connection"]))

    def _objection(self, said: Mapping[str, Any]) -> str | None:
        """Why a client may not come in; None if it may."""
        token, known = said.get("token"), self.listening.token
        if known is not None and not (isinstance(token, str) and hmac.compare_digest(token.encode(), known.encode())):
            return "the token is wrong; give the one in the host's token file (--token-file)"
        versions = said.get("versions")
        if not isinstance(versions, list) or VERSION not in versions:
            return f"the host speaks version {VERSION} of the messages; install the same Foretoken"
        client, number = said.get("client"), said.get("connection")
        if not isinstance(client, str) or not 16 <= len(client) <= 64 or type(number) is not int:
            return "a client must say who it is"
        return None

    def _serve(self, connection: ServerConnection, guest: _Guest) -> None:
        """Hand on what a client sends, until it hangs up."""
        outbox: Queue[Message | None] = Queue(_WAITING)

        def write() -> None:
            while (message := outbox.get()) is not None:
                try:
                    connection.send(message.packed())
                except Exception:  # it is gone: its session waits for it to come again
                    return

        def send(message: Message) -> None:
            try:
                outbox.put_nowait(message)
            except Full:  # nobody reads there, and the room must not wait
                _hang_up(connection)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        self.room.connected(*guest)
        try:
            for data in connection:
                message = Message.read(data)
                try:
                    if message.kind == Kind.FILES:
                        send(Message(Kind.FILES, body=self.files))
                    else:
                        self.room.take(*guest, message, send)
                except (RemoteError, InputError) as error:
                    send(message.refused(Code.REFUSED, str(error)))
        finally:
            self.room.disconnected(*guest)
            with suppress(Full):
                outbox.put(None, timeout=_GOODBYE)
                writer.join(_GOODBYE)


def _refuse(connection: ServerConnection, why: str, code: Code = Code.REFUSED) -> None:
    connection.send(Message(Kind.ERROR, body=ErrorBody(code, why).packed()).packed())
    connection.close()


def _hang_up(connection: ServerConnection) -> None:
    """Break a connection, without waiting for the other side, which may not read."""
    with suppress(OSError):  # not SSLSocket's: that would let a writer go on without encryption
        socket.socket.shutdown(connection.socket, socket.SHUT_RDWR)


class _Patient:
    """A listening socket for a server that ends at the first error: what one client does while it comes in, or too many
    of them, must not end a host. It has all that the socket has."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection. Raises OSError when the socket was closed."""
        while self._socket.fileno() >= 0:
            try:
                ready, _, _ = select.select([self._socket], [], [], _LOOK)
                if ready and threading.active_count() < _THREADS:
                    return self._socket.accept()
                if ready:
                    time.sleep(_LOOK)
            except (OSError, ValueError) as error:  # it has hung up already, or there are too many files
                log.debug("a connection did not come in: %s", error)
                time.sleep(_LOOK)
        raise OSError("the host is closed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)
