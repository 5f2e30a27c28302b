"""What every request passes before it is read: the key, the size of its body and its time, and a number of its own.

It is plain ASGI. A middleware of Starlette's own kind would stand between a stream and the news that its client has
gone.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foretoken.common.progress import size
from foretoken.errors import quoted
from foretoken.serve.errors import NAME, ServeError, body, headers
from foretoken.serve.logs import SHAPE
from foretoken.serve.pages import Pages
from foretoken.serve.patience import Patience

log = logging.getLogger(__name__)

_OPEN = frozenset(("/health", "/ping"))  # for those who look whether the server is there
_PAGES = frozenset(("/", "/docs", "/openapi.json"))  # nothing of the model; and a browser sends no key with them
_FORM = (b"content-type", b"application/x-www-form-urlencoded")
_AT_LEAST = 0.05  # seconds for each part of a body, however late it is: it may have come already
REFUSED = "foretoken.refused"  # in a scope: why the rest of its body was not read


class Guard:
    """keys: one of them is needed; none: everybody may come in. most: bytes of a body. patience: how long it may take
    to arrive. pages: of the web that may ask."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], most: int, patience: Patience, pages: Pages) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]
        self._most = most
        self._patience = patience
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the beginning and end of the server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"])
        name = _name_of(given.get(b"x-request-id", b""))
        began, status = time.perf_counter(), 0

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", name.encode())]}
            await send(message)

        refusal = self._refusal(scope["path"], scope["method"], given)
        try:
            if refusal is not None:
                await JSONResponse(body(refusal), refusal.status, headers(refusal))(scope, receive, named)
            else:
                # `curl -d` says that it sends a form, and no form is taken here: the body is JSON, or refused
                scope["headers"] = [(name, value) for name, value in scope["headers"] if (name, value.lower()) != _FORM]
                await self._app(scope, self._bounded(scope, receive), named)
        finally:
            self._note(scope, {"request": name, "status": status, "seconds": round(time.perf_counter() - began, 3)})

    def _note(self, scope: Scope, shape: dict[str, Any]) -> None:
        shape |= scope.get(SHAPE, {})
        log.info("%s %s", scope["method"], quoted(scope["path"], 82)[1:-1], extra={SHAPE: shape})

    def _refusal(self, path: str, method: str, given: Mapping[bytes, bytes]) -> ServeError | None:
        if (
            self._keys
            and path not in _OPEN
            and not (path in _PAGES and method in ("GET", "HEAD"))
            and method != "OPTIONS"
        ):
            scheme, _, key = given.get(b"authorization", b"").partition(b" ")
            known = [hmac.compare_digest(key.strip(), each) for each in self._keys]  # all of them, in constant time
            if scheme.lower() != b"bearer" or not any(known):
                return ServeError(
                    401, "the API key is missing or wrong; send Authorization: Bearer KEY", code="invalid_api_key"
                )
        refused = self._pages.refusal(method, given)
        if refused is not None:
            return refused
        length = given.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._most:
            return self._too_large()
        return None

    def _too_large(self) -> ServeError:
        """The error for a body that is too large."""
        return ServeError(413, f"the request is larger than {size(self._most)}; send less")

    def _too_late(self) -> ServeError:
        """The error for a body that does not come."""
        first, rate = self._patience.seconds, size(self._patience.rate)
        return ServeError(
            408, f"the request's body did not come within {first:g} s and 1 s for each {rate} of it; send it faster"
        )

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """What comes in, up to the bounds of size and time."""
        came, whole, began = 0, False, time.monotonic()

        async def bounded() -> Message:
            nonlocal came, whole
            if whole:  # what comes now is that the client has gone
                return await receive()
            left = began + self._patience.for_body(came) - time.monotonic()
            try:
                message = await asyncio.wait_for(receive(), max(left, _AT_LEAST))
            except TimeoutError:
                scope[REFUSED] = self._too_late()
                raise scope[REFUSED] from None
            if message["type"] == "http.request":
                came += len(message.get("body", b""))
                whole = not message.get("more_body", False)
                if came > self._most:
                    scope[REFUSED] = self._too_large()
                    raise scope[REFUSED]
            return message

        return bounded


def _name_of(given: bytes) -> str:
    """A request's own number, if it brings a sound one; else a new one."""
    text = given.decode("latin-1")
    return text if re.fullmatch(NAME, text, re.ASCII) else secrets.token_hex(12)
