"""How long a request may take to arrive. A client that sends a byte now and then would hold its connection for ever."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol


@dataclass(frozen=True)
class Patience:
    """seconds: for a request's head, and for its body to begin with. rate: bytes of a body that earn a second more."""

    seconds: float = 30.0
    rate: int = 1024

    def for_body(self, came: int) -> float:
        """The seconds that a body of which so many bytes have come may have taken."""
        return self.seconds + came / self.rate

    def protocol(self) -> type[asyncio.Protocol]:
        """uvicorn's protocol, whose connections end if the head of a request is too late. uvicorn itself waits without
        end for a connection's first byte, and for the rest of a head that has begun."""
        seconds = self.seconds
        base: Any = AutoHTTPProtocol  # h11's or httptools' class: which one depends on what is installed

        class Patient(base):  # type: ignore[misc]  # uvicorn chooses the class when it is imported: no type names it
            def __init__(self, *args: Any, **settings: Any) -> None:
                super().__init__(*args, **settings)
                self._late: asyncio.TimerHandle | None = None

            def connection_made(self, transport: asyncio.Transport) -> None:
                super().connection_made(transport)
                self._watch()

            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                self._watch()

            def connection_lost(self, error: Exception | None) -> None:
                super().connection_lost(error)
                self._stop()

            def _watch(self) -> None:
                if self.cycle is not None and not self.cycle.response_complete:
                    self._stop()  # a head has come, and its answer is under way
                elif self._late is None:
                    self._late = self.loop.call_later(seconds, self.transport.close)

            def _stop(self) -> None:
                if self._late is not None:
                    self._late.cancel()
                    self._late = None

        return Patient
