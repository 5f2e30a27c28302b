"""What the commands that generate have in common."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretoken.api.model import Model
    from foretoken.results.completion import Completion
    from foretoken.settings.generate import GenerateSettings


def load(model: str, **settings: Any) -> Model:
    """As `foretoken.load`, for a process that keeps the model until it ends."""
    from foretoken.api.build import load

    with saying():
        loaded = load(model, **settings)
    gc.freeze()  # what loading left stays: to look it through for garbage takes as long as dozens of tokens
    return loaded


def say(line: str) -> None:
    """A line beside the text, on standard error."""
    print(f"-- {line}", file=sys.stderr, flush=True)


_level = logging.INFO  # of what the package logs, from where on it is said


def details(wanted: bool) -> None:
    """Whether `saying` says more than everybody needs to know."""
    global _level
    _level = logging.DEBUG if wanted else logging.INFO


@contextmanager
def saying() -> Iterator[None]:
    """Within it, what the package logs is said: where the copies that draft come from."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(record.getMessage())

    handler, log = Handler(), logging.getLogger("foretoken")
    before = log.level
    log.setLevel(_level)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def filled_the_context(done: Completion, settings: GenerateSettings) -> bool:
    """Whether a completion ended because the model's context was full."""
    return done.finish_reason == "length" and len(done.tokens) < settings.max_new_tokens
