"""The server's log: a line for each request, as text or as JSON, on standard error."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TEXT, JSON = FORMS = ("text", "json")
SHAPE = "shape"  # the attribute of a record that holds a request's fields


class _Lines(logging.Formatter):
    """A line for each record. The fields of a request's shape follow the message, or are keys of their own."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created)) + f".{int(record.msecs):03d}"
        shape: dict[str, Any] = getattr(record, SHAPE, {})
        failure = self.formatException(record.exc_info) if record.exc_info else ""
        if self._form == JSON:
            more = {"failure": failure} if failure else {}
            said = {"time": when, "level": record.levelname.lower(), "message": record.getMessage(), **shape, **more}
            return json.dumps(said, ensure_ascii=False)
        fields = "".join(f" {name}={value}" for name, value in shape.items())
        return f"{when} {record.levelname.lower()} {record.getMessage()}{fields}" + (f"\n{failure}" if failure else "")


@contextmanager
def logging_to_stderr(form: str, *, requests: bool = True) -> Iterator[None]:
    """Within it, the package and the HTTP server write what they log. requests: whether each request has a line."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(form))
    logs = {"foretoken": logging.INFO if requests else logging.WARNING, "uvicorn": logging.WARNING}
    before = {name: logging.getLogger(name).level for name in logs}
    for name, level in logs.items():
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).removeHandler(handler)
            logging.getLogger(name).setLevel(level)
