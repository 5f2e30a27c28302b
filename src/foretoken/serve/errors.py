"""Errors as OpenAI's clients expect them: a status, and a body with a type, a code and one sentence.

Source: OpenAI's API reference, "Error codes"; the official client raises a class of its own for each status, and tries
again by itself at 408, 409, 429 and 5xx unless the answer says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretoken.errors import AwayError, ForetokenError, InputError, one_line, quoted

NAME = r"[\w.:-]{1,100}"  # what a request may be called, so that no log or header is misread
_AWAY = 5  # seconds after which a host may be there again
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ServeError(ForetokenError):
    """A request cannot be served. status: of HTTP. param: the field that is at fault. again: seconds after which it may
    be tried again; None: it would fail again."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        again: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.again = status, param, code, again


class BusyError(ServeError):
    """Too many requests wait already."""

    def __init__(self, waiting: int, again: int = 1) -> None:
        super().__init__(
            429, f"the server is busy: {waiting} requests wait; try again later", code="queue_full", again=again
        )


class StoppingError(ServeError):
    """The server is about to end."""

    def __init__(self) -> None:
        super().__init__(503, "the server is about to end; try again when it has been started again", again=5)


def refused(param: str, message: str) -> ServeError:
    """The error for a field that makes no sense, or that is not served."""
    return ServeError(400, message, param=param)


def invalid(found: Mapping[str, Any], place: Sequence[str]) -> ServeError:
    """The error for the first of what pydantic has found. place: where it is in the body."""
    kinds = [part for part in place[1:] if part not in ("str", "int") and not part.startswith(("list[", "function-"))]
    where = ".".join([*place[:1], *kinds])
    if not where:
        said = "the body is no JSON object; send one, as application/json"
    elif found["type"] == "missing":
        said = f"{where} is missing"
    else:
        why = found["msg"].removeprefix("Value error, ")  # of a check of our own
        said = f"{where} is {quoted(found.get('input'))}: {why[:1].lower()}{why[1:]}"
    return ServeError(400, said, param=place[0] if place else None)


def as_served(error: BaseException) -> ServeError:
    """The error as the server answers it. What happened inside of it is told to nobody outside."""
    if isinstance(error, ServeError):
        return error
    if isinstance(error, InputError):
        return ServeError(400, str(error))
    if isinstance(error, AwayError):  # the model is on a host
        return ServeError(503, str(error), again=_AWAY)
    if isinstance(error, ForetokenError):
        return ServeError(500, str(error))
    return ServeError(500, "the server failed; its log says why")


def body(error: ServeError) -> dict[str, Any]:
    """The body of an answer, and of the event in a stream."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {
        "error": {"message": one_line(str(error)), "type": kind, "param": error.param, "code": error.code},
    }


def headers(error: ServeError) -> dict[str, str]:
    """The headers of an answer with an error."""
    if error.again is not None:
        return {"retry-after": str(error.again)}
    found = {"x-should-retry": "false"}
    return {**found, "connection": "close"} if error.status == 408 else found  # the rest of it may still come
