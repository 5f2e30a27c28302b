"""What the commands that generate have in common."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.common.source import DEFAULT_MODEL
from foretoken.errors import SettingError

if TYPE_CHECKING:
    from foretoken.api.model import Model
    from foretoken.results.completion import Completion
    from foretoken.settings.generate import GenerateSettings
    from foretoken.settings.load import LoadSettings


def load(model: str, **settings: Any) -> Model:
    """As `foretoken.load`, for a process that keeps the model until it ends."""
    from foretoken.api.build import load

    with saying():
        loaded = load(model, **settings)
    gc.freeze()  # what loading left stays: to look it through for garbage takes as long as dozens of tokens
    return loaded


@dataclass(frozen=True)
class Far:
    """Where a model is, if it is on a host: the options --remote, --token-file, --ca and --offline."""

    url: str | None
    token_file: Path | None
    ca: Path | None
    offline: str = "stop"

    def load(self, model: str, settings: LoadSettings) -> Model:
        """The model on the host, or the one that is named. Raises SettingError for options that contradict each
        other."""
        if self.url is None:
            if self.token_file is not None or self.ca is not None or self.offline != "stop":
                raise SettingError("--token-file, --ca and --offline are for a model on a host; give --remote")
            return load(model, **asdict(settings))
        if model != DEFAULT_MODEL:
            raise SettingError("--model and --remote were both given; the host has the model: leave --model out")
        from foretoken.api.remote import connect

        with saying():
            loaded = connect(self.url, token_file=self.token_file, ca=self.ca, offline=self.offline, **asdict(settings))
        gc.freeze()
        return loaded

    def expect(self, **given: object) -> None:
        """Raise SettingError for what needs the model's logits here."""
        for option, value in given.items():
            if self.url is not None and value:
                raise SettingError(
                    f"--{option} needs the model's logits, which do not travel; leave it out, or generate where the "
                    "model is"
                )


@contextmanager
def needing_serve(what: str) -> Iterator[None]:
    """Within it, a package that is missing is a SettingError which says how it is installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingError(
            f"{what} needs {error.name}, which is not installed; install it with: pip install 'foretoken[serve]'"
        ) from None


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
