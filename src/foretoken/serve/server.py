"""Puts a server together, and runs it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from foretoken.api.model import Model
from foretoken.common.files import read_bytes
from foretoken.common.place import bound, listen
from foretoken.common.progress import many
from foretoken.errors import SettingError
from foretoken.serve.answering import served_name
from foretoken.serve.app import Serving, make_app
from foretoken.serve.asking import Asking
from foretoken.serve.guard import Guard
from foretoken.serve.limits import Limits
from foretoken.serve.metrics import OWN, Metrics
from foretoken.serve.pages import Pages, is_of_this_machine
from foretoken.serve.patience import Patience
from foretoken.serve.worker import Worker
from foretoken.settings.values import number

log = logging.getLogger(__name__)
_LEAVE = 5  # seconds in which clients are told that their texts were given up


@dataclass(frozen=True)
class ServerSettings:
    """How a server is reached, and by whom. names: of the model; none: its own. keys: one of them is asked for.
    origins: of web pages elsewhere that may ask. hosts: names that lead to a server which listens on this machine only
    and asks for no key, beside addresses and localhost. defaults: of sampling, for requests that leave it out. drain:
    seconds in which what is under way may be finished when the server ends. metrics: the prefix of their names.
    patience: how long a request may take to arrive."""

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    drain: float = 30.0
    metrics: str = OWN
    patience: Patience = field(default_factory=Patience)

    @property
    def pages(self) -> Pages:
        """The web pages that may ask. Where a key is asked for, or others reach the server, any name leads here."""
        closed = not self.keys and is_of_this_machine(self.host)
        return Pages(self.origins, (self.host, *self.hosts) if closed else None)


def keys_of(file: Path | None) -> tuple[str, ...]:
    """The keys in a file, one in each line. Raises SettingError if there are none, or one that a header cannot hold."""
    if file is None:
        return ()
    try:
        lines = [line.strip() for line in read_bytes(file).decode("ascii").splitlines()]
    except UnicodeDecodeError:
        raise SettingError(f"the keys in {file} are not ASCII; expected one key in each line") from None
    except OSError as error:
        raise SettingError(f"the keys in {file} cannot be read ({error.strerror}); name another file") from None
    keys = tuple(filter(None, lines))
    if not keys or any(" " in key for key in keys):
        what = "is empty" if not keys else "has a line with two words"
        raise SettingError(f"{file} {what}; expected one key in each line")
    return keys


def reserved(host: str, port: int) -> socket.socket:
    """A place to listen at, which nobody else can take meanwhile. It does not listen yet: who connects is refused until
    the server runs. Raises SettingError if nothing can listen there."""
    number("port", port, 0, 65535)
    try:
        return bound(host, port)
    except OSError as error:
        raise _cannot_listen(host, port, error) from None


def _cannot_listen(host: str, port: int, error: OSError) -> SettingError:
    why = (error.strerror or str(error)).lower()
    return SettingError(
        f"nothing can listen at {host}:{port} ({why}): another program may be there, or "
        f"{host} may be no address of this machine; give another --port or --host"
    )


class Server:
    """A server of one model. Nobody else may use the model meanwhile."""

    def __init__(self, model: Model, settings: ServerSettings, limits: Limits) -> None:
        names = self.names = settings.names or (served_name(model),)
        self.settings = settings
        self._running: uvicorn.Server | None = None
        self._tell: Callable[[str], None] = log.info
        self.metrics = Metrics(names[0], settings.metrics)
        self.worker = Worker(model, limits, self.metrics, self.stop)
        self.metrics.watch(self.worker)
        asking = Asking(model, limits, settings.defaults)
        serving = Serving(model, self.worker, asking, self.metrics, names, settings.origins)
        self.app = Guard(make_app(serving), settings.keys, limits.body, settings.patience, settings.pages)

    def run(
        self,
        ready: Callable[[str], None] = lambda url: None,
        tell: Callable[[str], None] = log.info,
        place: socket.socket | None = None,
    ) -> None:
        """Serve until a signal comes, and finish what is under way. ready: called with the address when it listens.
        tell: called with a line for the user when a signal has come. place: what was `reserved` for it. Raises
        SettingError if it cannot listen there, and the error with which the loop has failed."""
        s, self._tell = self.settings, tell
        config = uvicorn.Config(
            self.app,
            host=s.host,
            port=s.port,
            http=s.patience.protocol(),
            log_config=None,
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=round(s.drain) + _LEAVE,
            server_header=False,
        )
        self._running = _Uvicorn(config, ready, self._ending)
        try:
            with place or reserved(s.host, s.port) as its:
                try:
                    listen(its)  # uvicorn does it, too; here it can be said what is wrong
                except OSError as error:
                    raise _cannot_listen(s.host, s.port, error) from None
                self._running.run([its])
        finally:
            self.close()
        if self.worker.error is not None:
            raise self.worker.error

    def stop(self) -> None:
        """End `run`, from another thread, as a signal does."""
        if self._running is not None:
            self._running.should_exit = True

    def close(self) -> None:
        """End the loop, and all texts."""
        self.worker.close()

    def _ending(self) -> None:
        """A signal came. What is under way has a while to be finished. Then it is given up, and clients are told."""
        texts, seconds = len(self.worker.running), self.settings.drain
        if texts:
            self._tell(f"finishing {many(texts, 'text')}, for up to {seconds:g} s; Ctrl-C again ends at once")
        asyncio.get_running_loop().call_later(seconds, self.worker.stop)


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[str], None], ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready, self._ending = ready, ending

    async def shutdown(self, sockets: Sequence[Any] | None = None) -> None:
        self._ending()
        await super().shutdown(list(sockets) if sockets else None)

    async def startup(self, sockets: Sequence[Any] | None = None) -> None:
        await super().startup(list(sockets) if sockets else None)
        if self.started and self.servers:
            port = self.servers[0].sockets[0].getsockname()[1]
            host = self.config.host
            self._ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
