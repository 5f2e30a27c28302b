"""Every error that Foretoken raises on purpose.

    ForetokenError
    ├── InputError (ValueError)             what the caller gave cannot be used
    │   ├── PromptError                       empty, too long, or a token that the model does not have
    │   ├── SettingError                      an unknown or absurd setting
    │   ├── GrammarError                      a grammar that cannot be read, or that leaves no token to come next
    │   ├── DraftSpecError                    a draft that is not known, or options that contradict each other
    │   └── TranscriptError                   a record that cannot be written, read, or proven here
    ├── ModelError                          the checkpoint cannot be used
    │   ├── ModelNotFoundError (FileNotFoundError)  no such folder, file, shard or repository
    │   ├── CheckpointError (ValueError)      files that are damaged or do not fit their configuration
    │   └── UnsupportedModelError (NotImplementedError)  an architecture or feature that is not here yet
    ├── NumericsError (ArithmeticError)     a NaN where a number is needed: never turned into a token
    ├── RemoteError (ConnectionError)       a host cannot be reached, refuses, or says what makes no sense
    │   └── AwayError                         it is not there, or has no room: it may help to try again later
    ├── BatchError                          some prompts of many failed; what was generated is in it
    ├── ContractError (RuntimeError)        a part broke the rules between parts: a bug, ours or a plug-in's
    └── NativeError (RuntimeError)          the native module is required or forced, and cannot be had

Messages are one line, whatever they quote. They say what came, what was expected, and what to do. Each class is also
the standard exception that it refines, so `except ValueError` keeps working. To add one, refine the nearest class here,
and quote its message in a test.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar


class ForetokenError(Exception):
    """The root of all errors: catch it to catch everything that is not a bug in the calling code. Messages become one
    line."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(one_line(arg) if isinstance(arg, str) else arg for arg in args))


class InputError(ForetokenError, ValueError):
    """What the caller gave cannot be used."""


class PromptError(InputError):
    """The prompt is empty, too long, or holds a token that the model does not have."""


class SettingError(InputError):
    """A setting is unknown, or its value makes no sense."""


class GrammarError(InputError):
    """A regular expression, JSON schema or grammar cannot be read, or nothing may follow it any more."""


class DraftSpecError(InputError):
    """A draft is not known, or its options contradict each other."""


class TranscriptError(InputError):
    """A record of a generation cannot be written or read, or it is of other files or of another engine."""


class ModelError(ForetokenError):
    """The checkpoint cannot be used."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """No such folder, file, shard or repository."""


class CheckpointError(ModelError, ValueError):
    """The checkpoint's files are damaged or do not fit their configuration."""


class UnsupportedModelError(ModelError, NotImplementedError):
    """An architecture or a feature of one that Foretoken does not have."""


class NumericsError(ForetokenError, ArithmeticError):
    """A NaN where a number is needed."""


class RemoteError(ForetokenError, ConnectionError):
    """A host that checks drafts cannot be reached, refuses, or says what makes no sense."""


class AwayError(RemoteError):
    """A host is not there, or has no room now. It may help to try again later."""


class BatchError(ForetokenError):
    """Some prompts of many failed; the others were finished.

    `completions` has a `Completion` for each prompt, in their order, None for those that failed; `errors` says why, by
    index.
    """

    def __init__(self, completions: Sequence[Any], errors: Mapping[int, ForetokenError]) -> None:
        first = min(errors)
        super().__init__(
            f"{len(errors)} of {len(completions)} prompts failed, the first of them prompts[{first}]: {errors[first]}; "
            "what the others gave is in this error's completions"
        )
        self.completions = list(completions)
        self.errors = dict(errors)

    def __reduce__(self) -> tuple[Any, ...]:
        """From one process to another: an error is made anew from what it was made of."""
        return type(self), (self.completions, self.errors)


class ContractError(ForetokenError, RuntimeError):
    """A part broke the rules between parts."""


class NativeError(ForetokenError, RuntimeError):
    """The native module is required or forced, and cannot be had."""


Error = TypeVar("Error", bound=BaseException)


def without_frames(error: Error) -> Error:
    """An error without its traceback, so that it can be kept: frames hold their local variables, such as caches."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def one_line(text: str) -> str:
    """Text in which Python escapes stand for all characters that are not printable, line breaks among them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def quoted(value: object, most: int = 60) -> str:
    """A value for a message, as Python writes it. A long one is cut within its quotes, and ends in an ellipsis."""
    try:
        text = re.sub(r"\s*\n\s*", " ", repr(value))  # arrays are written on several lines
    except Exception:  # of numbers with thousands of digits, and of whatever else a caller may give
        text = f"<{type(value).__name__}>"
    close = text[-1] if text[-1] in "'\"" else ""
    return text if len(text) <= most else f"{cut(text, most - len(close))}{close}"


def cut(text: str, most: int = 60) -> str:
    """Text for a message, without quotes. A long one is cut, and ends in an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: `; did you mean 'x'?` if one is near, and all names that are
    known. A name of one letter is near to nothing."""
    known = sorted(known)
    close = difflib.get_close_matches(name, [each for each in known if len(each) > 1], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint} (known: {', '.join(known) or 'none'})"
